"""Options, progress and result of a run: budget, status, result."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import Device
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Baseline, Measurement, Workload


class Effort(StrEnum):
    """Extent of a search, if neither trials nor seconds are given."""

    QUICK = "quick"
    NORMAL = "normal"
    MAX = "max"  # over every choice of every tunable, not only the searched ones


class SamplerName(StrEnum):
    """The strategy that chooses the next variant of a search."""

    CANDIDATES = "candidates"  # our own: a Gaussian process over the list of valid configs
    TPE = "tpe"
    GP = "gp"
    RANDOM = "random"


SLOW_START: Mapping[Effort, tuple[float, float]] = {Effort.QUICK: (2.4, 5.5)}
DEFAULTS: Mapping[Effort, tuple[int, float]] = {
    Effort.QUICK: (120, 4.5),
    Effort.NORMAL: (500, 18.5),
    Effort.MAX: (3000, 1800.0),
}


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search: it ends at whichever comes first.

    Attributes:
        trials: variants tried, those that an earlier run measured included.
        seconds: wall-clock time of the whole call; the first variant is measured whatever it takes. Without
            trials and seconds the effort sets both, and a quick search that starts slowly gets up to a second more.

    Raises:
        ConfigError: trials are no whole number, seconds are no number, or either is not above 0.
    """

    trials: int | None = None
    seconds: float | None = None
    effort: Effort = Effort.NORMAL

    def __post_init__(self) -> None:
        if self.trials is not None:
            object.__setattr__(self, "trials", arguments.whole(self.trials, "trials"))
        if self.seconds is not None:
            object.__setattr__(self, "seconds", arguments.number(self.seconds, "seconds"))
        for name, value in (("trials", self.trials), ("seconds", self.seconds)):
            if value is not None and not value > 0:
                raise ConfigError(f"a budget's {name} are above 0, not {value}")

    @property
    def limits(self) -> tuple[float, float]:
        """Trials and seconds, infinite where there is no limit."""
        if self.trials is None and self.seconds is None:
            return DEFAULTS[self.effort]
        return self.trials or float("inf"), self.seconds or float("inf")

    @property
    def slow_start(self) -> tuple[float, float]:
        """Seconds left after the first variant was measured, and the latest end of the call up to which they are
        granted.
        """
        own = self.trials is not None or self.seconds is not None
        return (0.0, 0.0) if own else SLOW_START.get(self.effort, (0.0, 0.0))


@dataclass(frozen=True, slots=True)
class Counts:
    """Trials by what became of them.

    Attributes:
        done: verified and timed in this run.
        failed: wrong, crashed, hung or not compiled in this run.
        resumed: known from an earlier run, whatever became of them.
        pruned: configs that a constraint ruled out before anything was compiled.
    """

    done: int = 0
    failed: int = 0
    resumed: int = 0
    pruned: int = 0

    @property
    def tried(self) -> int:
        """Variants whose outcome is known."""
        return self.done + self.failed + self.resumed


class Phase(StrEnum):
    STARTING = "starting"
    SEARCHING = "searching"
    BASELINES = "timing dense and vendor routines"
    FINALISTS = "timing finalists in turn"
    RATES = "measuring what the device does, once"


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of a run.

    Attributes:
        planned: upper limit of trials, at least the number known from before; infinite if only time ends the search
            and its candidates are not counted yet.
        seconds_left: time until the budget ends; infinite without a limit.
    """

    workload: Workload
    phase: Phase
    counts: Counts
    planned: float
    best: Measurement | None
    baselines: tuple[Baseline, ...]
    seconds: float
    seconds_left: float


class Progress(Protocol):
    """Told after every trial and at every change of phase; called from the thread that tunes."""

    def __call__(self, status: Status, measurement: Measurement | None = None) -> None: ...


def silent(status: Status, measurement: Measurement | None = None) -> None:
    """Ignores progress."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A winner that took another's place.

    Attributes:
        before: the winner by what was known before this run.
        cost: the old winner's time over the new one's, by this run's times; None if it did not time both.
    """

    before: Measurement
    after: Measurement
    cost: float | None

    @classmethod
    def between(
        cls, before: Measurement | None, after: Measurement, measurements: Iterable[Measurement]
    ) -> Flip | None:
        """The flip from one winner to another; None where there was none before, or it is the same config.

        Args:
            measurements: measurements of this run.
        """
        if before is None or before.variant.config == after.variant.config:
            return None
        times = ranking.times(m for m in measurements if m.measured_at > before.measured_at)
        today = {variant.config: timed.time_us for variant, timed in times.items()}
        old, new = today.get(before.variant.config), today.get(after.variant.config)
        return cls(before, after, None if old is None or new is None else old / new)


@dataclass(frozen=True, slots=True, repr=False)
class TuneResult:
    """The end of a run.

    Attributes:
        winner: the best verified variant of the families asked for.
        family_winners: the best of each family, by the family's name.
        pruned: number of configs that each constraint or requirement ruled out.
        left_out: families that the matrix does not suit, and why.
        space_size: valid configs.
        baselines_skipped: why dense and vendor routines were not timed; empty if they were.
        was_interrupted: stopped by Ctrl-C; running again goes on.
        flip: the change of winner, if another variant was the winner before this run.
    """

    workload: Workload
    device: Device
    winner: Measurement
    family_winners: Mapping[str, Measurement]
    counts: Counts
    pruned: Mapping[str, int]
    left_out: Mapping[str, str]
    space_size: int
    baselines: tuple[Baseline, ...]
    baselines_skipped: str
    seconds: float
    was_interrupted: bool
    flip: Flip | None = None

    def __repr__(self) -> str:
        return f"<TuneResult: {self.summary}>"

    def _repr_html_(self) -> str:
        """Renders the result for a notebook: the summary, and the best of each family."""
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{m.sample.median_us:.4g} µs</td>"
            f"<td>{html.escape(m.variant.config.settings)}</td></tr>"
            for name, m in self.family_winners.items()
            if m.sample is not None
        )
        head = "<tr><th>family</th><th>time</th><th>config</th></tr>"
        return f"<p>{html.escape(self.summary)}</p><table>{head}{rows}</table>"

    @property
    def summary(self) -> str:
        """The winner, its time and what was tried, in a line."""
        sample = self.winner.sample
        took = "" if sample is None else f", {sample.median_us:.4g} µs"
        return (
            f"{self.winner.variant.family}{took} on {self.device.name}, the fastest of {self.counts.tried} variants, "
            f"for {self.workload.problem}"
        )

    def speedup_over(self, baseline: str) -> float | None:
        """Speedup over a baseline, whose time is divided by ours (below 1: slower); None if that was not timed."""
        times = [b.sample.median_us for b in self.baselines if b.name == baseline]
        if not times or self.winner.sample is None:
            return None
        return times[-1] / max(self.winner.sample.median_us, 1e-9)
