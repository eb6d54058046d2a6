"""A baseline's process, seen from outside: messages with time limits, and what became of the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen.bench.baseline.baseline import Baseline, Explorer, MissingError, UnsupportedError
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.results.results import DIGITS, Cell, ImplementationTime, Kind, Status, Timing
from sparsegen.bench.run.server import (
    Check,
    Chosen,
    Judge,
    Keep,
    Measure,
    Open,
    Prepare,
    Ran,
    Rank,
    Try,
    WrongResultError,
)
from sparsegen.errors import SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.clock import Timing as Samples
from sparsegen.measure.l2 import L2
from sparsegen.measure.supervised import DeviceLostError, Supervised
from sparsegen.system.child import ChildDiedError, ChildTimeoutError
from sparsegen.verify.bounds import ErrorBound

Compared = Callable[[Path, ErrorBound], float]  # a result's largest error over its bound
STARTS = 3  # attempts to start a process that dies before it is open


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a baseline may take for each step of a row, and its times of one round."""

    start: float = 180.0  # imports, libraries, a context
    prepare: float = 120.0  # conversion, packing, upload; a compile
    compile_all: float = 900.0  # the configs of an explorer, side by side
    rank: float = 60.0
    check: float = 60.0
    round: float = 30.0
    samples: float = 0.25  # seconds of one round; the first sample is taken in any case


@dataclass
class Outcome:
    """Outcome of a baseline in one row so far. ``failure`` ends it."""

    failure: tuple[Status, str] | None = None
    configs: Sequence[Config] = ()  # configs of an explorer
    tried: tuple[ImplementationTime, ...] = ()  # these, the fastest first
    chosen: Chosen | None = None
    rounds: list[Samples] = field(default_factory=list)


