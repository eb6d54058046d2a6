"""Queries of a tuning database: each once, as SQL that SQLite and PostgreSQL understand.

`Store` runs it through SQLAlchemy, on any database; `SqliteReader` directly, where SQLAlchemy need not be imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Generic, NamedTuple, TypeVar

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.system.loggers import logger
from sparsegen.tuning_db import conversion, ranking
from sparsegen.tuning_db.conversion import DEVICE, FEATURES
from sparsegen.tuning_db.records import (
    Baseline,
    Check,
    DeviceRates,
    Measurement,
    Outcome,
    Prediction,
    Probe,
    Tuned,
    Workload,
)
from sparsegen.tuning_db.row_checks import DamagedRowError, Row, require_sound
from sparsegen.tuning_db.rules import NO_RULES

MOST_NAMED = 3  # rows of a database that are passed over by name
_NAMED: dict[str, set[str]] = {}  # those rows, by the databases' locations

R = TypeVar("R")


def _listed(table: str, prefix: str, names: Iterable[str]) -> str:
    return ", ".join(f"{table}.{name} AS {prefix}{name}" for name in names)


_DEVICE = _listed("d", "device_", ("id", *DEVICE))
_PROBLEM = _listed("p", "problem_", ("id", "operator", "fields", "digest"))
_WORKLOAD = ", ".join(
    (
        _listed("a", "matrix_", ("id", "fingerprint", *FEATURES)),
        _PROBLEM,
    )
)
_SAMPLE = (
    "id",
    "measured_at",
    "median_us",
    "low_us",
    "high_us",
    "sample_count",
    "measured_as",
    "clock_mhz",
    "throttle_reasons",
)
_MEASUREMENT = (
    *_SAMPLE,
    "outcome",
    "reason",
    "worst_error",
    "registers",
    "spill_bytes",
    "compile_seconds",
    "prepare_seconds",
    "packed_bytes",
    "final",
    "driver",
)
_PREDICTION = ("id", "predicted_us", "basis", "model", "registers", "spill_bytes", "predicted_at")
_OF_WORKLOAD = (
    "JOIN devices d ON d.id = x.device_id JOIN matrices a ON a.id = x.matrix_id "
    "JOIN problems p ON p.id = x.problem_id"
)
_OBSERVED = ("id", "driver", "measured_at")


def _of_variants(table: str, columns: Iterable[str]) -> str:
    """The query of a table's columns, with what was run on what."""
    return (
        f"SELECT {_listed('x', '', columns)}, {_DEVICE}, {_WORKLOAD}, "
        f"{_listed('v', 'variant_', ('id', 'family', 'config', 'source_digest'))} "
        f"FROM {table} x {_OF_WORKLOAD} JOIN variants v ON v.id = x.variant_id"
    )


MEASUREMENTS = _of_variants("measurements", _MEASUREMENT)
PROBES = _of_variants(
    "probes",
    (*_OBSERVED, "sparse_us", "dense_us", "sample_count", "measured_as", "called", "task", "context"),
)
CHECKS = _of_variants("checks", (*_OBSERVED, "outcome", "reason", "worst_error", "seconds"))
# Verified by this driver, on whichever workload; a measurement without a driver does not count.
VERIFIED = " UNION ALL ".join(
    f"SELECT x.id FROM {table} x JOIN devices d ON d.id = x.device_id JOIN variants v ON v.id = x.variant_id "
    f"WHERE d.key = :device_key AND v.source_digest = :digest AND x.driver = :driver AND x.outcome = 'ok'{only}"
    for table, only in (("checks", ""), ("measurements", " AND x.driver <> '' AND x.worst_error IS NOT NULL"))
)
BASELINES = (
    f"SELECT {_listed('x', '', (*_SAMPLE, 'contender', 'version'))}, {_DEVICE}, {_WORKLOAD} "
    f"FROM baselines x {_OF_WORKLOAD}"
)
PREDICTIONS = _of_variants("predictions", _PREDICTION)
RATES = (
    f"SELECT {_listed('x', '', ('id', 'measured_at', *(f.name for f in fields(Rates))))}, {_DEVICE} "
    "FROM device_rates x JOIN devices d ON d.id = x.device_id"
)


