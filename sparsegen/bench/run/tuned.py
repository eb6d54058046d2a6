"""Tunes rows before they are measured, unless their tuning was finished earlier, and records what others took."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from sparsegen.bench.baseline.baseline import Baseline
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results.results import Cell
from sparsegen.bench.run.maker import Pair
from sparsegen.errors import ConfigError, DatabaseError, MatrixError, SparsegenError, SuiteError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import MeasuredRates
from sparsegen.operators import DType, Problem
from sparsegen.settings import Settings
from sparsegen.tuning.engines.dealing import Outcome, Unwatched, deal
from sparsegen.tuning.engines.engine import Request, SetUp, Task
from sparsegen.tuning.engines.local import LocalEngine
from sparsegen.tuning.loop.finalists import is_finished
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.tuner import Backend, Budget, Effort, tune
from sparsegen.tuning_db import records
from sparsegen.tuning_db.records import DeviceRates, MeasuredAs, Sample, Workload
from sparsegen.tuning_db.store import Store

logger = logging.getLogger(__name__)

OFF = "off"
EFFORTS = (Effort.QUICK, Effort.NORMAL)
TRIALS = re.compile(r"([0-9]{1,6})-trials")
# Names and versions as `tune` records them.
BASELINES = {"cublas": ("cublas", "cuBLAS"), "cusparse-csr": ("cusparse", "cuSPARSE")}


def budget_of(word: str) -> Budget | None:
    """The budget that ``--tune`` names: ``off`` (None), an effort, seconds, or variants (``64-trials``).

    Raises:
        ConfigError: it is none of them.
    """
    if word == OFF:
        return None
    if word in EFFORTS:
        return Budget(effort=Effort(word))
    if trials := TRIALS.fullmatch(word):
        return Budget(trials=int(trials[1]))
    try:
        seconds = float(word)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ConfigError(
            f"--tune {word}: give {OFF}, {', '.join(EFFORTS)}, seconds, or variants (64-trials)"
        )
    return Budget(seconds=seconds)


def tune_side_by_side(
    pairs: Sequence[Pair],
    baselines: Sequence[Baseline],
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
        devices: devices of one model.
        word: value of ``--tune``.
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
    tasks, rows = [], []
    for row, (case, dtype) in enumerate(pairs):
        for problem in _problems_ahead(case, dtype, baselines):
            request = Request(problem, budget, baselines=False)
            tasks.append(Task(f"{case.name} {dtype}", devices[0], request, case.matrix))
            rows.append(row)
    stop = threading.Event()
    with (
        closing(LocalEngine(devices, SetUp(place), searches=jobs)) as engine,
        interruptible(stop),
    ):
        deal(tasks, engine, watch=_TuningWatch(pairs, rows, done), stop=stop, deadline=deadline)
    if stop.is_set():
        raise KeyboardInterrupt


def _problems_ahead(case: Case, dtype: DType, baselines: Sequence[Baseline]) -> list[Problem]:
    """Problems to tune for a row; its matrix is made only if a baseline has parts, which depend on it."""
    problem = case.in_dtype(dtype)
    composed = [
        c for c in baselines if type(c).parts is not Baseline.parts and isinstance(problem, c.operators)
    ]
    if not composed:
        return [problem]
    try:
        return problems_of(problem, case.matrix().nnz, composed)
    except (MatrixError, SuiteError) as error:
        logger.warning("%s: %s", case.name, error)
        return []


class _TuningWatch(Unwatched):
    """Tells of rows that are tuned, and logs why some are not.

    Args:
        rows: for each search, the row's position in ``pairs``.
        done: called when the last search of a row has ended.
    """

    def __init__(self, pairs: Sequence[Pair], rows: Sequence[int], done: Callable[[int, Pair], None]) -> None:
        self._pairs, self._rows, self._done = pairs, rows, done
        self._left = Counter(rows)
        self._ended = 0

    def lost(self, number: int, task: Task, where: str, why: str) -> None:
        logger.warning("%s was lost on %s and is begun again: %s", task.name, where, why)

    def ended(self, number: int, task: Task, outcome: Outcome) -> None:
        if outcome.error is not None:
            logger.warning("%s: %s", task.name, outcome.error)
        row = self._rows[number]
        self._left[row] -= 1
        if not self._left[row]:
            self._ended += 1
            self._done(self._ended, self._pairs[row])


def problems_of(problem: Problem, nnz: int, baselines: Sequence[Baseline]) -> list[Problem]:
    """A row's problem, and those that its baselines consist of."""
    taking_part = [c for c in baselines if isinstance(problem, c.operators)]
    parts = [part for baseline in taking_part for part in baseline.parts(problem, nnz)]
    return list(dict.fromkeys((problem, *parts)))


def ensure_tuned(
    inputs: Inputs, baselines: Sequence[Baseline], device: Device, db: str | None, budget: Budget
) -> None:
    """Tune the row's workload, and those that its baselines consist of, if no finalist is recorded for one; why
    a search failed is logged, and left for the measuring to tell.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was measured is recorded.
        DatabaseError: the database cannot be used.
    """
    for problem in problems_of(inputs.problem, inputs.features.nnz, baselines):
        workload = replace(inputs.workload, problem=problem)
        _tune(inputs.matrix, workload, device, db, budget)


def _tune(
    matrix: Callable[[], CsrMatrix], workload: Workload, device: Device, db: str | None, budget: Budget
) -> None:
    with _opened(db) as store:
        if is_finished(store.measurements(workload, device)):
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
        except DatabaseError:
            raise
        except SparsegenError as error:
            logger.warning("%s: %s", workload.problem, error)
            return
        if result.was_interrupted:
            raise KeyboardInterrupt


def record_baselines(
    inputs: Inputs, device: Device, db: str | None, cells: Sequence[Cell], versions: Mapping[str, str], l2: L2
) -> None:
    """Keep the times of dense and vendor routines beside the tuning, where dispatch looks for them.

    Raises:
        DatabaseError: the database cannot be used.
    """
    workload, kind = inputs.workload, MeasuredAs(l2.value)
    with _opened(db) as store:
        there = store.baselines(workload, device)
        known = {baseline.name for baseline in there if baseline.sample.measured_as is kind}
        for cell in cells:
            name, library = BASELINES.get(cell.baseline, ("", ""))
            if not name or name in known or cell.timing is None:
                continue
            timing = cell.timing
            sample = Sample(
                median_us=timing.us,
                low_us=timing.low_us,
                high_us=timing.high_us,
                count=timing.samples,
                measured_as=kind,
                clock_mhz=timing.clock_mhz,
                throttle_reasons=timing.throttle_reasons,
            )
            version = f"{library} {versions.get(name, '')} ({cell.detail})"
            store.add_baseline(records.Baseline(workload, device, name, version, sample))


def record_rates(measured: MeasuredRates, device: Device, db: str | None) -> None:
    """Keep what the device was measured to do, for dispatch and searches; nothing where not all of it was.

    Raises:
        DatabaseError: the database cannot be used.
    """
    rates = measured.complete(device)
    if rates is not None:
        with _opened(db) as store:
            store.add_rates(DeviceRates(device, rates))


def _opened(db: str | None) -> Store:
    return Store.open(db or Settings.from_environment().db)
