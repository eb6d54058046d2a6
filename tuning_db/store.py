"""The store: measurements go in one by one and come out, for many threads and processes at once."""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session, contains_eager

from sparsegen.errors import DatabaseCorruptError, DatabaseError, DatabaseNewerError, DatabaseReadOnlyError
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.tuning_db import conversion, forgetting, migrations, ranking
from sparsegen.tuning_db.engine import (
    WRITES,
    Location,
    copied_to_memory,
    create_engine,
    enter_wal_mode,
    pragma,
    set_foreign_keys,
    typed_errors,
)
from sparsegen.tuning_db.forgetting import Forgotten, Selection
from sparsegen.tuning_db.models import (
    BaselineRow,
    DeviceRatesRow,
    DeviceRow,
    MatrixRow,
    MeasurementRow,
    ProblemRow,
    VariantRow,
)
from sparsegen.tuning_db.records import Baseline, DeviceRates, Measurement, Workload
from sparsegen.tuning_db.row_checks import DamagedRowError

log = logging.getLogger(__name__)

R = TypeVar("R")
Reference = DeviceRow | MatrixRow | ProblemRow | VariantRow
Ids = dict[tuple[type[Reference], tuple[Any, ...]], int]


@dataclass(frozen=True, slots=True)
class Tuned:
    """A workload on a device, and how much is known about it."""

    workload: Workload
    device: Device
    measurements: int
    ok: int
    last_measured_at: datetime


@dataclass(frozen=True, slots=True)
class UnknownProblem:
    """A problem that this sparsegen does not know, as a plug-in or a newer version writes it.

    Attributes:
        row: its number in the table of problems.
        why: what is unknown of it, in words.
        measurements: how many there are of it.
    """

    row: int
    why: str
    measurements: int


@dataclass(frozen=True, slots=True)
class Added:
    """How many rows an `add_all` added; the others were there already."""

    measurements: int
    baselines: int
    rates: int = 0