def _tuned(counted: str = "") -> str:
    """The query of measured workloads.

    Args:
        counted: the condition of the measurements that count, if not all of them do.
    """
    return (
        f"SELECT {_DEVICE}, {_WORKLOAD}, x.measurements, x.ok, x.last_measured_at FROM ("
        "SELECT device_id, matrix_id, problem_id, COUNT(*) AS measurements, MAX(measured_at) AS last_measured_at, "
        "SUM(CASE WHEN outcome = 'ok' THEN 1 ELSE 0 END) AS ok "
        f"FROM measurements{counted} GROUP BY problem_id, matrix_id, device_id) x {_OF_WORKLOAD}"
    )


OF_OPERATOR = f"SELECT {_PROBLEM} FROM problems p WHERE p.operator = :operator"
PROBLEMS = (
    f"SELECT {_PROBLEM}, COUNT(x.id) AS measurements "
    "FROM problems p LEFT JOIN measurements x ON x.problem_id = p.id "
    "GROUP BY p.id, p.operator, p.fields, p.digest ORDER BY p.id"
)
_OF_A_WORKLOAD = ("devices", "matrices", "problems")  # tables


class Listing(NamedTuple, Generic[R]):
    """Query and conversion of records of one kind.

    Attributes:
        query: selects all their columns.
        order: columns by which the rows are ordered.
        tables: the tables with the query's columns, by which its rows are checked.
        convert: converts a sound row to a record.
    """

    query: str
    order: str
    tables: tuple[str, ...]
    convert: Callable[[Row], R]

    def read(self, row: Row, *, is_checked: bool = True) -> R:
        """The record that a row stands for.

        Args:
            is_checked: hold the row's values against what sparsegen writes.

        Raises:
            DamagedRowError, UnknownProblemError: none that a look-up would see.
        """
        if is_checked:
            require_sound(row, self.tables)
        return self.convert(row)


def _listing(
    table: str, query: str, convert: Callable[[Row], R], *more: str, at: str = "measured_at"
) -> Listing[R]:
    return Listing(query, f"x.{at}, x.id", (table, *_OF_A_WORKLOAD, *more), convert)


MEASURED = _listing("measurements", MEASUREMENTS, conversion.to_measurement, "variants")
BESIDE = _listing("baselines", BASELINES, conversion.to_baseline)
PREDICTED = _listing("predictions", PREDICTIONS, conversion.to_prediction, "variants", at="predicted_at")
PROBED = _listing("probes", PROBES, conversion.to_probe, "variants")
CHECKED = _listing("checks", CHECKS, conversion.to_check, "variants")
RATED = Listing(RATES, "x.measured_at, x.id", ("device_rates", "devices"), conversion.to_rates)
LISTED = Listing(_tuned(), "d.key, p.id, a.id", _OF_A_WORKLOAD, conversion.to_tuned)
OF_TABLE: Mapping[str, Listing[Any]] = {
    listing.tables[0]: listing for listing in (MEASURED, BESIDE, PREDICTED, PROBED, CHECKED, RATED)
}
# Column -> parameter.
EXACTLY = {"d.key": "device_key", "a.fingerprint": "fingerprint", "p.digest": "digest"}
LIKE = {
    "d.backend": "backend",
    "d.compute_capability_major": "compute_capability_major",
    "d.compute_capability_minor": "compute_capability_minor",
}


def _where(conditions: Mapping[str, str]) -> str:
    """The columns that have to be as the parameters of these names."""
    return " WHERE " + " AND ".join(f"{c} = :{p}" for c, p in conditions.items()) if conditions else ""


