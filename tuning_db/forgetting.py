"""Forgetting measurements: of a matrix, a family, a device, or those that failed."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from sparsegen.tuning_db.models import (
    BaselineRow,
    CheckRow,
    DeviceRow,
    MatrixRow,
    MeasurementRow,
    PredictionRow,
    ProbeRow,
    ProblemRow,
    VariantRow,
)
from sparsegen.tuning_db.records import Outcome


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of records to forget: all that meet every given condition.

    Attributes:
        matrix: the first digits of a fingerprint.
        family: a family's name.
        device: a device's key.
        failed_only: select nothing that was verified and timed.
    """

    matrix: str = ""
    family: str = ""
    device: str = ""
    failed_only: bool = False

    @property
    def has_baselines(self) -> bool:
        """True if baselines are selected too: they are of no family, and never failed."""
        return not (self.family or self.failed_only)

    def measurements(self) -> sa.Select[int]:
        """The ids of the measurements that are meant."""
        return self._of_variants(MeasurementRow)

    def checks(self) -> sa.Select[int]:
        """The ids of the checks that are meant."""
        return self._of_variants(CheckRow)

    def probes(self) -> sa.Select[int]:
        """The ids of the probes that are meant; none of them failed."""
        return self._of_variants(ProbeRow)

    def _of_variants(self, row: type[MeasurementRow | CheckRow | ProbeRow]) -> sa.Select[int]:
        query = self._of(sa.select(row.id).join(row.matrix).join(row.device))
        if self.family:
            query = query.join(row.variant).where(VariantRow.family == self.family)
        if self.failed_only:
            has_failed = sa.false() if row is ProbeRow else row.__table__.c.outcome != Outcome.OK.value
            query = query.where(has_failed)
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
    """Number of rows that a selection has, or had."""

    measurements: int
    baselines: int
    predictions: int = 0


def count(connection: sa.Connection, selection: Selection) -> Forgotten:
    """Counts the rows that would be forgotten."""

    def rows(query: sa.Select[int]) -> int:
        return connection.scalar(sa.select(sa.func.count()).select_from(query.subquery())) or 0

    return Forgotten(
        rows(selection.measurements()),
        rows(selection.baselines()) if selection.has_baselines else 0,
        rows(selection.predictions()),
    )


def forget(connection: sa.Connection, selection: Selection) -> Forgotten:
    """Delete them with the probes and checks that are meant, and the matrices, problems and variants that nothing is
    known of any more.
    """
    forgotten = count(connection, selection)
    connection.execute(sa.delete(MeasurementRow).where(MeasurementRow.id.in_(selection.measurements())))
    connection.execute(sa.delete(ProbeRow).where(ProbeRow.id.in_(selection.probes())))
    connection.execute(sa.delete(CheckRow).where(CheckRow.id.in_(selection.checks())))
    connection.execute(sa.delete(PredictionRow).where(PredictionRow.id.in_(selection.predictions())))
    if selection.has_baselines:
        connection.execute(sa.delete(BaselineRow).where(BaselineRow.id.in_(selection.baselines())))
    measured = sa.union(
        *(sa.select(row.variant_id) for row in (MeasurementRow, ProbeRow, CheckRow, PredictionRow))
    )
    connection.execute(sa.delete(VariantRow).where(VariantRow.id.not_in(measured)))
    for row, name in ((MatrixRow, "matrix_id"), (ProblemRow, "problem_id")):
        tables = (MeasurementRow, BaselineRow, ProbeRow, CheckRow, PredictionRow)
        known = sa.union(*(sa.select(getattr(table, name)) for table in tables))
        connection.execute(sa.delete(row).where(row.id.not_in(known)))
    return forgotten
