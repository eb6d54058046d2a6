"""Tunes rows before they are measured, unless their tuning was finished earlier, and records what others took."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from sparsegen.bench.case import Case
from sparsegen.bench.contender import Contender
from sparsegen.bench.maker import Pair
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.results import Cell
from sparsegen.errors import ConfigError, MatrixError, NoVariantError, SuiteError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import MeasuredRates
from sparsegen.operators import DType, Problem
from sparsegen.settings import Settings
from sparsegen.tuning.tuner import Backend, Budget, Effort, tune
from sparsegen.tuning_db.records import Baseline, DeviceRates, MeasuredAs, Sample, Workload
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
    contenders: Sequence[Contender],
    device: Device,
    db: str | None,
    word: str,
    *,
    jobs: int,
    deadline: float | None,
    done: Callable[[int, Pair], None],
) -> None:
    """Tune rows in several processes, which take turns on the device: one compiles while another measures.

    A row whose matrix cannot be had, or for which nothing works, is left for the measuring to tell.

    Args:
        word: of ``--tune``.
        deadline: no search begins later, in `time.monotonic` seconds; None for no limit.
        done: called with the number of finished rows, and the one that was.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was measured is recorded.
        DatabaseError: the database cannot be used.
    """
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    try:
        pending = {
            pool.submit(_tune_row, case, dtype, contenders, device, db, word, deadline, jobs): (case, dtype)
            for case, dtype in pairs
        }
        for number, future in enumerate(as_completed(pending), 1):
            future.result()
            done(number, pending[future])
    finally:
        pool.shutdown(cancel_futures=True)


def _tune_row(
    case: Case,
    dtype: DType,
    contenders: Sequence[Contender],
    device: Device,
    db: str | None,
    word: str,
    deadline: float | None,
    searches: int,
) -> None:
    """Runs in a process of its own."""
    budget = budget_of(word)
    if budget is None or (deadline is not None and time.monotonic() >= deadline):
        return
    try:
        matrix = case.matrix()
    except (MatrixError, SuiteError) as error:
        logger.warning("%s: %s", case.name, error)
        return
    for problem in problems_of(case.in_dtype(dtype), matrix.nnz, contenders):
        workload = Workload.of(problem, matrix)
        _tune(lambda: matrix, workload, device, db, budget, searches=searches)


def problems_of(problem: Problem, nnz: int, contenders: Sequence[Contender]) -> list[Problem]:
    """A row's problem, and those that its contenders consist of."""
    taking_part = [c for c in contenders if isinstance(problem, c.operators)]
    parts = [part for contender in taking_part for part in contender.parts(problem, nnz)]
    return list(dict.fromkeys((problem, *parts)))


def ensure_tuned(
    parcel: Parcel, contenders: Sequence[Contender], device: Device, db: str | None, budget: Budget
) -> None:
    """Tune the row's workload, and those that its contenders consist of, if no finalist is recorded for one; that
    nothing works is logged.

    Raises:
        KeyboardInterrupt: Ctrl-C; what was measured is recorded.
        DatabaseError: the database cannot be used.
    """
    for problem in problems_of(parcel.problem, parcel.features.nnz, contenders):
        workload = Workload(problem, parcel.fingerprint, parcel.features)
        _tune(parcel.matrix, workload, device, db, budget)


def _tune(
    matrix: Callable[[], CsrMatrix],
    workload: Workload,
    device: Device,
    db: str | None,
    budget: Budget,
    *,
    searches: int = 1,
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
                backend=Backend.of(device, workload.problem, baselines=False, searches=searches),
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
    workload, kind = _workload(parcel), MeasuredAs(l2.value)
    with _opened(db) as store:
        there = store.baselines(workload, device)
        known = {baseline.contender for baseline in there if baseline.sample.measured_as is kind}
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
                measured_as=kind,
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
