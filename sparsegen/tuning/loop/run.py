"""One run of the search: compile ahead, measure one by one, pause for baselines, end with the finalists."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from sparsegen.errors import CompileError, LaunchError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.rates import Rates
from sparsegen.measure.baseline_session import BaselineSession
from sparsegen.measure.baselines.libraries import LibraryUnavailableError
from sparsegen.measure.session import Session
from sparsegen.measure.worker import Measure
from sparsegen.system.child import ChildDiedError, ChildTimeoutError, Interrupted
from sparsegen.tuning.loop import background, finalists
from sparsegen.tuning.loop.claims import Claims, Taken
from sparsegen.tuning.loop.early_search import EarlySearch
from sparsegen.tuning.loop.final_round import time_in_turn
from sparsegen.tuning.loop.finalists import median_us
from sparsegen.tuning.loop.ledger import Ledger
from sparsegen.tuning.loop.limits import Limits
from sparsegen.tuning.loop.measuring import Measuring
from sparsegen.tuning.loop.pipeline import CompileAhead, Compiled
from sparsegen.tuning.report import Phase, Progress, Status
from sparsegen.tuning_db.records import Measurement, Variant

log = logging.getLogger(__name__)

SAMPLES = 30
HOPELESS = 1.75  # times the best: such a variant gets no more than the first samples
FIRST = 3  # proposals that are tried however short the budget is
BEFORE_BASELINES = 8  # trials before baselines, so that a waiting user sees some results first
READY_AHEAD = 4  # compiled and not yet measured, beside what is measured while another one compiles
RECENT = 8
READY_AT_START = 2  # the same for each compile job while the worker is not ready
WAIT_SECONDS = 0.1
# Errors of the libraries, the device or their process, and not of the search.
CANNOT_BE_TIMED = (ChildDiedError, ChildTimeoutError, CompileError, LaunchError, LibraryUnavailableError)


class Run:
    """Owns none of what it is given; whoever made it closes it.

    Args:
        claims: claims of this search among equal ones.
        suggest: candidates that suit similar workloads, by what is known when it is called. That is once, when half of
            the search is over: searches side by side have found out more by then.
        left_to_try: returns a config that a look-up might take untried in the place of measured ones, given all
            measurements and the device with its known rates; None if there is none.
        defaults: configs that are timed again with the finalists, whatever the search says of them.
        measures_rates: measure the device's rates if no database knows them.

    Attributes:
        was_interrupted: Ctrl-C ended it.
        baselines_failed: why the baselines could not be timed; empty if they were, or were not wanted.
    """

    def __init__(
        self,
        session: Session,
        baselines: BaselineSession | None,
        search: EarlySearch,
        ahead: CompileAhead,
        ledger: Ledger,
        limits: Limits,
        progress: Progress,
        stop: threading.Event,
        claims: Claims,
        suggest: Callable[[], Iterable[Config]],
        left_to_try: Callable[[Iterable[Measurement], Device], Config | None],
        defaults: Collection[Config] = (),
        measures_rates: bool = True,
    ) -> None:
        self._session, self._baselines, self._search, self._ahead = session, baselines, search, ahead
        self._ledger, self._limits, self._progress, self._stop = ledger, limits, progress, stop
        self._suggest: Callable[[], Iterable[Config]] | None = suggest
        self._claims, self._defaults, self._left_to_try = claims, defaults, left_to_try
        self._elsewhere: list[Config] = []  # candidates that equal searches are trying
        self._measures_rates = measures_rates
        self._phase = Phase.STARTING
        self._measuring = Measuring(session, ahead, ledger)
        self._first_left = max(0, min(FIRST, limits.trials) - ledger.trials)
        self._first_pending: set[Config] = set()
        self._recent_seconds: deque[float] = deque(maxlen=RECENT)  # seconds of recent measurements
        self._is_measuring = False  # a trial that is neither pending nor recorded
        self._with_cublas: BaselineSession | None = None
        self.was_interrupted = False
        self.baselines_failed = ""

    def go(self) -> None:
        """Search until the budget ends, time the baselines when the device is free, then the finalists.

        Whatever the budget, no family is left untried that a look-up would take in the place of what was measured.
        What the device does is measured last, once for a device: it takes seconds that are not the search's. Another
        family may be promising by it.
        """
        try:
            self._enter(Phase.STARTING)
            self._search_on()
            self._try_what_is_left(self._ledger.device)
            self._time_finalists()
            self._time_baselines()
            rates = self._measure_rates()
            if rates is not None and self._try_what_is_left(replace(self._ledger.device, rates=rates)):
                self._time_finalists()
        except Interrupted:
            self.was_interrupted = True

    # --- search ---

    def _search_on(self) -> None:
        while self._ledger.trials < self._limits.trials and self._goes_on():
            if self._stop.is_set():
                raise Interrupted("interrupted")
            if self._suggest and not self._first_left and self._is_half_over() and self._search.is_set_up:
                self._search.prefer(self._suggest())
                self._suggest = None
            self._follow()
            could_propose = self._search.has_next  # not: it may have been set up since
            self._propose()
            if could_propose and not self._ahead.pending:
                if not self._elsewhere:
                    break
                self._ask_elsewhere()
                continue
            if self._baselines and self._ledger.trials >= BEFORE_BASELINES and self._baselines.is_ready():
                self._time_baselines()
            if not self._session.is_ready():
                time.sleep(WAIT_SECONDS / 10)
                continue
            compiled = self._ahead.next(WAIT_SECONDS)
            if compiled is not None:
                self._enter(Phase.SEARCHING)
                self._try(compiled)

    @property
    def _search_ends(self) -> float:
        return self._limits.ends - self._limits.finalists_seconds

    def _goes_on(self) -> bool:
        """True until its time is over, and what was proposed first has been tried.

        A slow start may use up a short budget, and the first proposals are what seeds, heuristics and similar
        workloads say.
        """
        has_first = bool(self._first_left or self._first_pending)
        return has_first or bool(self._elsewhere and not self._ledger.fastest) or not self._is_late()

    def _is_late(self, seconds_needed: float = 0.0) -> bool:
        """True if something that takes this long would end after the search's time."""
        return time.monotonic() + seconds_needed >= self._search_ends

    def _is_half_over(self) -> bool:
        limits, now = self._limits, time.monotonic()
        return 2 * self._ledger.trials >= self._planned or 2 * now >= limits.began + self._search_ends

    def _propose(self) -> None:
        """Keep every core compiling what can still be measured, as long as the worker does not lag behind."""
        ahead = self._ahead
        enough = self._enough()
        while (
            self._search.has_next
            and ahead.has_free_core
            and ahead.ready < enough
            and self._begun < self._limits.trials
            and (self._first_left or not self._is_late(ahead.least_seconds))
        ):
            candidate = self._search.ask()
            if candidate is None:
                self._first_left = 0
                break
            is_first = self._first_left > 0
            self._first_left -= is_first
            if not self._is_ours(candidate):
                continue
            if is_first:
                self._first_pending.add(candidate)
            ahead.submit(candidate)

    def _enough(self) -> float:
        """Number of candidates to keep ready; with more, proposals would be made with too little known."""
        if not self._session.is_ready():
            return READY_AT_START * self._ahead.jobs
        measured = self._recent_seconds
        if not measured:
            return READY_AHEAD + self._ahead.jobs
        return READY_AHEAD + self._ahead.typical_seconds * len(measured) / sum(measured)

    @property
    def _begun(self) -> int:
        """Trials that are known, or will be."""
        return self._ledger.trials + self._ahead.pending + len(self._elsewhere) + self._is_measuring

    def _try_what_is_left(self, device: Device) -> bool:
        """Try what a look-up might take untried, one by one; whether there was any."""
        is_any = False
        while (config := self._left_to_try(self._ledger.measurements, device)) is not None:
            if self._stop.is_set():
                raise Interrupted("interrupted")
            is_any = True
            if self._is_ours(config):
                self._enter(Phase.SEARCHING)
                self._search.hear(self._tried(self._ahead.compile(config)))
            else:  # an equal search has tried it, or is about to
                self._elsewhere.clear()
                time.sleep(WAIT_SECONDS)
                self._follow(at_once=True)
        return is_any

    # --- equal searches ---

    def _is_ours(self, candidate: Config) -> bool:
        """True if this search is to try a candidate: no equal search is trying it or has done so."""
        taken = self._claims.take(candidate)
        if taken is Taken.BUSY:
            self._elsewhere.append(candidate)
            return False
        if taken is Taken.AGAIN:
            self._follow(at_once=True)
            if self._ledger.is_tried(candidate):
                self._claims.give_back(candidate)
                return False
        return True

    def _follow(self, *, at_once: bool = False) -> None:
        """Learn what equal searches recorded; not before the search is set up, unless it must be known at once."""
        if not (at_once or self._search.is_set_up):
            return
        self._search.complete()  # raises if the set-up failed
        for m in self._ledger.follow(at_once=at_once).values():
            self._search.hear(m)
            self._progress(self._status())

    def _ask_elsewhere(self) -> None:
        """Wait for what equal searches are trying; try what they ended without."""
        time.sleep(WAIT_SECONDS)
        waiting, self._elsewhere = self._elsewhere, []
        for candidate in waiting:
            if self._is_ours(candidate):
                self._ahead.submit(candidate)

    def _try(self, compiled: Compiled) -> None:
        self._search.tell(self._tried(compiled))

    def _tried(self, compiled: Compiled) -> Measurement:
        """Records and returns the outcome of a candidate."""
        if compiled.rendered is None or (compiled.error and not isinstance(compiled.error, CompileError)):
            assert compiled.error is not None
            raise compiled.error  # not this variant's fault: the compiler is missing, the disk is full
        variant = Variant(compiled.candidate, compiled.rendered.digest)
        if compiled.variant is None:
            measurement = self._measuring.compile_failure(variant, compiled)
        else:
            self._measuring.keep(variant, compiled.variant)
            limit = HOPELESS * median_us(self._ledger.fastest)
            request = Measure(compiled.variant, samples=SAMPLES, limit_us=limit)
            self._is_measuring = True
            began = time.monotonic()
            attempt = self._measuring.attempt(request, meanwhile=self._propose)
            if not self._recent_seconds:
                self._limits = self._limits.after_start(time.monotonic())
            self._recent_seconds.append(time.monotonic() - began)
            self._is_measuring = False
            measurement = self._measuring.measurement(variant, compiled.variant, attempt, compiled.seconds)
        self._ledger.record(measurement)
        self._claims.give_back(compiled.candidate)
        self._first_pending.discard(compiled.candidate)
        self._progress(self._status(), measurement)
        return measurement

    # --- baselines ---

    def _time_baselines(self) -> None:
        if self._baselines is None:
            return
        if self._ledger.has_baselines():
            self._end(self._baselines)
            self._baselines = None
            return
        self._enter(Phase.BASELINES)
        try:
            self._ledger.record_baselines(self._baselines.measure())
        except CANNOT_BE_TIMED as error:
            log.warning("baselines: %s", error)
            self.baselines_failed = f"dense and vendor baselines could not be timed: {error}"
        if self.baselines_failed or not self._measures_rates or not self._ledger.needs_rates:
            self._end(self._baselines)
        else:  # cuBLAS is loaded in its process alone
            self._with_cublas = self._baselines
        self._baselines = None

    @staticmethod
    def _end(baselines: BaselineSession) -> None:
        """Have their process end while the search goes on: a device's context takes some tenths of a second to go."""
        background.begin(baselines.close, "end of baselines")

    def _measure_rates(self) -> Rates | None:
        """Measures the device's rates, for predicted times from now on; None if they cannot be measured."""
        if self._with_cublas is None:
            return None
        self._enter(Phase.RATES)
        try:
            rates = self._with_cublas.rates()
        except CANNOT_BE_TIMED as error:
            log.warning("the device's rates are not known, and times are predicted by estimates: %s", error)
            return None
        finally:
            self._with_cublas.close()
        if rates is not None:
            self._ledger.record_rates(rates)
        return None if rates is None else rates.rates

    # --- finalists ---

    def _time_finalists(self) -> None:
        """Verify the best few again and time them in turn; should all of them fail now, the next best few."""
        best = finalists.pick(self._ledger.measurements, self._defaults)
        if not self._ledger.has_news and all(m.final for m in best):
            return  # an earlier run timed them
        while best:
            self._enter(Phase.FINALISTS)
            limits = self._limits
            if time_in_turn(best, limits.finalists_seconds, self._measuring, self._ledger, limits.ends):
                break
            best = finalists.pick(self._ledger.measurements, self._defaults)
        self._progress(self._status())

    # --- progress ---

    def _enter(self, phase: Phase) -> None:
        if phase is not self._phase or phase is Phase.STARTING:
            self._phase = phase
            self._progress(self._status())

    @property
    def _planned(self) -> float:
        """Upper limit of trials: no more than there are candidates, once these are listed."""
        if not self._search.is_set_up:
            return self._limits.trials
        return min(self._limits.trials, len(self._search.complete().space.candidates))

    def _status(self) -> Status:
        now = time.monotonic()
        return Status(
            workload=self._ledger.workload,
            phase=self._phase,
            counts=self._ledger.counts,
            planned=max(self._planned, self._ledger.counts.tried),
            best=self._ledger.fastest,
            baselines=tuple(self._ledger.baselines),
            seconds=now - self._limits.began,
            seconds_left=max(0.0, self._limits.ends - now),
        )
