"""Two runs side by side: what became faster or slower beyond the noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sparsegen.bench.results.results import Results, Row, RowKey, Status, Timing
from sparsegen.bench.results.summary import Mean, geometric
from sparsegen.errors import ResultsMismatchError
from sparsegen.operators import DType

THRESHOLD = 0.03  # medians nearer than this are the same: sessions on one GPU differ by 1 to 2 %


class Outcome(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Change:
    """A baseline on a workload that has a time in both runs."""

    key: RowKey
    baseline: str
    old: Timing
    new: Timing
    outcome: Outcome

    @property
    def ratio(self) -> float:
        """New median over old: below 1 is faster."""
        return self.new.us / self.old.us


@dataclass(frozen=True, slots=True)
class StatusChange:
    """A baseline that has a time in one run only, or failed in another way."""

    key: RowKey
    baseline: str
    old: Status
    new: Status
    reason: str  # reason of the run without a time; the newer one's if neither has one


@dataclass(frozen=True, slots=True)
class Drift:
    """Geometric mean of new over old of one baseline over the rows of a suite and dtype."""

    suite: str
    dtype: DType
    baseline: str
    ratio: Mean


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two runs.

    Attributes:
        changes: every cell timed in both, in the new run's order; ``differing`` leaves out the same.
        only_old, only_new: rows that one of them lacks.
        other_pattern: rows of one name whose matrices differ, so that their times must not be compared.
    """

    changes: tuple[Change, ...]
    status_changes: tuple[StatusChange, ...]
    drifts: tuple[Drift, ...]
    only_old: tuple[RowKey, ...]
    only_new: tuple[RowKey, ...]
    other_pattern: tuple[RowKey, ...]

    @property
    def differing(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.outcome is not Outcome.SAME)


def compare(old: Results, new: Results, *, threshold: float = THRESHOLD, force: bool = False) -> Comparison:
    """Hold a run against an older one.

    Args:
        threshold: medians that differ by no more than this share are the same.
        force: compare runs of different devices.

    Raises:
        ResultsMismatchError: the devices or the states of L2 differ and ``force`` is not given.
    """
    facts = (
        ("device", old.device.key, new.device.key),
        ("L2", str(old.protocol.l2), str(new.protocol.l2)),
    )
    differences = tuple(f"{name}: {before} before, {now} now" for name, before, now in facts if before != now)
    if differences and not force:
        raise ResultsMismatchError("the runs are not comparable:", differences=differences)
    before = {row.key: row for row in old.rows}
    now = {row.key: row for row in new.rows}
    common = [(before[key], now[key]) for key in now if key in before]
    alike = [(a, b) for a, b in common if a.fingerprint == b.fingerprint]
    changes = tuple(change for a, b in alike for change in _changes(a, b, threshold))
    return Comparison(
        changes=changes,
        status_changes=tuple(change for a, b in alike for change in _status_changes(a, b)),
        drifts=tuple(_drifts(changes)),
        only_old=tuple(key for key in before if key not in now),
        only_new=tuple(key for key in now if key not in before),
        other_pattern=tuple(b.key for a, b in common if a.fingerprint != b.fingerprint),
    )


def outcome_of(old: Timing, new: Timing, threshold: float = THRESHOLD) -> Outcome:
    """Classifies a change of time: medians further apart than the threshold, and spreads that do not overlap.

    The spread is that of the rounds' medians or that of the samples (10th to 90th percentile): one of them
    has to be disjoint. Single samples scatter far more than the medians of rounds do.
    """
    if abs(new.us - old.us) <= threshold * old.us:
        return Outcome.SAME
    samples = _disjoint((old.low_us, old.high_us), (new.low_us, new.high_us))
    rounds = len(old.rounds_us) > 1 and len(new.rounds_us) > 1
    rounds = rounds and _disjoint(
        (min(old.rounds_us), max(old.rounds_us)), (min(new.rounds_us), max(new.rounds_us))
    )
    if not samples and not rounds:
        return Outcome.SAME
    return Outcome.FASTER if new.us < old.us else Outcome.SLOWER


def _disjoint(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[1] < b[0] or b[1] < a[0]


def _changes(old: Row, new: Row, threshold: float) -> Iterator[Change]:
    for cell in new.cells:
        other = old.cell(cell.baseline)
        if other is not None and other.timing is not None and cell.timing is not None:
            outcome = outcome_of(other.timing, cell.timing, threshold)
            yield Change(new.key, cell.baseline, other.timing, cell.timing, outcome)


def _status_changes(old: Row, new: Row) -> Iterator[StatusChange]:
    for cell in new.cells:
        other = old.cell(cell.baseline)
        if other is not None and other.status is not cell.status:
            yield StatusChange(new.key, cell.baseline, other.status, cell.status, cell.reason or other.reason)


def _drifts(changes: tuple[Change, ...]) -> Iterator[Drift]:
    groups: dict[tuple[str, DType, str], list[float]] = {}
    for change in changes:
        group = (change.key.suite, change.key.dtype, change.baseline)
        groups.setdefault(group, []).append(change.ratio)
    for (suite, dtype, baseline), ratios in groups.items():
        yield Drift(suite, dtype, baseline, geometric(ratios))
