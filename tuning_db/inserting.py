"""Records become rows: each with the rows that it refers to, and none that is there already."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from sparsegen.kernels.base import Device
from sparsegen.tuning_db import conversion
from sparsegen.tuning_db.models import (
    BaselineRow,
    CheckRow,
    DeviceRatesRow,
    DeviceRow,
    MatrixRow,
    MeasurementRow,
    PredictionRow,
    ProbeRow,
    ProblemRow,
    VariantRow,
)
from sparsegen.tuning_db.records import (
    Baseline,
    Check,
    DeviceRates,
    Measurement,
    Prediction,
    Probe,
    Variant,
    Workload,
)

Reference = DeviceRow | MatrixRow | ProblemRow | VariantRow
AnyRow = Reference | MeasurementRow | BaselineRow | DeviceRatesRow | ProbeRow | CheckRow | PredictionRow


@dataclass(frozen=True, slots=True)
class _Statements:
    """A table's statements, with parameters: built once, SQLAlchemy finds what it compiled of them before.

    Attributes:
        key: the columns of the table's unique constraint.
        find: the id of the row with this key.
        insert: a row of all columns.
    """

    key: tuple[str, ...]
    find: sa.Select[int]
    insert: sa.Insert


@cache
def _statements(row: type[AnyRow]) -> _Statements:
    table = row.__table__
    assert isinstance(table, sa.Table)
    unique = next(c for c in table.constraints if isinstance(c, sa.UniqueConstraint))
    key = tuple(column.name for column in unique.columns)
    find = sa.select(table.c.id).where(*(table.c[name] == sa.bindparam(name) for name in key))
    return _Statements(key, find, sa.insert(table))


class Insertion:
    """The insertions of one transaction, which looks each row that others refer to up once.

    Each method inserts a record, and says whether it was not there before.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._ids: dict[tuple[type[Reference], tuple[Any, ...]], int] = {}

    def measurement(self, m: Measurement) -> bool:
        """What became of a variant.

        Raises:
            ValueError: it has a sample and failed, or has none and did not.
        """
        if (m.sample is not None) != (m.outcome == "ok"):
            raise ValueError(f"a measurement has a sample exactly when its outcome is ok, not {m.outcome}")
        columns = conversion.measurement_columns(m) | self._workload(m.workload, m.device)
        return self._insert_new(MeasurementRow, columns | self._variant(m.variant))

    def baseline(self, b: Baseline) -> bool:
        """A library's time."""
        columns = conversion.baseline_columns(b) | self._workload(b.workload, b.device)
        return self._insert_new(BaselineRow, columns)

    def prediction(self, p: Prediction) -> bool:
        """A variant's predicted time."""
        columns = conversion.prediction_columns(p) | self._workload(p.workload, p.device)
        return self._insert_new(PredictionRow, columns | self._variant(p.variant))

    def rates(self, r: DeviceRates) -> bool:
        """What a device does."""
        return self._insert_new(DeviceRatesRow, conversion.rates_columns(r) | self._device(r.device))

    def probe(self, p: Probe) -> bool:
        """A variant and the dense product, timed where they were used."""
        columns = conversion.probe_columns(p) | self._workload(p.workload, p.device)
        return self._insert_new(ProbeRow, columns | self._variant(p.variant))

    def check(self, c: Check) -> bool:
        """Whether a variant was right where it was used."""
        columns = conversion.check_columns(c) | self._workload(c.workload, c.device)
        return self._insert_new(CheckRow, columns | self._variant(c.variant))

    # --- what records refer to ---

    def _workload(self, workload: Workload, device: Device) -> dict[str, int]:
        return self._device(device) | {
            "matrix_id": self._id_of(MatrixRow, conversion.matrix_columns(workload)),
            "problem_id": self._id_of(ProblemRow, conversion.problem_columns(workload.problem)),
        }

    def _device(self, device: Device) -> dict[str, int]:
        return {"device_id": self._id_of(DeviceRow, conversion.device_columns(device))}

    def _variant(self, variant: Variant) -> dict[str, int]:
        return {"variant_id": self._id_of(VariantRow, conversion.variant_columns(variant))}

    def _id_of(self, row: type[Reference], columns: dict[str, Any]) -> int:
        """The id of the row with these columns, inserted when it is not there."""
        statements = _statements(row)
        key = {name: columns[name] for name in statements.key}
        cached = (row, tuple(key.values()))
        if cached not in self._ids:
            found = self._connection.scalar(statements.find, key)
            if found is None:
                self._insert_new(row, columns)
                found = self._connection.scalar(statements.find, key)
            assert found is not None, "it was inserted here or by another process"
            self._ids[cached] = found
        return self._ids[cached]

    def _insert_new(self, row: type[AnyRow], columns: dict[str, Any]) -> bool:
        """Insert, unless a row with the same natural key is there."""
        connection, statements = self._connection, _statements(row)
        key = {name: columns[name] for name in statements.key}
        if connection.scalar(statements.find, key) is not None:
            return False
        if connection.dialect.name == "sqlite":  # nobody else writes meanwhile: see `engine.WRITES`
            connection.execute(statements.insert, columns)
            return True
        try:
            with connection.begin_nested():
                connection.execute(statements.insert, columns)
        except sa.exc.IntegrityError:
            if connection.scalar(statements.find, key) is None:
                raise  # another constraint: not a repeat
            return False  # another process was faster
        return True