class Store:
    """A tuning database. Every method may be called from any thread; many processes may hold the same file.

    ``generation`` counts the writes through this object, so that a cache above it knows when to look again.
    """

    def __init__(self, engine: sa.Engine, location: Location, *, read_only: bool) -> None:
        """Use `Store.open`."""
        self._engine = engine
        self._location = location
        self._copy: sqlite3.Connection | None = None  # of an older file, migrated in memory
        self._writes = itertools.count(1)
        self.passed_over: dict[
            str, str
        ] = {}  # rows that were not read, of each the reason; each was warned of once
        self.read_only = read_only
        self.generation = 0
        self.found_schema: str | None = None  # the version before this object migrated it; None for a new one

    @classmethod
    def open(cls, location: str | Path, *, read_only: bool = False, lock_timeout: float = 30.0) -> Self:
        """Open a path or SQLAlchemy URL; a new database gets its folders and tables, an old one its
        migrations.

        Args:
            read_only: open what exists and change nothing, also on read-only media; an older SQLite file is read
                through a copy in memory, as it would be once migrated.
            lock_timeout: seconds to wait for another process.

        Raises:
            DatabaseCorruptError, DatabaseNewerError, DatabaseReadOnlyError, DatabaseLockedError,
            DatabaseFullError: see there; the file is left as it is.
            DatabaseError: a server that does not answer, a missing driver, no file to read.
        """
        place = Location.parse(location)
        engine = create_engine(place, read_only=read_only, lock_timeout=lock_timeout)
        store = cls(engine, place, read_only=read_only)
        try:
            with typed_errors(place):
                store._make_ready(lock_timeout)
        except (DatabaseCorruptError, DatabaseNewerError) as error:
            store.close()
            if str(place) in str(error):
                raise
            raise type(error)(f"{place}: {error}") from None
        except BaseException:
            store.close()
            raise
        return store

    def _make_ready(self, lock_timeout: float) -> None:
        with self._engine.connect() as connection, connection.begin():
            revision = self.found_schema = migrations.current_revision(connection)
        is_sqlite = self._engine.dialect.name == "sqlite"
        if self.read_only:
            if revision == migrations.HEAD:
                return
            if revision is None or not is_sqlite:
                raise DatabaseError(
                    f"{self.location} has schema version {revision or 'none'} and is opened to be read; "
                    "run `sparsegen db migrate` where it can be written"
                )
            # An older file is read as it would be once migrated, and stays as it is for those that wrote it.
            file = self._engine
            self._engine, self._copy = copied_to_memory(file)
            file.dispose()
            self._migrate()
            return
        if is_sqlite:
            enter_wal_mode(self._engine, lock_timeout)
        if revision != migrations.HEAD:
            self._migrate()
        else:  # a file that cannot be written is refused now, not after the first measurement
            with self._writing():
                pass

    def _migrate(self) -> None:
        """Bring the schema up to date in one transaction; SQLite copies tables to change them, without foreign keys."""
        is_sqlite = self._engine.dialect.name == "sqlite"
        with self._engine.connect().execution_options(**{WRITES: True}) as connection:
            if is_sqlite:
                set_foreign_keys(connection, on=False)
            try:
                with connection.begin():
                    migrations.upgrade(connection)
            finally:
                if is_sqlite:
                    set_foreign_keys(connection, on=True)

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if self.read_only:
            raise DatabaseReadOnlyError(f"{self.location} was opened for reading only")
        with (
            typed_errors(self._location),
            self._engine.connect().execution_options(**{WRITES: True}) as connection,
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with typed_errors(self._location), Session(self._engine) as session:
            yield session

    @property
    def location(self) -> str:
        """The path, or the URL without its password: for people."""
        return str(self._location)

    def close(self) -> None:
        self._engine.dispose()
        if self._copy is not None:
            self._copy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- writing -------------------------------------------------------------------------------------------

    def add_measurement(self, m: Measurement) -> None:
        """Record a measurement; it is committed when this returns."""
        self.add_all([m], [])

    def add_baseline(self, b: Baseline) -> None:
        """Record a baseline; it is committed when this returns."""
        self.add_all([], [b])

    def add_rates(self, rates: DeviceRates) -> None:
        """Record what a device does; it is committed when this returns."""
        self.add_all([], [], [rates])

    def add_all(
        self,
        measurements: Iterable[Measurement],
        baselines: Iterable[Baseline],
        rates: Iterable[DeviceRates] = (),
    ) -> Added:
        """Record all of them, or on any error none; what is there already is left alone."""
        with self._writing() as connection:
            ids: Ids = {}
            added = Added(
                sum(_add_measurement(connection, m, ids) for m in measurements),
                sum(_add_baseline(connection, b, ids) for b in baselines),
                sum(_add_rates(connection, r, ids) for r in rates),
            )
        self.generation = next(self._writes)
        return added

    def forget(self, selection: Selection) -> Forgotten:
        """Delete what is selected; it is committed when this returns."""
        with self._writing() as connection:
            forgotten = forgetting.forget(connection, selection)
        self.generation = next(self._writes)
        return forgotten

    def count(self, selection: Selection) -> Forgotten:
        """How much `forget` would delete."""
        with self._reading() as session:
            return forgetting.count(session.connection(), selection)

    # --- reading -------------------------------------------------------------------------------------------

    def measurements(self, workload: Workload, device: Device) -> list[Measurement]:
        """Everything recorded of this workload on this device, whatever its outcome, oldest first."""
        return self._measurements(*_exactly(workload, device))

    def baselines(self, workload: Workload, device: Device) -> list[Baseline]:
        """The baselines of this workload on this device, oldest first."""
        return self._baselines(*_exactly(workload, device))

    def rates(self, device: Device) -> Rates | None:
        """What the device was last measured to do."""
        known = self._rates(DeviceRow.key == device.key)
        return known[-1].rates if known else None

    def winner(self, workload: Workload, device: Device) -> Measurement | None:
        """The best variant's newest measurement (see `ranking.ranked`), or None."""
        return ranking.best(self.measurements(workload, device))

    def winners(self, operator: str, device: Device, **fields: int | str) -> list[Measurement]:
        """The winner of every workload of an operator on devices of the same backend and compute capability.

        Args:
            fields: values that the problem's fields must have.
        """
        tuned = self.list_workloads(operator=operator, like=device, **fields)
        found = (self.winner(t.workload, t.device) for t in tuned if t.ok)
        return [winner for winner in found if winner is not None]

    def list_workloads(
        self, *, operator: str | None = None, like: Device | None = None, **fields: int | str
    ) -> list[Tuned]:
        """What was measured, by device and problem; every argument narrows it.

        Args:
            like: only devices of this one's backend and compute capability.
            fields: values that the problem's fields must have; problems without such a field are left out.
        """
        conditions = [] if operator is None else [ProblemRow.operator == operator]
        if like is not None:
            columns = conversion.device_columns(like)
            names = ("backend", "compute_capability_major", "compute_capability_minor")
            conditions += [getattr(DeviceRow, name) == columns[name] for name in names]
        counted = (
            sa.select(
                MeasurementRow.device_id,
                MeasurementRow.matrix_id,
                MeasurementRow.problem_id,
                sa.func.count().label("total"),
                sa.func.sum(sa.case((MeasurementRow.outcome == "ok", 1), else_=0)).label("ok"),
                sa.func.max(MeasurementRow.measured_at).label("last"),
            )
            .group_by(MeasurementRow.device_id, MeasurementRow.matrix_id, MeasurementRow.problem_id)
            .subquery()
        )
        query = (
            sa.select(DeviceRow, MatrixRow, ProblemRow, counted.c.total, counted.c.ok, counted.c.last)
            .join(counted, counted.c.device_id == DeviceRow.id)
            .join(MatrixRow, counted.c.matrix_id == MatrixRow.id)
            .join(ProblemRow, counted.c.problem_id == ProblemRow.id)
            .where(*conditions)
            .order_by(DeviceRow.key, ProblemRow.id, MatrixRow.id)
        )
        with self._reading() as session:
            listed = [
                tuned
                for row in session.execute(query)
                if (tuned := self._known(row.ProblemRow, _to_tuned, *row)) is not None
            ]
        return [t for t in listed if fields.items() <= _values(t.workload).items()]

    def unknown_problems(self) -> list[UnknownProblem]:
        """Those that reading passes over with a warning."""
        count = sa.func.count(MeasurementRow.id)
        query = sa.select(ProblemRow, count).outerjoin(MeasurementRow).group_by(ProblemRow.id)
        found = []
        with self._reading() as session:
            for problem, measurements in session.execute(query.order_by(ProblemRow.id)):
                try:
                    conversion.to_problem(problem)
                except DamagedRowError:
                    continue
                except conversion.UnknownProblemError as error:
                    found.append(UnknownProblem(problem.id, str(error), measurements))
        return found

    def all_measurements(self) -> list[Measurement]:
        """Everything, oldest first."""
        return self._measurements()

    def all_baselines(self) -> list[Baseline]:
        """Everything, oldest first."""
        return self._baselines()

    def all_rates(self) -> list[DeviceRates]:
        """Everything, oldest first."""
        return self._rates()

    def _rates(self, *conditions: sa.ColumnElement[bool]) -> list[DeviceRates]:
        row = DeviceRatesRow
        query = sa.select(row).join(row.device).options(contains_eager(row.device))
        query = query.where(*conditions).order_by(row.measured_at, row.id)
        with self._reading() as session:
            return [
                known
                for found in session.scalars(query)
                if (known := self._known(None, conversion.to_rates, found)) is not None
            ]

    def _measurements(self, *conditions: sa.ColumnElement[bool]) -> list[Measurement]:
        row = MeasurementRow
        query = (
            sa.select(row)
            .join(row.device)
            .join(row.matrix)
            .join(row.problem)
            .join(row.variant)
            .options(*(contains_eager(r) for r in (row.device, row.matrix, row.problem, row.variant)))
            .where(*conditions)
            .order_by(row.measured_at, row.id)
        )
        with self._reading() as session:
            return [
                known
                for found in session.scalars(query)
                if (known := self._known(found.problem, conversion.to_measurement, found)) is not None
            ]

    def _baselines(self, *conditions: sa.ColumnElement[bool]) -> list[Baseline]:
        row = BaselineRow
        query = (
            sa.select(row)
            .join(row.device)
            .join(row.matrix)
            .join(row.problem)
            .options(*(contains_eager(r) for r in (row.device, row.matrix, row.problem)))
            .where(*conditions)
            .order_by(row.measured_at, row.id)
        )
        with self._reading() as session:
            return [
                known
                for found in session.scalars(query)
                if (known := self._known(found.problem, conversion.to_baseline, found)) is not None
            ]

    def _known(self, problem: ProblemRow | None, convert: Callable[..., R], *rows: Any) -> R | None:
        """What the rows stand for; None, and once a warning, where they are damaged or their problem is unknown."""
        try:
            return convert(*rows)
        except conversion.UnknownProblemError as error:
            assert problem is not None, "rates have no problem"
            row, why = f"problem {problem.id}", str(error)
        except DamagedRowError as error:
            row, _, why = str(error).partition(": ")
        if row not in self.passed_over:
            self.passed_over[row] = why
            log.warning("%s: %s is passed over: %s", self.location, row, why)
        return None

    # --- upkeep --------------------------------------------------------------------------------------------

    def damage(self) -> list[str]:
        """What the database itself finds wrong with its file: damaged pages, references to nothing."""
        if self._engine.dialect.name != "sqlite":
            return []
        try:
            with typed_errors(self._location):
                pages = [str(line) for (line,) in pragma(self._engine, "integrity_check")]
                dangling = pragma(self._engine, "foreign_key_check")
        except DatabaseCorruptError as error:  # so damaged that the check itself stops
            return [str(error)]
        lost = [f"{table} row {row}: no such row of {parent}" for table, row, parent, _ in dangling]
        return [line for line in pages if line != "ok"] + lost


def _to_tuned(
    device: DeviceRow, matrix: MatrixRow, problem: ProblemRow, total: int, ok: int, last: datetime | None
) -> Tuned:
    # The latest moment is none if what stands there is none; its row is passed over where it is read.
    workload = conversion.to_workload(matrix, problem)
    return Tuned(workload, conversion.to_device(device), total, ok, last or datetime.fromtimestamp(0, UTC))


def _values(workload: Workload) -> dict[str, int | str]:
    """Every field of the workload's problem by name."""
    problem = workload.problem
    return {name: getattr(problem, name) for name in problem.fields}


def _exactly(workload: Workload, device: Device) -> list[sa.ColumnElement[bool]]:
    return [
        DeviceRow.key == device.key,
        MatrixRow.fingerprint == workload.fingerprint,
        ProblemRow.digest == conversion.problem_columns(workload.problem)["digest"],
    ]


def _add_measurement(connection: sa.Connection, m: Measurement, ids: Ids) -> bool:
    if (m.sample is not None) != (m.outcome == "ok"):
        raise ValueError(f"a measurement has a sample exactly when its outcome is ok, not {m.outcome}")
    columns = conversion.measurement_columns(m) | _workload_ids(connection, m.workload, m.device, ids)
    columns["variant_id"] = _id_of(connection, VariantRow, conversion.variant_columns(m.variant), ids)
    return _insert_new(connection, MeasurementRow, columns)


def _add_baseline(connection: sa.Connection, b: Baseline, ids: Ids) -> bool:
    columns = conversion.baseline_columns(b) | _workload_ids(connection, b.workload, b.device, ids)
    return _insert_new(connection, BaselineRow, columns)


def _add_rates(connection: sa.Connection, r: DeviceRates, ids: Ids) -> bool:
    columns = conversion.rates_columns(r)
    columns["device_id"] = _id_of(connection, DeviceRow, conversion.device_columns(r.device), ids)
    return _insert_new(connection, DeviceRatesRow, columns)


def _workload_ids(connection: sa.Connection, workload: Workload, device: Device, ids: Ids) -> dict[str, int]:
    return {
        "device_id": _id_of(connection, DeviceRow, conversion.device_columns(device), ids),
        "matrix_id": _id_of(connection, MatrixRow, conversion.matrix_columns(workload), ids),
        "problem_id": _id_of(connection, ProblemRow, conversion.problem_columns(workload.problem), ids),
    }


def _natural_key(table: sa.Table, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns of the table's unique constraint, with their values."""
    unique = next(c for c in table.constraints if isinstance(c, sa.UniqueConstraint))
    return {column.name: columns[column.name] for column in unique.columns}


def _id_of(connection: sa.Connection, row: type[Reference], columns: dict[str, Any], ids: Ids) -> int:
    """The id of the row with these columns, inserted when it is not there."""
    table = row.__table__
    assert isinstance(table, sa.Table)
    key = _natural_key(table, columns)
    cached = (row, tuple(key.values()))
    if cached not in ids:
        find = sa.select(row.id).where(*(table.c[name] == value for name, value in key.items()))
        found = connection.scalar(find)
        if found is None:
            _insert_new(connection, row, columns)
            found = connection.scalar(find)
        assert found is not None, "it was inserted here or by another process"
        ids[cached] = found
    return ids[cached]


def _insert_new(
    connection: sa.Connection,
    row: type[Reference | MeasurementRow | BaselineRow | DeviceRatesRow],
    columns: dict[str, Any],
) -> bool:
    """Insert, unless a row with the same natural key is there."""
    table = row.__table__
    assert isinstance(table, sa.Table)
    key = _natural_key(table, columns)
    there = sa.select(sa.literal(1)).where(*(table.c[name] == value for name, value in key.items()))
    if connection.scalar(there) is not None:
        return False
    if connection.dialect.name == "sqlite":  # nobody else writes meanwhile: see `engine.WRITES`
        connection.execute(sa.insert(row).values(columns))
        return True
    try:
        with connection.begin_nested():
            connection.execute(sa.insert(row).values(columns))
    except sa.exc.IntegrityError:
        if connection.scalar(there) is None:
            raise  # another constraint: not a repeat
        return False  # another process was faster
    return True
