"""Families that the cost model expects to be faster than what measurements, here or near, would have run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from sparsegen.kernels import families_of, family_of
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db.records import Measurement, Probe, Workload

WORTH_UNTRIED = 2.0  # expected gain from which on a family is used that was tried on nothing near
# The same where this very workload was measured, with few variants. With the packaged measurements, from which one
# family at a time was left out: in all 167 cases that family's heuristic was faster than the best of all others, 1.14
# to 7 times, 1.85 times on average. Whoever tried more had the promising families first.
WORTH_UNTRIED_HERE = 1.25
FEW_TRIED = 20
# Expected gain from which a family's heuristic config is used and not the one that was voted for. With the packaged
# measurements of 250 workloads of spmm, all nearer than a distance left out, the mean over the best time
# without this is 1.034 from no distance on, 1.050 from 1 octave, 1.070 from 2 and 1.083 from 2.7; with it 1.025, 1.033,
# 1.046 and 1.054. Of the two nearest from 2 octaves on alone it is 1.081, and 1.058.
WORTH_ANOTHER = 1.15
MODEL_AGREES = 1.5  # the factor up to which model and neighbours say the same of the config that is voted for


@dataclass(frozen=True, slots=True)
class Found:
    """A heuristic config, and why it should run."""

    config: Config
    why: str


@dataclass(frozen=True)
class Modelled:
    """What the cost model says of a workload beside measurements, of this one or of its neighbours."""

    workload: Workload
    device: Device
    measured: Iterable[Measurement]
    is_allowed: Callable[[Config], bool]

    def untried_near(self, best: Config) -> Found | None:
        """A family that was tried on nothing near, and should be much faster than what was."""
        found = self._untried(WORTH_UNTRIED, math.inf)
        if found is None:
            return None
        config, gain = found
        return Found(
            config,
            f"a heuristic: {config.family_name} was tried on nothing near, and should be some {gain:.1f} × "
            f"faster than what was, of which {best.family_name} is the fastest",
        )

    def untried_here(self, best: Config, best_us: float, probes: Iterable[Probe]) -> Found | None:
        """A family that was not tried on this very workload and should be faster, if no probe found it slower."""
        found = self._untried(WORTH_UNTRIED_HERE, best_us)
        if found is None:
            return None
        config, gain = found
        if any(p.variant.config == config and p.sparse_us >= best_us for p in probes):
            return None
        return Found(
            config,
            f"a heuristic: {config.family_name} was not tried here, and should be some {gain:.1f} × faster than "
            f"{best.family_name}, the fastest of what was ({microseconds(best_us)})",
        )

    def tried_near(self, voted: Config, expected_us: float) -> Found | None:
        """A family that was tried near and should be clearly faster here than the config that was voted for.

        Votes of a few neighbours, or of far ones, know less of these sizes than the model does, if that agrees with
        what they measured of this config.
        """
        problem, features = self.workload.problem, self.workload.features
        modelled = family_of(voted).analytic_us(problem, features, voted, self.device)
        if not modelled / MODEL_AGREES <= expected_us <= modelled * MODEL_AGREES:
            return None
        for family, us in self._times:
            if not expected_us / us >= WORTH_ANOTHER:
                return None
            config = family.heuristic(problem, features, self.device)
            if family.name in self._tried and config != voted and self.is_allowed(config):
                return Found(
                    config,
                    f"a heuristic: {family.name} should take {microseconds(us)}, and {voted.family_name}, the best "
                    f"where it was measured, {microseconds(expected_us)}",
                )
        return None

    def _untried(self, worth: float, best_us: float) -> tuple[Config, float] | None:
        """The heuristic config of the first family that was not tried, and how much faster it should be.

        Faster than the predictions for all that were tried, and than ``best_us``; None where that is by a smaller
        factor than ``worth``. Otherwise no family could be used that is newer than the database.
        """
        tried = self._tried
        known = min([best_us, *(us for family, us in self._times if family.name in tried)])
        for family, us in self._times:
            gain = known / us
            if not gain >= worth:  # nor where no time is finite
                return None
            config = family.heuristic(self.workload.problem, self.workload.features, self.device)
            if family.name not in tried and self.is_allowed(config):
                return config, gain
        return None

    @cached_property
    def _times(self) -> list[tuple[AnyFamily, float]]:
        """The families with what the model expects of their heuristic configs in µs, the fastest first."""
        problem, features = self.workload.problem, self.workload.features
        times = [(f, f.predicted_us(problem, features, self.device)) for f in families_of(problem.operator)]
        return sorted(times, key=lambda found: found[1])

    @cached_property
    def _tried(self) -> set[str]:
        return {m.variant.family for m in self.measured}
