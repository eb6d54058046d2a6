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

    def ids(
        self, row: type[MeasurementRow | BaselineRow | ProbeRow | CheckRow | PredictionRow]
    ) -> sa.Select[int]:
        """The ids of a table's rows that are meant; no probe and no prediction has failed."""
        query = sa.select(row.id).join(row.matrix).join(row.device)
        if self.matrix:
            query = query.where(MatrixRow.fingerprint.startswith(self.matrix.lower(), autoescape=True))
        if self.device:
            query = query.where(DeviceRow.key == self.device)
        if issubclass(row, BaselineRow):
            return query if self.has_baselines else query.where(sa.false())
        if self.family:
            query = query.join(row.variant).where(VariantRow.family == self.family)
        if self.failed_only:
            can_fail = issubclass(row, MeasurementRow | CheckRow)
            query = query.where(row.__table__.c.outcome != Outcome.OK.value if can_fail else sa.false())
        return query


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Number of rows that a selection has, or had."""

    measurements: int
    baselines: int
    predictions: int = 0


def count(connection: sa.Connection, selection: Selection) -> Forgotten:
    """Counts the rows that would be forgotten."""

    def rows(row: type[MeasurementRow | BaselineRow | PredictionRow]) -> int:
        found = sa.select(sa.func.count()).select_from(selection.ids(row).subquery())
        return connection.scalar(found) or 0

    return Forgotten(rows(MeasurementRow), rows(BaselineRow), rows(PredictionRow))


def forget(connection: sa.Connection, selection: Selection) -> Forgotten:
    """Delete them with the probes and checks that are meant, and the matrices, problems and variants that nothing is
    known of any more.
    """
    forgotten = count(connection, selection)
    tables = (MeasurementRow, BaselineRow, ProbeRow, CheckRow, PredictionRow)
    for table in tables:
        connection.execute(sa.delete(table).where(table.id.in_(selection.ids(table))))
    measured = sa.union(
        *(sa.select(row.variant_id) for row in (MeasurementRow, ProbeRow, CheckRow, PredictionRow))
    )
    connection.execute(sa.delete(VariantRow).where(VariantRow.id.not_in(measured)))
    for row, name in ((MatrixRow, "matrix_id"), (ProblemRow, "problem_id")):
        known = sa.union(*(sa.select(getattr(table, name)) for table in tables))
        connection.execute(sa.delete(row).where(row.id.not_in(known)))
    return forgotten