class UnknownProblem(NamedTuple):
    """A problem that this sparsegen does not know, as a plug-in or a newer version writes it.

    Attributes:
        row: its number in the table of problems.
        why: the unknown part of it, in words.
        measurements: number of its measurements.
    """

    row: int
    why: str
    measurements: int


class RecordsReader(ABC):
    """The records of a database, whatever runs its queries."""

    rules = NO_RULES
    checks_rows = True  # False for a file that this sparsegen made from what was checked

    def __init__(self) -> None:
        # Rows that were not read, of each the reason.
        self.passed_over: dict[str, str] = {}

    @property
    @abstractmethod
    def location(self) -> str:
        """The database's location, for messages."""

    @abstractmethod
    def _rows(self, query: str, parameters: Mapping[str, object]) -> list[Row]:
        """Runs a query and returns its rows.

        Raises:
            DatabaseError: and its children.
        """

    def measurements(self, workload: Workload, device: Device) -> list[Measurement]:
        """Everything recorded of this workload on this device, whatever its outcome, oldest first."""
        return self._read(MEASURED, EXACTLY, _exactly(workload, device))

    def baselines(self, workload: Workload, device: Device) -> list[Baseline]:
        """The baselines of this workload on this device, oldest first."""
        return self._read(BESIDE, EXACTLY, _exactly(workload, device))

    def predictions(self, workload: Workload, device: Device) -> list[Prediction]:
        """Returns the predictions for this workload on this device, oldest first."""
        return self._read(PREDICTED, EXACTLY, _exactly(workload, device))

    def rates(self, device: Device) -> Rates | None:
        """Returns the device's last measured rates."""
        known = self._read(RATED, {"d.key": "device_key"}, {"device_key": device.key})
        return known[-1].rates if known else None

    def probes(self, workload: Workload, device: Device) -> list[Probe]:
        """The probes of this workload on this device, oldest first."""
        return self._read(PROBED, EXACTLY, _exactly(workload, device))

    def failed_checks(self, device: Device) -> list[Check]:
        """The variants that were wrong or crashed where they were first used on such a device, oldest first."""
        return [
            check
            for check in self._read(CHECKED, {"d.key": "device_key"}, {"device_key": device.key})
            if check.outcome is not Outcome.OK
        ]

    def is_verified(self, device: Device, driver: str, digest: str) -> bool:
        """True if a variant of this source digest was right on such a device with this driver."""
        asked = {"device_key": device.key, "driver": driver, "digest": digest}
        return bool(self._rows(f"{VERIFIED} LIMIT 1", asked))

    def winner(self, workload: Workload, device: Device) -> Measurement | None:
        """The best variant's newest measurement (see `ranking.ranked`), or None."""
        return ranking.best(self.measurements(workload, device))

    def winners(self, operator: str, device: Device, **fields: int | str) -> list[Measurement]:
        """The winner of every workload of an operator on devices of the same backend and compute capability.

        Args:
            fields: values that the problem's fields must have.
        """
        tuned = self._listed(operator, None, device, fields)
        found = (self.winner(t.workload, t.device) for t in tuned if t.ok)
        return [winner for winner in found if winner is not None]

    def list_workloads(
        self,
        *,
        operator: str | None = None,
        kind: tuple[str, ...] | None = None,
        like: Device | None = None,
        **fields: int | str,
    ) -> list[Tuned]:
        """Lists the measured workloads, by device and problem; every argument narrows the list.

        Args:
            kind: only problems of this kind (see `Problem.kind`).
            like: only devices of this one's backend and compute capability.
            fields: values that the problem's fields must have; problems without such a field are left out.
        """
        return self._listed(operator, kind, like, fields)

    def _listed(
        self,
        operator: str | None,
        kind: tuple[str, ...] | None,
        like: Device | None,
        fields: Mapping[str, int | str],
    ) -> list[Tuned]:
        conditions: dict[str, str] = {}
        values: dict[str, Any] = {}
        query = LISTED.query
        if kind is not None:
            rows = self._rows(OF_OPERATOR, {"operator": kind[0]})
            numbers = [str(row["problem_id"]) for row in rows if conversion.is_of_kind(row, kind)]
            if not numbers:
                return []
            query = _tuned(f" WHERE problem_id IN ({', '.join(numbers)})")
        if operator is not None:
            conditions["p.operator"], values["operator"] = "operator", operator
        if like is not None:
            conditions |= LIKE
            columns = conversion.device_columns(like)
            values |= {name: columns[name] for name in LIKE.values()}
        rows = self._rows(f"{query}{_where(conditions)} ORDER BY {LISTED.order}", values)
        listed = self._known(LISTED, rows)
        return [t for t in listed if fields.items() <= _values(t.workload).items()] if fields else listed

    def unknown_problems(self) -> list[UnknownProblem]:
        """Returns the problems that reading passes over with a warning."""
        found = []
        for row in self._rows(PROBLEMS, {}):
            try:
                require_sound(row, ["problems"])
                conversion.to_problem(row)
            except DamagedRowError:
                continue
            except conversion.UnknownProblemError as error:
                found.append(UnknownProblem(row["problem_id"], str(error), row["measurements"]))
        return found

    def all_measurements(self) -> list[Measurement]:
        """Everything, oldest first."""
        return self._read(MEASURED, {}, {})

    def all_baselines(self) -> list[Baseline]:
        """Everything, oldest first."""
        return self._read(BESIDE, {}, {})

    def all_predictions(self) -> list[Prediction]:
        """Everything, oldest first."""
        return self._read(PREDICTED, {}, {})

    def all_rates(self) -> list[DeviceRates]:
        """Everything, oldest first."""
        return self._read(RATED, {}, {})

    def all_probes(self) -> list[Probe]:
        """Everything, oldest first."""
        return self._read(PROBED, {}, {})

    def all_checks(self) -> list[Check]:
        """Everything, oldest first."""
        return self._read(CHECKED, {}, {})

    def _read(
        self, listing: Listing[R], conditions: Mapping[str, str], values: Mapping[str, object]
    ) -> list[R]:
        rows = self._rows(f"{listing.query}{_where(conditions)} ORDER BY {listing.order}", values)
        return self._known(listing, rows)

    def _known(self, listing: Listing[R], rows: Iterable[Row]) -> list[R]:
        """Converts rows to records, without those that are damaged or of an unknown problem.

        Each of these is warned of once in a process, however many readers of the database meet it.
        """
        found = []
        for row in rows:
            try:
                found.append(listing.read(row, is_checked=self.checks_rows))
                continue
            except conversion.UnknownProblemError as error:
                name, why = f"problem {row['problem_id']}", str(error)
            except DamagedRowError as error:
                name, _, why = str(error).partition(": ")
            self.passed_over.setdefault(name, why)
            _warn_once(self.location, name, why)
        return found


def _warn_once(location: str, name: str, why: str) -> None:
    """Name a row that is passed over, once in a process; of many in one database the first ones."""
    told = _NAMED.setdefault(location, set())
    if name in told or len(told) > MOST_NAMED:
        return
    told.add(name)
    if len(told) <= MOST_NAMED:
        logger(__name__).warning("%s: %s is passed over: %s", location, name, why)
    else:
        logger(__name__).warning(
            "%s: more rows are passed over; `sparsegen db check` lists all of them", location
        )


def _values(workload: Workload) -> dict[str, int | str]:
    """Every field of the workload's problem by name."""
    problem = workload.problem
    return {name: getattr(problem, name) for name in problem.fields}


def _exactly(workload: Workload, device: Device) -> dict[str, str]:
    return {
        "device_key": device.key,
        "fingerprint": workload.fingerprint,
        "digest": conversion.problem_columns(workload.problem)["digest"],
    }
