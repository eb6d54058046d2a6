"""A benchmark run: every row, every contender, and a result file that is whole after each row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from sparsegen import __version__, backends, kernels
from sparsegen.bench import maker, result_file
from sparsegen.bench.case import Case
from sparsegen.bench.contender import Contender
from sparsegen.bench.maker import Pair, ParcelQueue
from sparsegen.bench.parcel import Parcel, parcel_folder
from sparsegen.bench.rates import floor_of
from sparsegen.bench.referee import Expect, MeasureRates, SetUp
from sparsegen.bench.results import (
    L2,
    TUNED,
    BenchDevice,
    Invocation,
    Protocol,
    Rates,
    Results,
    Row,
    RowKey,
    Status,
    require_same_conditions,
)
from sparsegen.bench.runner import Limits, Runner
from sparsegen.bench.tuned import budget_of, ensure_tuned
from sparsegen.errors import MatrixError, SparsegenError, SuiteError
from sparsegen.family import Device
from sparsegen.operators import DType
from sparsegen.settings import Settings
from sparsegen.tuning.child import ChildDiedError, ChildProcess
from sparsegen.tuning.session import device_turn

logger = logging.getLogger(__name__)

EXPECT_SECONDS = 300.0
RATES_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure, and how.

    Attributes:
        contenders: in the order in which they take turns.
        output: the result file; None to keep none. Rows that are in it stay unless ``remeasure`` says so.
        seconds: no row is begun after so much time; None for no limit.
        command: the command line, for the record.
    """

    cases: Sequence[Case]
    contenders: Sequence[Contender]
    device: Device
    protocol: Protocol
    db: str | None = None
    output: Path | None = None
    remeasure: bool = False
    seconds: float | None = None
    command: str = ""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Step:
    """Where a run stands: a row that is being worked on, or (``row`` given) done."""

    index: int
    total: int
    key: RowKey
    doing: str
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run.

    Attributes:
        measured: rows of this run; ``kept`` were in the file already, ``left`` the time did not suffice for.
        skipped: rows whose matrix cannot be had, with why.
        missing: contenders that are not there, with why.
    """

    results: Results
    measured: tuple[RowKey, ...]
    kept: int
    left: int
    skipped: tuple[tuple[RowKey, str], ...]
    missing: tuple[tuple[str, str], ...]


Progress = Callable[[Step], None]


def planned(cases: Iterable[Case]) -> list[Pair]:
    """Every case in every dtype; those of one pattern next to each other, so that it is made once."""
    patterns: dict[object, list[Pair]] = {}
    for case in cases:
        patterns.setdefault(case.pattern, []).extend((case, dtype) for dtype in case.dtypes)
    by_dtype = list(DType)
    return [
        pair
        for pairs in patterns.values()
        for pair in sorted(pairs, key=lambda pair: by_dtype.index(pair[1]))
    ]


def run(request: Request, progress: Progress) -> Finished:
    """Measure what is not in the file yet; the file is written after every row.

    Raises:
        ResultsError: the file cannot be read or written, or was measured under other conditions.
        DeviceUnavailableError: the device or what compiles for it is missing.
        KeyboardInterrupt: Ctrl-C; the file holds every row that was done.
    """
    began = datetime.now(UTC)
    old = result_file.read(request.output) if request.output and request.output.exists() else None
    keys = {RowKey(c.suite, c.name, d, c.layout): (c, d) for c, d in planned(request.cases)}
    known = {row.key for row in old.rows} if old and not request.remeasure else set()
    wanted = {key: pair for key, pair in keys.items() if key not in known}
    table = _Table(request, old)
    if not wanted:
        return Finished(table.results, (), kept=len(keys), left=0, skipped=(), missing=())
    with ExitStack() as resources:
        folder = resources.enter_context(parcel_folder())
        runners = [
            resources.enter_context(closing(Runner(c, request.device, request.db, request.limits)))
            for c in request.contenders
        ]
        referee = resources.enter_context(closing(ChildProcess("sparsegen.bench.referee:serve")))
        referee.send(SetUp(request.device))
        ahead = maker.SetUp(folder, request.device, request.contenders, request.db)
        parcels = resources.enter_context(closing(ParcelQueue(list(wanted.values()), ahead)))
        table.set_conditions(referee, runners)
        rows = _Rows(request, parcels, referee, runners, list(wanted.items()))
        measured = []
        for row in rows.measure(progress, table.results.rates):
            table.add(row, began)
            measured.append(row.key)
        return Finished(
            table.results,
            tuple(measured),
            kept=len(keys) - len(wanted),
            left=len(wanted) - len(measured) - len(rows.skipped),
            skipped=tuple(rows.skipped),
            missing=tuple((r.contender.name, r.missing) for r in runners if r.missing is not None),
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
            from sparsegen import runtime

            driver = runtime.driver_version()
        self._now = Results(BenchDevice.of(request.device, driver), {}, request.protocol)
        self.results = old or self._now
        require_same_conditions(self.results, self._now)

    def set_conditions(self, referee: ChildProcess, runners: Sequence[Runner]) -> None:
        """Versions of all that takes part, and the device's rates unless the file has them.

        Raises:
            ResultsMismatchError: the file was measured with another version of something.
        """
        for runner in runners:
            runner.wait_until_open()
        versions = {
            "sparsegen": __version__,
            "toolchain": backends.toolchain(self._request.device).fingerprint,
        }
        for runner in runners:
            versions |= runner.versions
        require_same_conditions(self.results, replace(self._now, versions=versions))
        rates = self.results.rates
        if rates is None and self._request.device.backend == "cuda":
            with _turn(self._request.device):
                rates = _measured_rates(referee)
        self.results = replace(self.results, versions={**self.results.versions, **versions}, rates=rates)

    def add(self, row: Row, began: datetime) -> None:
        """Put a row in, and write the file."""
        seconds = round((datetime.now(UTC) - began).total_seconds(), 1)
        earlier = self._old.invocations if self._old else ()
        invocations = (*earlier, Invocation(self._request.command, began, seconds))
        self.results = replace(self.results.with_row(row), invocations=invocations)
        if self._request.output is not None:
            result_file.write(self.results, self._request.output)


def _measured_rates(referee: ChildProcess) -> Rates | None:
    referee.send(MeasureRates())
    try:
        rates: Rates = referee.receive(RATES_SECONDS)
    except ChildDiedError:
        raise
    except SparsegenError as error:
        logger.error("the device's rates could not be measured, so no floor is known: %s", error)
        return None
    return rates


class _Rows:
    """Measures row after row, while their files are made ahead."""

    def __init__(
        self,
        request: Request,
        parcels: ParcelQueue,
        referee: ChildProcess,
        runners: Sequence[Runner],
        wanted: Sequence[tuple[RowKey, Pair]],
    ) -> None:
        self._request, self._parcels, self._referee = request, parcels, referee
        self._runners, self._wanted = runners, wanted
        self._budget = budget_of(request.protocol.tune)
        self._tunes = any(r.contender.name == TUNED for r in runners)
        self.skipped: list[tuple[RowKey, str]] = []

    def measure(self, progress: Progress, rates: Rates | None) -> Iterator[Row]:
        """The rows that the time suffices for; those without a matrix are noted in ``skipped``."""
        limit = self._request.seconds
        deadline = None if limit is None else time.monotonic() + limit
        for index, (key, (case, _)) in enumerate(self._wanted):
            if deadline is not None and time.monotonic() >= deadline:
                return

            def at(doing: str, row: Row | None = None, index: int = index, key: RowKey = key) -> None:
                progress(Step(index, len(self._wanted), key, doing, row))
                self._parcels.pump()

            at("matrix and operands")
            try:
                parcel = self._parcels.next()
            except (MatrixError, SuiteError) as error:
                self.skipped.append((key, str(error)))
                continue
            row = self._row(key, case, parcel, at, rates)
            self._parcels.discard(index, parcel)
            yield row
            at("done", row)

    def _row(
        self,
        key: RowKey,
        case: Case,
        parcel: Parcel,
        at: Callable[[str], None],
        rates: Rates | None,
    ) -> Row:
        device, protocol, runners = self._request.device, self._request.protocol, self._runners
        cold = protocol.l2 is L2.COLD
        if self._budget and self._tunes and kernels.families_of(parcel.task.operator):
            at("tuning")
            ensure_tuned(parcel, device, self._request.db, self._budget)
        with _turn(device):
            at("preparing")
            self._referee.send(Expect(parcel))
            for runner in runners:
                runner.enter(parcel)
            reference = self._expect()
            for runner in runners:
                runner.wait_until_prepared()
            if reference is None:
                for runner in runners:
                    runner.end_row(Status.CRASHED, "there is no expected result to check against")
            at("ranking")
            for runner in runners:
                runner.rank(cold=cold)
            at("checking")
            for runner in runners:
                runner.ask_check()
            for runner in runners:
                runner.wait_until_checked()
            at("measuring")
            for _ in range(protocol.rounds):
                for runner in runners:
                    runner.measure(protocol.samples, cold=cold)
        task = parcel.task
        return Row(
            suite=key.suite,
            case=key.case,
            operator=str(task.operator),
            m=task.m,
            k=task.k,
            n=task.n,
            dtype=task.dtype,
            layout=task.layout,
            source=case.source,
            nnz=parcel.features.nnz,
            fingerprint=parcel.fingerprint,
            features=parcel.features,
            floor=floor_of(task, parcel.features.nnz, rates),
            cells=tuple(runner.cell(parcel) for runner in runners),
            reference=reference or "",
        )

    def _expect(self) -> str | None:
        """Where the expected result was computed, in words; None where it could not be."""
        try:
            found: str = self._referee.receive(EXPECT_SECONDS)
        except ChildDiedError:
            raise
        except SparsegenError as error:
            logger.error("the expected result could not be computed: %s", error)
            return None
        return found


def _turn(device: Device) -> AbstractContextManager[None]:
    """The device to itself, among all that measure on it."""
    return device_turn(device, Settings.from_environment().cache / "locks")
