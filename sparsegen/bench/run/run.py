"""A benchmark run: every row, every baseline, and a result file that is whole after each row."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sparsegen import __version__, backends, kernels
from sparsegen.bench.baseline.baseline import Baseline
from sparsegen.bench.baseline.inputs import inputs_folder
from sparsegen.bench.results import result_file
from sparsegen.bench.results.merging import require_same_conditions
from sparsegen.bench.results.results import (
    TOOLCHAIN,
    TUNED,
    BenchDevice,
    Invocation,
    Rates,
    Results,
    Row,
    RowKey,
)
from sparsegen.bench.run import maker
from sparsegen.bench.run.maker import InputsQueue, Pair
from sparsegen.bench.run.reference import MeasureRates, SetUp
from sparsegen.bench.run.request import TUNED_AHEAD, Progress, Request, Step, planned
from sparsegen.bench.run.rows import Rows, turn
from sparsegen.bench.run.runner import Runner
from sparsegen.bench.run.tuned import budget_of, record_rates, tune_side_by_side
from sparsegen.errors import SparsegenError
from sparsegen.measure.rates import MeasuredRates
from sparsegen.system.child import ChildDiedError, ChildProcess

logger = logging.getLogger(__name__)

RATES_SECONDS = 300.0
ROWS_OF_SEARCH = (
    3  # rows of each search side by side that are tuned before they are measured, if time may end the run
)


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run.

    Attributes:
        measured: rows of this run; ``kept`` were in the file already, ``left`` the time did not suffice for.
        skipped: rows whose matrix cannot be had, with why.
        missing: baselines that are not there, with why.
    """

    results: Results
    measured: tuple[RowKey, ...]
    kept: int
    left: int
    skipped: tuple[tuple[RowKey, str], ...]
    missing: tuple[tuple[str, str], ...]


def run(request: Request, progress: Progress) -> Finished:
    """Measure what is not in the file yet; the file is written after every row.

    Raises:
        ResultsError: the file cannot be read or written, or was measured under other conditions.
        DeviceUnavailableError: the device or what compiles for it is missing.
        KeyboardInterrupt: Ctrl-C; the file holds every row that was done.
    """
    began = datetime.now(UTC)
    old = result_file.read(request.output) if request.output and request.output.exists() else None
    keys = {RowKey.of(c.suite, c.name, c.in_dtype(d)): (c, d) for c, d in planned(request.cases)}
    known = {row.key for row in old.rows} if old and not request.remeasure else set()
    wanted = {key: pair for key, pair in keys.items() if key not in known}
    table = _Table(request, old)
    if not wanted:
        return Finished(table.results, (), kept=len(keys), left=0, skipped=(), missing=())
    deadline = None if request.seconds is None else time.monotonic() + request.seconds
    with ExitStack() as resources:
        # Baselines import their libraries beside the searches.
        runners = [
            resources.enter_context(closing(_runner(baseline, request, wanted.values())))
            for baseline in request.baselines
        ]
        references = resources.enter_context(closing(ChildProcess("sparsegen.bench.run.reference:serve")))
        references.send(SetUp(request.device))
        folder = resources.enter_context(inputs_folder())
        ahead = maker.SetUp(folder, request.device, request.baselines, request.db)
        inputs = resources.enter_context(closing(InputsQueue(list(wanted.values()), ahead)))
        table.set_conditions(references, runners)
        rows = Rows(request, inputs, references, runners, list(wanted.items()))
        measured = []
        tuning = RowsAhead(request, list(wanted.items()), deadline, progress)
        for row in rows.measure(progress, table.results.rates, deadline, tuning.before):
            table.add(row, began)
            measured.append(row.key)
        return Finished(
            table.results,
            tuple(measured),
            kept=len(keys) - len(wanted),
            left=len(wanted) - len(measured) - len(rows.skipped),
            skipped=tuple(rows.skipped),
            missing=tuple((r.baseline.name, r.missing) for r in runners if r.missing is not None),
        )


