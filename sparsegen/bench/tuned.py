"""Tunes rows before they are measured, unless their tuning was finished earlier, and records what others took."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from sparsegen.bench.maker import Pair
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.results import Cell
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import MeasuredRates
from sparsegen.settings import Settings
from sparsegen.tuning.engines.dealing import Outcome, Unwatched, deal
from sparsegen.tuning.engines.engine import Request, SetUp, Task
from sparsegen.tuning.engines.local import LocalEngine
from sparsegen.tuning.interrupt import interruptible
from sparsegen.tuning.tuner import Backend, Budget, Effort, tune
from sparsegen.tuning_db.records import Baseline, DeviceRates, Sample, Workload
from sparsegen.tuning_db.store import Store

logger = logging.getLogger(__name__)

OFF = "off"
EFFORTS = (Effort.QUICK, Effort.NORMAL)
BASELINES = {
    "cublas": ("cublas", "cuBLAS"),
    "cusparse-csr": ("cusparse", "cuSPARSE"),
}  # as `tune` records them


def budget_of(word: str) -> Budget | None:
    """The budget that ``--tune`` names: ``off`` (None), an effort, or seconds.

    Raises:
        ConfigError: it is none of them.
    """
    if word == OFF:
        return None
    if word in EFFORTS:
        return Budget(effort=Effort(word))
    try:
        seconds = float(word)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ConfigError(f"--tune {word}: give {OFF}, {', '.join(EFFORTS)}, or seconds")
    return Budget(seconds=seconds)


def tune_side_by_side(
    pairs: Sequence[Pair],
    devices: Sequence[Device],
    db: str | None,
    word: str,
    *,
    jobs: int,
    deadline: float | None,
    done: Callable[[int, Pair], None],
) -> None:
    """Tune rows on all devices, several at once on each, which take turns on it: one compiles while another measures.

    A row whose matrix cannot be had, or for which nothing works, is left for the measuring to tell.

    Args:
        devices: of one model.
        word: of ``--tune``.
        jobs: rows at once on each device.
        deadline: no search begins later, in `time.monotonic` seconds; None for no limit.
        done: called with the number of finished rows, and the one that was.

    Raises:
        ConfigError: the devices are of several models, whose times are not comparable.
        KeyboardInterrupt: Ctrl-C; what was measured is recorded.
        DatabaseError: the database cannot be used.
        MachineError: no device is left.
    """
    budget = budget_of(word)
    if budget is None:
        return
    if len({device.key for device in devices}) > 1:
        names = ", ".join(dict.fromkeys(device.name for device in devices))
        raise ConfigError(f"rows are compared on devices of one model, not on {names}")
    place = db or Settings.from_environment().db
    Store.open(place).close()
    tasks = [
        Task(
            f"{case.name} {dtype}",
            devices[0],
            Request(case.in_dtype(dtype), budget, baselines=False),
            case.matrix,
        )
        for case, dtype in pairs
    ]
    stop = threading.Event()
    with (
        closing(LocalEngine(devices, SetUp(place), searches=jobs)) as engine,
        interruptible(stop),
    ):
        deal(tasks, engine, watch=_TuningWatch(pairs, done), stop=stop, deadline=deadline)
    if stop.is_set():
        raise KeyboardInterrupt


class _TuningWatch(Unwatched):
    """Tells of rows that are tuned, and logs why some are not."""

    def __init__(self, pairs: Sequence[Pair], done: Callable[[int, Pair], None]) -> None:
        self._pairs, self._done = pairs, done
        self._ended = 0

    def lost(self, number: int, task: Task, where: str, why: str) -> None:
        logger.warning("%s was lost on %s and is begun again: %s", task.name, where, why)

    def ended(self, number: int, task: Task, outcome: Outcome) -> None:
        if outcome.error is not None:
            logger.warning("%s: %s", task.name, outcome.error)
        self._ended += 1
        self._done(self._ended, self._pairs[number])


def ensure_tuned(parcel: Parcel, device: Device, db: str | None, budget: Budget) -> None:
    """Tune the row's workload if no finalist is recorded for it; that nothing works is logged.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was measured is recorded.
        DatabaseError: the database cannot be used.
    """
    _tune(parcel.matrix, _workload(parcel), device, db, budget)


def _tune(
    matrix: Callable[[], CsrMatrix], workload: Workload, device: Device, db: str | None, budget: Budget
) -> None:
    with _opened(db) as store:
        if any(m.final for m in store.measurements(workload, device)):
            return
        try:
            result = tune(
                matrix(),
                workload.problem,
                device=device,
                store=store,
                budget=budget,
                backend=Backend.of(device, workload.problem, baselines=False),
            )
        except NoVariantError as error:
            logger.warning("%s", error)
            return
        if result.was_interrupted:
            raise KeyboardInterrupt


def record_baselines(
    parcel: Parcel, device: Device, db: str | None, cells: Sequence[Cell], versions: Mapping[str, str], l2: L2
) -> None:
    """Keep the times of dense and vendor routines beside the tuning, where dispatch looks for them.

    Raises:
        DatabaseError: the database cannot be used.
    """
    workload = _workload(parcel)
    with _opened(db) as store:
        known = {baseline.contender for baseline in store.baselines(workload, device)}
        for cell in cells:
            name, library = BASELINES.get(cell.contender, ("", ""))
            if not name or name in known or cell.timing is None:
                continue
            timing = cell.timing
            sample = Sample(
                median_us=timing.us,
                low_us=timing.low_us,
                high_us=timing.high_us,
                count=timing.samples,
                cold=l2 is L2.COLD,
                clock_mhz=timing.clock_mhz,
                throttle_reasons=timing.throttle_reasons,
            )
            version = f"{library} {versions.get(name, '')} ({cell.detail})"
            store.add_baseline(Baseline(workload, device, name, version, sample))


def record_rates(measured: MeasuredRates, device: Device, db: str | None) -> None:
    """Keep what the device was measured to do, for dispatch and searches; nothing where not all of it was.

    Raises:
        DatabaseError: the database cannot be used.
    """
    rates = measured.complete(device)
    if rates is not None:
        with _opened(db) as store:
            store.add_rates(DeviceRates(device, rates))


def _workload(parcel: Parcel) -> Workload:
    return Workload(parcel.problem, parcel.fingerprint, parcel.features)


def _opened(db: str | None) -> Store:
    return Store.open(db or Settings.from_environment().db)
