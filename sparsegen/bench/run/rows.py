"""Measures row after row: all baselines prepare side by side, and then take turns on the device."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from sparsegen import kernels
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.results.results import TUNED, Cell, Floor, Rates, Row, RowKey, Status
from sparsegen.bench.run.maker import InputsQueue, Pair
from sparsegen.bench.run.reference import Compare, ComputeReference
from sparsegen.bench.run.request import Progress, Request, Step
from sparsegen.bench.run.runner import Runner
from sparsegen.bench.run.state import state
from sparsegen.bench.run.tuned import budget_of, ensure_tuned, record_baselines
from sparsegen.errors import MatrixError, SparsegenError, SuiteError
from sparsegen.kernels.base import Device
from sparsegen.measure.device_turn import device_turn
from sparsegen.operators import Problem
from sparsegen.settings import Settings
from sparsegen.system.child import ChildDiedError, ChildProcess
from sparsegen.verify.bounds import ErrorBound

logger = logging.getLogger(__name__)

REFERENCE_SECONDS = 300.0

Say = Callable[[str], None]


class Rows:
    """The rows of a request that the result file lacks.

    Attributes:
        skipped: those whose matrix cannot be had, with why.
    """

    def __init__(
        self,
        request: Request,
        inputs: InputsQueue,
        references: ChildProcess,
        runners: Sequence[Runner],
        wanted: Sequence[tuple[RowKey, Pair]],
    ) -> None:
        self._request, self._inputs, self._references = request, inputs, references
        self._runners, self._wanted, self._state = runners, wanted, state()
        tunes = any(r.baseline.name == TUNED for r in runners)
        self._budget = budget_of(request.protocol.tune) if tunes else None
        self.skipped: list[tuple[RowKey, str]] = []

    def measure(
        self,
        progress: Progress,
        rates: Rates | None,
        deadline: float | None,
        before: Callable[[int], object],
    ) -> Iterator[Row]:
        """Yields the rows that begin before the deadline (`time.monotonic` seconds, None for none).

        Args:
            before: called with each row's position before it begins.
        """
        for index, (key, (case, _)) in enumerate(self._wanted):
            if deadline is not None and time.monotonic() >= deadline:
                return
            before(index)

            steps: list[tuple[str, float]] = []
            say = self._teller(progress, index, key, steps)
            say("matrix and operands")
            try:
                inputs = self._inputs.next()
            except (MatrixError, SuiteError) as error:
                self.skipped.append((key, str(error)))
                continue
            cells, reference = self._cells(inputs, say)
            row = _row(key, case, inputs, cells, rates, reference, self._state)
            self._inputs.discard(index, inputs)
            yield row
            say("done", row)
            spent = ", ".join(f"{name} {after - then:.2f}" for (name, then), (_, after) in pairwise(steps))
            logger.info("%s: seconds of %s", key, spent)

    def _teller(
        self, progress: Progress, index: int, key: RowKey, steps: list[tuple[str, float]]
    ) -> Callable[..., None]:
        """Returns the function that reports each step that a row begins; ``steps`` gets the steps' starts."""

        def say(doing: str, row: Row | None = None) -> None:
            steps.append((doing, time.monotonic()))
            progress(Step(index, len(self._wanted), key, doing, row))
            self._inputs.pump()

        return say

    def _cells(self, inputs: Inputs, say: Say) -> tuple[tuple[Cell, ...], str]:
        """Returns the outcome of every baseline, and the source of the reference."""
        request, runners = self._request, self._runners
        budget = self._budget if kernels.families_of(inputs.problem.operator) else None
        if budget is not None:
            say("tuning")
            ensure_tuned(inputs, request.baselines, request.device, request.db, budget)
        with turn(request.device):
            reference = self._take_turns(inputs, say)
        cells = tuple(runner.cell(inputs) for runner in runners)
        if budget is not None:
            versions = {name: v for runner in runners for name, v in runner.versions.items()}
            record_baselines(inputs, request.device, request.db, cells, versions, request.protocol.l2)
        return cells, reference

    def _take_turns(self, inputs: Inputs, say: Say) -> str:
        protocol, runners = self._request.protocol, self._runners
        say("preparing")
        self._references.send(ComputeReference(inputs))
        for runner in runners:
            runner.enter(inputs)
        source = self._wait_for_reference()
        for runner in runners:
            runner.wait_until_prepared()
        if source is None:
            for runner in runners:
                runner.end_row(Status.CRASHED, "there is no reference to check against")
        say("ranking")
        for runner in runners:
            runner.rank(protocol.samples, protocol.l2, say, self._compared)
        say("checking")
        for runner in runners:
            runner.ask_check()
        for runner in runners:
            runner.wait_until_checked(self._compared)
        say("measuring")
        for _ in range(protocol.rounds):
            for runner in runners:
                runner.measure(protocol.samples, protocol.l2)
        return source or ""

    def _wait_for_reference(self) -> str | None:
        """Returns where the reference was computed, in words; None if it could not be."""
        try:
            found: str = self._references.receive(REFERENCE_SECONDS)
        except ChildDiedError:
            raise
        except SparsegenError as error:
            logger.error("the reference could not be computed: %s", error)
            return None
        return found

    def _compared(self, result: Path, bound: ErrorBound) -> float:
        """The largest error of a result over its bound; infinite where it cannot be found out."""
        try:
            self._references.send(Compare(result, bound))
            found: float = self._references.receive(REFERENCE_SECONDS)
        except ChildDiedError:
            raise
        except SparsegenError as error:
            logger.error("a result could not be compared: %s", error)
            return math.inf
        return found


def turn(device: Device) -> AbstractContextManager[None]:
    """The device to itself, among all that measure on it."""
    return device_turn(device, Settings.from_environment().cache / "locks")


def _row(
    key: RowKey,
    case: Case,
    inputs: Inputs,
    cells: tuple[Cell, ...],
    rates: Rates | None,
    reference: str,
    measured_by: str,
) -> Row:
    return Row(
        suite=key.suite,
        case=key.case,
        problem=inputs.problem,
        source=case.source,
        nnz=inputs.features.nnz,
        fingerprint=inputs.fingerprint,
        features=inputs.features,
        floor=floor_of(inputs.problem, inputs.features.nnz, rates, inputs.computed),
        cells=cells,
        reference=reference,
        state=measured_by,
        measured=datetime.now(UTC).replace(microsecond=0),
    )


def floor_of(problem: Problem, nnz: int, rates: Rates | None, computed: float = 1.0) -> Floor:
    """The least time of a problem, of five digits: its fewest bytes and useful FLOP over the measured rates.

    Args:
        computed: the part of its FLOP that its operands need; see `Problem.computed_share`.
    """
    cost = problem.cost(nnz)
    flop = round(computed * cost.flop)
    if rates is None:
        return Floor(cost.bytes, flop, computed=computed)
    flop_rate = rates.flop_per_s_of(problem.multiplied)
    return Floor(
        cost.bytes,
        flop,
        memory_us=_rounded(cost.bytes / rates.copy_bytes_per_s * 1e6),
        compute_us=None if flop_rate is None else _rounded(flop / flop_rate * 1e6),
        computed=computed,
    )


def _rounded(us: float) -> float:
    return float(f"{us:.5g}")
