"""Knowledge of one workload: earlier runs' measurements and this run's, each recorded at once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.plan.variants import RenderedVariant
from sparsegen.tuning.loop.finalists import median_us
from sparsegen.tuning.report import Counts
from sparsegen.tuning.space import Space
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Baseline, DeviceRates, Measurement, Outcome, Variant, Workload

FOLLOW_SECONDS = 1.0  # between two looks at what equal searches record
LOOKING_SHARE = 20.0  # times what a look costs, at least


class Recorder(Layer, Protocol):
    """Destination of a search's measurements: a `Store`, or the result file of a job."""

    def add_all(self, measurements: Iterable[Measurement], baselines: Iterable[Baseline]) -> Any:
        """Record all of them, or on any error none."""

    def add_baseline(self, b: Baseline) -> None: ...

    def add_rates(self, rates: DeviceRates) -> None: ...


class Ledger:
    """Measurements of a search space's variants on one workload and device.

    Args:
        known: records of earlier runs, for reading.
        store: the database that is written, once it is open. What is recorded before waits for it; a search does not.

    Attributes:
        measurements: measurements in the order in which they were made; finalists' times among them.
        counts: trials so far.
        failures: why variants failed, and how many for each reason.
        failed_once: candidates that failed in an earlier run, and are to be tried once more.
    """

    def __init__(self, workload: Workload, device: Device, known: Layer, store: Future[Recorder]) -> None:
        self.workload, self.device = workload, device
        self._known, self._store = known, store
        self._unwritten: list[Measurement] = []
        self.measurements: list[Measurement] = []
        self.baselines: list[Baseline] = known.baselines(workload, device)
        self.counts = Counts()
        self.failures: Counter[str] = Counter()
        self.failed_once: list[Config] = []
        self._fastest: Measurement | None = None
        self._tried: set[Config] = set()
        self._taken: set[tuple[Variant, datetime, bool]] = set()
        self._today: dict[Config, str] = {}  # digests
        self._look_again = time.monotonic() + FOLLOW_SECONDS  # the store may not be open yet

    def resume(self, *, again: bool = False) -> dict[Config, Measurement]:
        """Take up what earlier runs recorded of the variants that are expected, as they render and compile today.

        A variant that failed once stays unknown, and is one of `failed_once`: whatever made it fail may have been of
        that day. One that was wrong is known to be.

        Args:
            again: all are to be tried again; the times of before count beside those to come.

        Returns:
            The candidates that need not be tried, each with the latest of its measurements.
        """
        latest: dict[Config, Measurement] = {}
        failures: Counter[Config] = Counter()  # since it last was right
        for m in self._news(self._known):
            candidate = m.variant.config
            latest[candidate] = m
            failures[candidate] = 0 if m.outcome is Outcome.OK else failures[candidate] + 1
        self.failed_once = [
            candidate
            for candidate, m in latest.items()
            if failures[candidate] == 1 and m.outcome is not Outcome.WRONG
        ]
        unknown = latest.keys() if again else self.failed_once
        known = {candidate: m for candidate, m in latest.items() if candidate not in unknown}
        self.counts = replace(self.counts, resumed=len(known))
        self._tried |= known.keys()
        return known

    def expect(self, space: Space, render: Callable[[Config], RenderedVariant]) -> None:
        """The variants that count: before they are known, neither `resume` nor `follow` is to be called.

        Args:
            render: a candidate as it renders and compiles today.
        """
        self._candidates, self._render = set(space.candidates), render

    def follow(self, *, at_once: bool = False) -> dict[Config, Measurement]:
        """Take up what equal searches recorded meanwhile.

        Args:
            at_once: look now; otherwise only if the last look is long ago, for what looking costs.

        Returns:
            The candidates that are new, each with the latest of its measurements.
        """
        began = time.monotonic()
        if not at_once and (began < self._look_again or not self._store.done()):
            return {}
        news = {m.variant.config: m for m in self._news(self._store.result())}
        cost = time.monotonic() - began
        self._look_again = began + max(FOLLOW_SECONDS, LOOKING_SHARE * cost)
        new = {candidate: m for candidate, m in news.items() if candidate not in self._tried}
        self._tried |= new.keys()
        self.counts = replace(self.counts, resumed=self.counts.resumed + len(new))
        return new

    def is_tried(self, candidate: Config) -> bool:
        """True if a candidate's outcome is known, of this run or others."""
        return candidate in self._tried

    def _news(self, source: Layer) -> Iterator[Measurement]:
        """Yields recorded measurements of the space's variants that still render and compile the same, each only
        once.
        """
        for m in source.measurements(self.workload, self.device):
            candidate = m.variant.config
            if candidate not in self._candidates or _key(m) in self._taken:
                continue
            if candidate not in self._today:
                self._today[candidate] = self._render(candidate).digest
            if self._today[candidate] == m.variant.source_digest:
                self._take(m)
                yield m

    def record(self, measurement: Measurement) -> None:
        """Store a measurement of this run; it is safe when this returns, if the database is open."""
        self._unwritten.append(measurement)
        if self._store.done():
            self.flush()
        self._take(measurement)
        self._tried.add(measurement.variant.config)
        if measurement.outcome is Outcome.OK:
            self.counts = replace(self.counts, done=self.counts.done + (not measurement.final))
        else:
            self.counts = replace(self.counts, failed=self.counts.failed + (not measurement.final))

    def has_baselines(self) -> bool:
        """True if an equal search has timed the baselines meanwhile."""
        self.baselines = self._store.result().baselines(self.workload, self.device)
        return bool(self.baselines)

    def flush(self) -> None:
        """Write what waits for the database; waits for it too."""
        if self._unwritten:
            self._store.result().add_all(self._unwritten, [])
            self._unwritten = []

    def record_baselines(self, baselines: list[Baseline]) -> None:
        for baseline in baselines:
            self._store.result().add_baseline(baseline)
        self.baselines += baselines

    @property
    def needs_rates(self) -> bool:
        """True if no database knows the device's rates."""
        return self.device.rates is None and self._known.rates(self.device) is None

    def record_rates(self, rates: DeviceRates) -> None:
        self._store.result().add_rates(rates)

    def _take(self, m: Measurement) -> None:
        self.measurements.append(m)
        self._taken.add(_key(m))
        if m.outcome is not Outcome.OK:
            self.failures[f"{m.outcome.value}: {_gist(m.reason)}"] += 1
        elif median_us(m) < median_us(self._fastest):
            self._fastest = m

    @property
    def fastest(self) -> Measurement | None:
        """The lowest median so far: for progress and for dropping slow variants, not for naming a winner."""
        return self._fastest

    @property
    def has_news(self) -> bool:
        """True if this run tried anything."""
        return self.counts.done + self.counts.failed > 0

    @property
    def trials(self) -> int:
        return self.counts.tried

    def winners(self) -> dict[str, Measurement]:
        """The best dispatchable measurement of each family, the best family first."""
        ranked = ranking.ranked(self.measurements)
        best: dict[str, Measurement] = {}
        for r in ranked:
            best.setdefault(r.variant.family, r.measurement)
        return best


def _key(m: Measurement) -> tuple[Variant, datetime, bool]:
    """Returns a key that no two measurements of a workload share."""
    return m.variant, m.measured_at, m.final


def _gist(reason: str) -> str:
    """The first line, and of a compiler's output below it the first error."""
    first, *rest = reason.splitlines() or [""]
    error = next((line.strip() for line in rest if "error" in line), "")
    return f"{first}: {error}" if error else first
