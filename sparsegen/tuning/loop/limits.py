"""The end of a search: a budget on the clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsegen.tuning.report import Budget

FINALISTS_SHARE = 0.1  # fraction of a budget in seconds, within it
FINALISTS_SECONDS = (0.5, 2.5)
TRIAL_SECONDS = 0.25  # usual seconds of a trial, by which a budget in trials is one in seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """A budget on the clock of `time.monotonic`.

    Attributes:
        trials: earlier runs' included; infinite without a limit.
        finalists_seconds: kept for the finalists before ``ends``.
        after_first: seconds from the first measured variant to the end, at the least, where that is before ``latest``.
    """

    trials: float
    began: float
    ends: float
    finalists_seconds: float
    after_first: float = 0.0
    latest: float = 0.0

    @classmethod
    def of(cls, budget: Budget, began: float) -> Limits:
        trials, seconds = budget.limits
        least, most = FINALISTS_SECONDS
        share = min(most, max(least, FINALISTS_SHARE * min(seconds, TRIAL_SECONDS * trials)))
        after_first, latest = budget.slow_start
        return cls(trials, began, began + seconds, share, after_first, began + latest)

    def after_start(self, now: float) -> Limits:
        """The limits when the first variant is measured."""
        ends = min(now + self.after_first, self.latest)
        return replace(self, ends=max(self.ends, ends))
