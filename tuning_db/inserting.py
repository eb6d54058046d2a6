"""Records become rows: each with the rows that it refers to, and none that is there already.

What was inserted is read back before it is committed, as a look-up reads it: a record that look-ups would pass over is
refused, and none is lost in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa

from sparsegen.errors import UnreadableRecordError
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
from sparsegen.tuning_db.reading import OF_TABLE
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
from sparsegen.tuning_db.row_checks import DamagedRowError

READ_AT_ONCE = 500  # rows

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

    Each method but the last inserts a record, and says whether it was not there before.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._ids: dict[tuple[type[Reference], tuple[Any, ...]], int] = {}
        self._inserted: dict[str, list[int]] = {}  # by table of records

    def measurement(self, m: Measurement) -> bool:
        """Inserts the outcome of a variant.

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
        """Inserts a device's rates."""
        return self._insert_new(DeviceRatesRow, conversion.rates_columns(r) | self._device(r.device))

    def probe(self, p: Probe) -> bool:
        """A variant and the dense product, timed where they were used."""
        columns = conversion.probe_columns(p) | self._workload(p.workload, p.device)
        return self._insert_new(ProbeRow, columns | self._variant(p.variant))

    def check(self, c: Check) -> bool:
        """Inserts a check of a variant where it was used."""
        columns = conversion.check_columns(c) | self._workload(c.workload, c.device)
        return self._insert_new(CheckRow, columns | self._variant(c.variant))

    def require_readable(self) -> None:
        """Read back what was inserted; to be called before it is committed.

        Raises:
            UnreadableRecordError: a look-up would pass over one of them.
        """
        for table, ids in self._inserted.items():
            listing = OF_TABLE[table]
            for first in range(0, len(ids), READ_AT_ONCE):
                some = ", ".join(map(str, ids[first : first + READ_AT_ONCE]))
                query = sa.text(f"{listing.query} WHERE x.id IN ({some})")
                for row in self._connection.execute(query).mappings():
                    try:
                        listing.read(row)
                    except (DamagedRowError, conversion.UnknownProblemError) as error:
                        raise UnreadableRecordError(
                            f"{error}: look-ups would pass over this record of {table}, so nothing was recorded. "
                            "`sparsegen db check` lists rows that were damaged before; if there are none, this is a "
                            "fault of sparsegen"
                        ) from None

    # --- what records refer to ---

    def _workload(self, workload: Workload, device: Device) -> dict[str, int]:
        return self._device(device) | {
            "matrix_id": self._id_of(MatrixRow, conversion.matrix_columns(workload)),
            "problem_id": self._id_of(ProblemRow, dict(conversion.problem_columns(workload.problem))),
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
        if connection.dialect.name == "sqlite":  # there is no other writer meanwhile: see `engine.WRITES`
            self._execute(statements.insert, columns, row.__tablename__)
            return True
        try:
            with connection.begin_nested():
                self._execute(statements.insert, columns, row.__tablename__)
        except sa.exc.IntegrityError:
            if connection.scalar(statements.find, key) is None:
                raise  # another constraint: not a repeat
            return False  # another process was faster
        return True

    def _execute(self, insert: sa.Insert, columns: dict[str, Any], table: str) -> None:
        key = self._connection.execute(insert, columns).inserted_primary_key
        assert key is not None, "one row was inserted"
        if table in OF_TABLE:
            self._inserted.setdefault(table, []).append(int(key[0]))