class Runner:
    """One baseline; its process is started at once, replaced when it dies or hangs, and serves all rows.

    Args:
        is_wanted: true if a row may be for it; without one it gets no process, and refuses them all.

    Attributes:
        versions: versions of its libraries; empty until it is open.
        missing: why it cannot be had at all; None while that is not known.
    """

    def __init__(
        self,
        baseline: Baseline,
        device: Device,
        db: str | None,
        limits: Limits,
        *,
        is_wanted: bool = True,
    ) -> None:
        self.baseline, self._limits = baseline, limits
        self.versions: Mapping[str, str] = {}
        self.missing: str | None = None
        self.outcome = Outcome()
        self._child: Supervised | None = None
        self._inputs: Inputs | None = None
        if not is_wanted:
            return
        if baseline.runs_on(device):
            self._child = Supervised(
                "sparsegen.bench.run.server:serve",
                Open(baseline, device, db),
                start_seconds=limits.start,
                starts=STARTS,
            )
        else:
            self.missing = f"it does not run on {device.name}"

    @property
    def is_in(self) -> bool:
        """True if the row continues for it."""
        return self.outcome.failure is None

    def wait_until_open(self) -> None:
        """Waits until the process answers, or until it is known why it does not (`missing`)."""
        if self._child is None:
            return
        try:
            self.versions = self._child.wait_until_ready()
        except MissingError as error:
            self._give_up(str(error))
        except (ChildDiedError, ChildTimeoutError) as error:
            self._give_up(f"its process does not start: {error}")
        except SparsegenError as error:
            self._give_up(f"it cannot be opened: {error}")

    # --- the steps of a row: `ask` all, then `wait` for each; measuring steps are taken one baseline at a time ---

    def enter(self, inputs: Inputs) -> None:
        """A new row."""
        self.outcome = Outcome()
        reason = self.baseline.refusal(inputs.problem, inputs.features)
        if reason is not None:
            is_ours = self.baseline.kind is Kind.OURS
            lacks = is_ours and not isinstance(self.baseline, Explorer)  # a family of one's own
            self._fail(Status.MISSING if lacks else Status.UNSUPPORTED, reason)
            return
        self.wait_until_open()
        if self.missing is not None:
            self._fail(Status.MISSING, self.missing)
            return
        self._inputs = inputs
        self.ask(Prepare(inputs))

    def ask(self, message: object) -> None:
        """Send, if the row goes on for it."""
        if not self.is_in or self._child is None:
            return
        try:
            self._child.send(message)
        except ChildDiedError as death:
            self._fail(Status.CRASHED, str(death))

    def wait(self, seconds: float) -> Any:
        """The answer; None where the row has ended for it."""
        if not self.is_in or self._child is None:
            return None
        try:
            return self._child.receive(seconds)
        except UnsupportedError as error:
            self._fail(Status.UNSUPPORTED, str(error))
        except MissingError as error:
            self._fail(Status.MISSING, str(error))
        except WrongResultError as error:
            self._fail(Status.WRONG, str(error))
        except ChildTimeoutError as error:
            self._fail(Status.TIMEOUT, str(error))
        except SparsegenError as error:
            self._fail(Status.CRASHED, str(error))
        return None

    def wait_until_prepared(self) -> None:
        if isinstance(self.baseline, Explorer):
            self.outcome.configs = self.wait(self._limits.compile_all) or ()
        else:
            self.wait(self._limits.prepare)

    def rank(self, samples: int, l2: L2, tell: Callable[[str], None], compared: Compared) -> None:
        """Let it order its implementations by time, alone on the device."""
        if isinstance(self.baseline, Explorer):
            self._explore(Measure(samples, self._limits.samples, l2), tell, compared)
            return
        self.ask(Rank(l2))
        self.wait(self._limits.rank)

    def _explore(self, measure: Measure, tell: Callable[[str], None], compared: Compared) -> None:
        """Try every config, and keep the fastest."""
        configs, tried = self.outcome.configs, []
        for number, config in enumerate(configs, 1):
            if not self.is_in:
                return
            tell(f"{self.baseline.name}, config {number} of {len(configs)}")
            tried.append(self._try(config, measure, compared))
        timed = sorted(
            (one for one in tried if one.us is not None),
            key=lambda one: one.us or 0.0,
        )
        failed = [one for one in tried if one.us is None]
        self.outcome.tried = (*timed, *failed)
        if not timed:
            self.end_row(Status.CRASHED, failed[0].reason if failed else "it has no config to try")
            return
        assert timed[0].variant is not None
        detail = f"the fastest of {len(timed)} configs, {len(failed)} more failed: {timed[0].detail}"
        self.ask(Keep(timed[0].variant, detail))
        self.wait(self._limits.prepare)

    def _try(self, config: Config, measure: Measure, compared: Compared) -> ImplementationTime:
        """One config; where it takes the process with it, the next one gets ready for the others."""
        assert self._child is not None and self._inputs is not None
        detail = config.settings
        try:
            ran: Ran = self._answer(self._child, Try(config), self._limits.prepare)
            self._answer(self._child, Judge(_error(ran, compared)), self._limits.check)
            timing: Samples = self._answer(self._child, measure, self._limits.round)
            return ImplementationTime(detail, round(timing.median_us, 3), variant=config)
        except (ChildDiedError, ChildTimeoutError, DeviceLostError) as error:
            reason = f"{Status.TIMEOUT if isinstance(error, ChildTimeoutError) else Status.CRASHED}: {error}"
            self.wait_until_open()
            if self.missing is not None:
                self._fail(Status.CRASHED, self.missing)
            self.ask(Prepare(self._inputs))
            self.wait(self._limits.compile_all)
        except SparsegenError as error:
            reason = f"{Status.WRONG if isinstance(error, WrongResultError) else Status.CRASHED}: {error}"
        return ImplementationTime(detail, None, reason, config)

    @staticmethod
    def _answer(child: Supervised, message: object, seconds: float) -> Any:
        child.send(message)
        return child.receive(seconds)

    def ask_check(self) -> None:
        self.ask(Check())

    def wait_until_checked(self, compared: Compared) -> None:
        """Waits until one of its implementations is right: that one is kept."""
        found: Ran | Chosen | None = self.wait(self._limits.check)
        while isinstance(found, Ran):
            self.ask(Judge(_error(found, compared)))
            found = self.wait(self._limits.check)
        self.outcome.chosen = found

    def measure(self, samples: int, l2: L2) -> None:
        """One round, alone on the device."""
        self.ask(Measure(samples, self._limits.samples, l2))
        timing: Samples | None = self.wait(self._limits.round)
        if timing is not None:
            self.outcome.rounds.append(timing)

    # ---

    def cell(self, inputs: Inputs) -> Cell:
        """The row's outcome."""
        outcome, baseline = self.outcome, self.baseline
        arithmetic = baseline.arithmetic(inputs.problem)
        chosen = outcome.chosen
        if outcome.failure is not None or chosen is None:
            status, reason = outcome.failure or (Status.CRASHED, "it did not answer")
            return Cell(
                baseline.name, baseline.kind, arithmetic, status, reason=reason, implementations=outcome.tried
            )
        return Cell(
            baseline.name,
            baseline.kind,
            arithmetic,
            Status.OK,
            detail=chosen.detail + (f" (wrong, left out: {chosen.wrong})" if chosen.wrong else ""),
            variant=chosen.variant,
            digest=chosen.digest[:DIGITS],
            timing=summary(outcome.rounds),
            preparation_ms=round(chosen.preparation_ms, 3),
            memory_bytes=chosen.memory_bytes,
            worst_error=None if chosen.worst_error is None else float(f"{chosen.worst_error:.3g}"),
            tried=chosen.tried,
            implementations=outcome.tried or chosen.implementations,
        )

    def end_row(self, status: Status, reason: str) -> None:
        """The row is over for it, for a reason that is not its own."""
        if self.is_in:
            self._fail(status, reason)

    def close(self) -> None:
        """End the process and all that it started."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _give_up(self, reason: str) -> None:
        self.missing = reason
        self.close()

    def _fail(self, status: Status, reason: str) -> None:
        self.outcome.failure = status, reason or "no reason was given"


def _error(ran: Ran, compared: Compared) -> float:
    return ran.error if ran.result is None else compared(ran.result, ran.bound)


def summary(rounds: list[Samples]) -> Timing:
    """Percentiles over all samples, the rounds' medians, the lowest clock and every throttle reason."""
    times = np.concatenate([r.samples_us for r in rounds])
    low, median, high = np.percentile(times, [10.0, 50.0, 90.0])
    reasons = [r.throttle_reasons for r in rounds if r.throttle_reasons is not None]
    return Timing(
        us=round(float(median), 3),
        low_us=round(float(low), 3),
        high_us=round(float(high), 3),
        samples=int(times.size),
        rounds_us=tuple(round(float(np.median(r.samples_us)), 3) for r in rounds),
        clock_mhz=min((r.clock_mhz for r in rounds if r.clock_mhz is not None), default=None),
        throttle_reasons=int(np.bitwise_or.reduce(reasons)) if reasons else None,
    )
