"""Forgetting measurements: of a matrix, a family, a device, or those that failed."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from sparsegen.tuning_db.models import (
    BaselineRow,
    DeviceRow,
    MatrixRow,
    MeasurementRow,
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


def count(connection: sa.Connection, selection: Selection) -> Forgotten:
    """How many rows would be forgotten."""

    def rows(query: sa.Select[int]) -> int:
        return connection.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0

    return Forgotten(
        rows(selection.measurements()), rows(selection.baselines()) if selection.has_baselines else 0
    )


def forget(connection: sa.Connection, selection: Selection) -> Forgotten:
    """Delete them, and the matrices, problems and variants that nothing is known of any more."""
    forgotten = count(connection, selection)
    connection.execute(sa.delete(MeasurementRow).where(MeasurementRow.id.in_(selection.measurements())))
    if selection.has_baselines:
        connection.execute(sa.delete(BaselineRow).where(BaselineRow.id.in_(selection.baselines())))
    measured = sa.select(MeasurementRow.variant_id)
    connection.execute(sa.delete(VariantRow).where(VariantRow.id.not_in(measured)))
    for row, name in ((MatrixRow, "matrix_id"), (ProblemRow, "problem_id")):
        known = sa.union(sa.select(getattr(MeasurementRow, name)), sa.select(getattr(BaselineRow, name)))
        connection.execute(sa.delete(row).where(row.id.not_in(known)))
    return forgotten
