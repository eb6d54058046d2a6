"""Families that the cost model expects to be faster than what was measured of few variants on this very workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sparsegen.kernels import families_of
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db.records import Measurement, Probe, Workload

# Expected gain from which on a family is used that was not tried on this very workload, where few variants were. With
# the packaged measurements, from which one family at a time was left out: in all 167 cases that family's heuristic was
# faster than the best of all others, 1.14 to 7 times, 1.85 times on average. Whoever tried more had the promising
# families first.
WORTH_UNTRIED = 1.25
FEW_TRIED = 20


@dataclass(frozen=True, slots=True)
class Found:
    """A heuristic config, and why it should run."""

    config: Config
    why: str


@dataclass(frozen=True)
class Modelled:
    """What the cost model says of a workload beside what was measured on it."""

    workload: Workload
    device: Device
    measured: Iterable[Measurement]
    is_allowed: Callable[[Config], bool]

    def untried(self, best: Config, best_us: float, probes: Iterable[Probe]) -> Found | None:
        """A family that was not tried and should be faster, if no probe found it slower.

        Faster than the predictions for all that were tried, and than ``best_us``; None where that is by a smaller
        factor than `WORTH_UNTRIED`. Otherwise no family could be used that is newer than the database.
        """
        tried, times = {m.variant.family for m in self.measured}, self._times()
        known = min([best_us, *(us for family, us in times if family.name in tried)])
        for family, us in times:
            gain = known / us
            if not gain >= WORTH_UNTRIED:  # nor where no time is finite
                return None
            config = family.heuristic(self.workload.problem, self.workload.features, self.device)
            if family.name in tried or not self.is_allowed(config):
                continue
            if any(p.variant.config == config and p.sparse_us >= best_us for p in probes):
                return None
            return Found(
                config,
                f"a heuristic: {config.family_name} was not tried here, and should be some {gain:.1f} × faster than "
                f"{best.family_name}, the fastest of what was ({microseconds(best_us)})",
            )
        return None

    def _times(self) -> list[tuple[AnyFamily, float]]:
        """The families with what the model expects of their heuristic configs in µs, the fastest first."""
        problem, features = self.workload.problem, self.workload.features
        times = [(f, f.predicted_us(problem, features, self.device)) for f in families_of(problem.operator)]
        return sorted(times, key=lambda found: found[1])
