"""Layers of tuning results: the user's database over the project's over the seeds that sparsegen comes with.

The user's (``--db``, ``SPARSEGEN_DB``, or the default below the user's data folder) is the only one that is
written. The project's is ``.sparsegen/tuning.db`` in the working folder, to be kept with the code. The seeds
come inside the package (`seeds_reader`). Between these two lie published layers (`published`), as `Settings.layers`
names them. A workload known to an upper layer hides the same workload in those
below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sparsegen.errors import DatabaseError
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.operators import Problem
from sparsegen.settings import Settings
from sparsegen.tuning_db.layer import Kind, Layer
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.pins import pins_path
from sparsegen.tuning_db.project import is_there, is_trusted
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
from sparsegen.tuning_db.rules import NO_RULES, Rules
from sparsegen.tuning_db.schema_versions import refuse_published
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.sqlite_reader import SqliteReader, open_sqlite, tables_of

if TYPE_CHECKING:
    from sparsegen.tuning_db.store import Store

PROJECT_DATABASE = Path(".sparsegen") / "tuning.db"


Key = tuple[str, Problem, str]


def _key(workload: Workload, device: Device) -> Key:
    return device.key, workload.problem, workload.fingerprint


class MemoryLayer:
    """Records in memory, never written."""

    generation = 0
    rules = NO_RULES

    def __init__(
        self,
        measurements: Iterable[Measurement],
        baselines: Iterable[Baseline],
        rates: Iterable[DeviceRates] = (),
        probes: Iterable[Probe] = (),
        checks: Iterable[Check] = (),
        predictions: Iterable[Prediction] = (),
    ) -> None:
        self._probes = sorted(probes, key=lambda p: p.measured_at)
        self._checks = sorted(checks, key=lambda c: c.measured_at)
        self._measurements: dict[Key, list[Measurement]] = defaultdict(list)
        self._baselines: dict[Key, list[Baseline]] = defaultdict(list)
        self._rates: dict[str, Rates] = {}
        self._predictions: dict[Key, list[Prediction]] = defaultdict(list)
        self.take(measurements, baselines, rates, predictions)

    def take(
        self,
        measurements: Iterable[Measurement],
        baselines: Iterable[Baseline],
        rates: Iterable[DeviceRates] = (),
        predictions: Iterable[Prediction] = (),
    ) -> None:
        """Hold these records too; none is older than those that are held."""
        for m in sorted(measurements, key=lambda m: m.measured_at):
            self._measurements[_key(m.workload, m.device)].append(m)
        for b in sorted(baselines, key=lambda b: b.measured_at):
            self._baselines[_key(b.workload, b.device)].append(b)
        for r in sorted(rates, key=lambda r: r.measured_at):
            self._rates[r.device.key] = r.rates
        for p in sorted(predictions, key=lambda p: p.predicted_at):
            self._predictions[_key(p.workload, p.device)].append(p)

    def measurements(self, workload: Workload, device: Device) -> list[Measurement]:
        return list(self._measurements.get(_key(workload, device), ()))

    def baselines(self, workload: Workload, device: Device) -> list[Baseline]:
        return list(self._baselines.get(_key(workload, device), ()))

    def predictions(self, workload: Workload, device: Device) -> list[Prediction]:
        return list(self._predictions.get(_key(workload, device), ()))

    def rates(self, device: Device) -> Rates | None:
        return self._rates.get(device.key)

    def probes(self, workload: Workload, device: Device) -> list[Probe]:
        return [p for p in self._probes if _key(p.workload, p.device) == _key(workload, device)]

    def failed_checks(self, device: Device) -> list[Check]:
        return [c for c in self._checks if c.device.key == device.key and c.outcome is not Outcome.OK]

    def is_verified(self, device: Device, driver: str, digest: str) -> bool:
        wanted = device.key, driver, digest, Outcome.OK
        measured = [m for some in self._measurements.values() for m in some if m.driver]
        return any(
            (c.device.key, c.driver, c.variant.source_digest, c.outcome) == wanted for c in self._checks
        ) or any(
            (m.device.key, m.driver, m.variant.source_digest, m.outcome) == wanted
            for m in measured
            if m.worst_error is not None
        )

    def close(self) -> None: ...

    def list_workloads(self, *, kind: Kind | None = None, like: Device | None = None) -> list[Tuned]:
        return [
            Tuned(
                workload=found[0].workload,
                device=found[0].device,
                measurements=len(found),
                ok=sum(m.outcome is Outcome.OK for m in found),
                last_measured_at=found[-1].measured_at,
            )
            for found in self._measurements.values()
            if (like is None or _alike(found[0].device, like))
            and kind in (None, found[0].workload.problem.kind)
        ]


def _alike(device: Device, other: Device) -> bool:
    return (device.backend, device.compute_capability) == (other.backend, other.compute_capability)


@dataclass(frozen=True, eq=False)
class Layers:
    """Several layers read as one, the first on top."""

    layers: Sequence[Layer]
    rules: Rules = NO_RULES

    @property
    def generation(self) -> int:
        return sum(layer.generation for layer in self.layers)

    def measurements(self, workload: Workload, device: Device) -> list[Measurement]:
        """Returns the measurements of the topmost layer that has any: layers are never mixed within one workload."""
        found = (layer.measurements(workload, device) for layer in self.layers)
        return next((some for some in found if some), [])

    def baselines(self, workload: Workload, device: Device) -> list[Baseline]:
        """Returns the baselines of the topmost layer that has any."""
        found = (layer.baselines(workload, device) for layer in self.layers)
        return next((some for some in found if some), [])

    def predictions(self, workload: Workload, device: Device) -> list[Prediction]:
        """Returns the predictions of the topmost layer that has any."""
        found = (layer.predictions(workload, device) for layer in self.layers)
        return next((some for some in found if some), [])

    def rates(self, device: Device) -> Rates | None:
        """Returns the rates of the topmost layer that has any."""
        found = (layer.rates(device) for layer in self.layers)
        return next((rates for rates in found if rates is not None), None)

    def probes(self, workload: Workload, device: Device) -> list[Probe]:
        """Returns the probes of the topmost layer that has any."""
        found = (layer.probes(workload, device) for layer in self.layers)
        return next((some for some in found if some), [])

    def failed_checks(self, device: Device) -> list[Check]:
        """Returns the failed checks of all layers."""
        return [check for layer in self.layers for check in layer.failed_checks(device)]

    def is_verified(self, device: Device, driver: str, digest: str) -> bool:
        """True if any layer says so."""
        return any(layer.is_verified(device, driver, digest) for layer in self.layers)

    def list_workloads(self, *, kind: Kind | None = None, like: Device | None = None) -> list[Tuned]:
        seen: dict[Key, Tuned] = {}
        for layer in self.layers:
            for tuned in layer.list_workloads(kind=kind, like=like):
                seen.setdefault(_key(tuned.workload, tuned.device), tuned)
        return list(seen.values())

    def close(self) -> None:
        for layer in self.layers:
            layer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def files_state(settings: Settings, db: str | Path | None = None) -> tuple[tuple[int, int] | None, ...]:
    """Changes when another process writes one of the files that `open_layers` reads; costs a few stat calls.

    Modification time in ns and size of each file and of its write-ahead log; None for what is not there.
    """
    state: list[tuple[int, int] | None] = []
    for place in (db or settings.db, PROJECT_DATABASE, *settings.layers, pins_path(settings)):
        path = Location.parse(place).path
        if path is None:
            continue
        for file in (path, path.with_name(path.name + "-wal")):
            try:
                found = file.stat()
            except OSError:
                state.append(None)
                continue
            # Readers leave an empty log behind: that is no change.
            state.append((found.st_mtime_ns, found.st_size) if found.st_size else None)
    return tuple(state)


def open_to_read(place: str | Path) -> SqliteReader | Store:
    """The database there, for reading: a SQLite file of the newest schema needs neither SQLAlchemy nor Alembic.

    Raises:
        DatabaseError: and its children, see `Store.open`.
    """
    path = Location.parse(place).path
    reader = None if path is None else open_sqlite(path)
    if reader is not None:
        return reader
    from sparsegen.tuning_db.store import Store

    return Store.open(place, read_only=True)


def open_existing(place: str | Path) -> Layer:
    """The database there, which a search is to write, for reading; one without records where there is none yet.

    Raises:
        DatabaseReadOnlyError: it is a published layer.
        DatabaseError: else as `open_to_read`.
    """
    path = Location.parse(place).path
    if path is not None:
        tables = tables_of(path)
        refuse_published(tables, path)
        if not tables:
            return MemoryLayer([], [])
    return open_to_read(place)


def open_published(layer: Path) -> Layer:
    """A published layer that the settings name.

    Raises:
        DatabaseError: there is none; else as `open_to_read`.
    """
    if not is_there(layer):
        raise DatabaseError(f"there is no published layer at {layer}, which SPARSEGEN_LAYERS names")
    return open_to_read(layer)


def open_layers(settings: Settings, db: str | Path | None = None) -> Layers:
    """The user's database (``db``, else the settings'), the project's, where there are any, published ones, the seeds.

    All are opened for reading: whoever writes opens a `Store`.

    Raises:
        DatabaseError: and its children, see `Store.open`. A broken database, or one that cannot be reached, is never
            passed over in silence.
        PinsError: the pins cannot be read.
    """
    opened: dict[str, Layer] = {}
    try:
        for place in (db or settings.db, PROJECT_DATABASE):
            location = Location.parse(place)
            if place is PROJECT_DATABASE and not is_trusted(place):
                continue
            if (location.path is None or is_there(location.path)) and str(location) not in opened:
                opened[str(location)] = open_to_read(place)
        for layer in settings.layers:
            opened[str(layer)] = open_published(layer)
        rules = Rules.of(settings)
    except BaseException:
        Layers(list(opened.values())).close()
        raise
    return Layers([*opened.values(), seeds()], rules)