def _runner(baseline: Baseline, request: Request, rows: Iterable[Pair]) -> Runner:
    is_wanted = any(isinstance(case.problem, baseline.operators) for case, _ in rows)
    return Runner(baseline, request.device, request.db, request.limits, is_wanted=is_wanted)


class RowsAhead:
    """Tunes rows side by side before they are measured: all, or some at a time where the run may end early.

    Args:
        wanted: rows in their order.
        deadline: no search begins later, in `time.monotonic` seconds; None for no limit.
    """

    def __init__(
        self,
        request: Request,
        wanted: Sequence[tuple[RowKey, Pair]],
        deadline: float | None,
        progress: Progress,
    ) -> None:
        self._request, self._wanted = request, wanted
        self._deadline, self._progress = deadline, progress
        self._devices = request.devices or (request.device,)
        searches = request.jobs * len(self._devices)
        self._size = len(wanted) if deadline is None else ROWS_OF_SEARCH * searches
        has_tuned = any(c.name == TUNED for c in request.baselines)
        self._is_wanted = searches > 1 and has_tuned and budget_of(request.protocol.tune) is not None

    def before(self, index: int) -> None:
        """Tunes the rows from one on, if it is the first of its part."""
        if not self._is_wanted or index % self._size:
            return
        rows = [
            (key, pair)
            for key, pair in self._wanted[index : index + self._size]
            if kernels.families_of(pair[0].problem.operator)
        ]
        if not rows:
            return
        keys = {pair: key for key, pair in rows}

        def done(number: int, pair: Pair) -> None:
            self._progress(Step(index + number - 1, len(self._wanted), keys[pair], TUNED_AHEAD))

        tune_side_by_side(
            list(keys),
            self._request.baselines,
            self._devices,
            self._request.db,
            self._request.protocol.tune,
            jobs=self._request.jobs,
            deadline=self._deadline,
            done=done,
        )


class _Table:
    """The results so far, and their file.

    Raises:
        ResultsMismatchError: the file was measured on another device or with another protocol.
    """

    def __init__(self, request: Request, old: Results | None) -> None:
        self._request, self._old = request, old
        driver = ""
        if request.device.backend == "cuda":
            from sparsegen.backends.cuda import runtime

            driver = runtime.driver_version()
        self._now = Results(BenchDevice.of(request.device, driver), {}, request.protocol)
        self.results = old or self._now
        require_same_conditions(self.results, self._now)

    def set_conditions(self, references: ChildProcess, runners: Sequence[Runner]) -> None:
        """Versions of all that takes part, and the device's rates unless the file has them.

        Raises:
            ResultsMismatchError: the file was measured with another version of something.
        """
        for runner in runners:
            runner.wait_until_open()
        versions = {
            "sparsegen": __version__,
            TOOLCHAIN: backends.toolchain(self._request.device).fingerprint,
        }
        for runner in runners:
            versions |= runner.versions
        require_same_conditions(self.results, replace(self._now, versions=versions))
        rates = self.results.rates
        if rates is None and self._request.device.backend == "cuda":
            with turn(self._request.device):
                measured = _measured_rates(references)
            if measured is not None:
                rates = Rates.of(measured)
                if any(c.name == TUNED for c in self._request.baselines):
                    record_rates(measured, self._request.device, self._request.db)
        self.results = replace(self.results, versions={**self.results.versions, **versions}, rates=rates)

    def add(self, row: Row, began: datetime) -> None:
        """Put a row in, and write the file."""
        seconds = round((datetime.now(UTC) - began).total_seconds(), 1)
        earlier = self._old.invocations if self._old else ()
        invocations = (*earlier, Invocation(self._request.command, began, seconds))
        self.results = replace(self.results.with_row(row), invocations=invocations)
        if self._request.output is not None:
            result_file.write(self.results, self._request.output)


def _measured_rates(references: ChildProcess) -> MeasuredRates | None:
    references.send(MeasureRates())
    try:
        rates: MeasuredRates = references.receive(RATES_SECONDS)
    except ChildDiedError:
        raise
    except SparsegenError as error:
        logger.error("the device's rates could not be measured, so no floor is known: %s", error)
        return None
    return rates
