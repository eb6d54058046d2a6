"""Forgetting measurements: of a matrix, a family, a device, or those that failed."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from sparsegen.tuning_db.models import (
    BaselineRow,
    DeviceRow,
    MatrixRow,
    MeasurementRow,
    PredictionRow,
    ProblemRow,
    VariantRow,
)
from sparsegen.tuning_db.records import Outcome


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be forgotten: all that meets every condition that is given.

    Attributes:
        matrix: the first digits of a fingerprint.
        family: a family's name.
        device: a device's key.
        failed_only: nothing that was verified and timed.
    """

    matrix: str = ""
    family: str = ""
    device: str = ""
    failed_only: bool = False

    @property
    def has_baselines(self) -> bool:
        """Whether baselines are meant, too: they are of no family, and never failed."""
        return not (self.family or self.failed_only)

    def measurements(self) -> sa.Select[int]:
        """The ids of the measurements that are meant."""
        query = self._of(sa.select(MeasurementRow.id).join(MeasurementRow.matrix).join(MeasurementRow.device))
        if self.family:
            query = query.join(MeasurementRow.variant).where(VariantRow.family == self.family)
        if self.failed_only:
            query = query.where(MeasurementRow.outcome != Outcome.OK.value)
        return query

    def predictions(self) -> sa.Select[int]:
        """The ids of the predictions that are meant: none of them failed."""
        query = self._of(sa.select(PredictionRow.id).join(PredictionRow.matrix).join(PredictionRow.device))
        if self.family:
            query = query.join(PredictionRow.variant).where(VariantRow.family == self.family)
        return query.where(sa.false()) if self.failed_only else query

    def baselines(self) -> sa.Select[int]:
        """The ids of the baselines that are meant."""
        return self._of(sa.select(BaselineRow.id).join(BaselineRow.matrix).join(BaselineRow.device))

    def _of(self, query: sa.Select[int]) -> sa.Select[int]:
        if self.matrix:
            query = query.where(MatrixRow.fingerprint.startswith(self.matrix.lower(), autoescape=True))
        return query.where(DeviceRow.key == self.device) if self.device else query


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many rows a selection has, or had."""

    measurements: int
    baselines: int
    predictions: int = 0


def count(connection: sa.Connection, selection: Selection) -> Forgotten:
    """How many rows would be forgotten."""

    def rows(query: sa.Select[int]) -> int:
        return connection.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0

    return Forgotten(
        rows(selection.measurements()),
        rows(selection.baselines()) if selection.has_baselines else 0,
        rows(selection.predictions()),
    )


def forget(connection: sa.Connection, selection: Selection) -> Forgotten:
    """Delete them, and the matrices, problems and variants that nothing is known of any more."""
    forgotten = count(connection, selection)
    connection.execute(sa.delete(MeasurementRow).where(MeasurementRow.id.in_(selection.measurements())))
    connection.execute(sa.delete(PredictionRow).where(PredictionRow.id.in_(selection.predictions())))
    if selection.has_baselines:
        connection.execute(sa.delete(BaselineRow).where(BaselineRow.id.in_(selection.baselines())))
    known = sa.union(sa.select(MeasurementRow.variant_id), sa.select(PredictionRow.variant_id))
    connection.execute(sa.delete(VariantRow).where(VariantRow.id.not_in(known)))
    for row, name in ((MatrixRow, "matrix_id"), (ProblemRow, "problem_id")):
        known = sa.union(
            *(sa.select(getattr(of, name)) for of in (MeasurementRow, BaselineRow, PredictionRow))
        )
        connection.execute(sa.delete(row).where(row.id.not_in(known)))
    return forgotten
