"""Families that the cost model expects to be faster than what was measured of few variants on this very workload.

A search tries them before it ends (`left_to_try`), so that what it measured is what runs after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from sparsegen.kernels import families_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Measurement, Probe, Workload

# Expected gain from which on a family is used that was not tried on this very workload, where few variants were. With
# the packaged measurements, from which one family at a time was left out: in all 167 cases that family's heuristic was
# faster than the best of all others, 1.14 to 7 times, 1.85 times on average. Whoever tried more had the promising
# families first.
WORTH_UNTRIED = 1.25
FEW_TRIED = 20
# The same where a search is about to end: its last times, and rates that are measured after it, move what is expected.
WORTH_TRYING = 1.1


class Found(NamedTuple):
    """A heuristic config, and why it should run."""

    config: Config
    why: str


def untried(
    workload: Workload,
    device: Device,
    measured: Iterable[Measurement],
    best: Config,
    best_us: float,
    probes: Iterable[Probe],
    is_allowed: Callable[[Config], bool],
    worth: float = WORTH_UNTRIED,
) -> Found | None:
    """A family that was not tried on this workload and should be faster, if no probe found it slower.

    Faster than the predictions for all that were tried, and than ``best_us``; None where that is by a smaller factor
    than ``worth``. Otherwise no family could be used that is newer than the database.

    Args:
        measured: all of this workload.
        best, best_us: the fastest of it, and its time in µs.
        is_allowed: true for a config that may run here at all.
    """
    problem, features = workload.problem, workload.features
    tried = {m.variant.family for m in measured}
    times = sorted(
        ((f.predicted_us(problem, features, device), f) for f in families_of(problem.operator)),
        key=lambda found: found[0],
    )
    known = min([best_us, *(us for us, family in times if family.name in tried)])
    for us, family in times:
        gain = known / us
        if not gain >= worth:  # nor where no time is finite
            return None
        config = family.heuristic(problem, features, device)
        if family.name in tried or not is_allowed(config):
            continue
        if any(p.variant.config == config and p.sparse_us >= best_us for p in probes):
            return None
        return Found(
            config,
            f"a heuristic: {config.family_name} was not tried here, and should be some {gain:.1f} × faster than "
            f"{best.family_name}, the fastest of what was ({microseconds(best_us)})",
        )
    return None


def left_to_try(
    workload: Workload,
    device: Device,
    measured: Iterable[Measurement],
    is_allowed: Callable[[Config], bool],
) -> Config | None:
    """The heuristic config of a family that a look-up might take in the place of what a search measured, or None.

    Args:
        device: the device, with the rates that a look-up will know.
        measured: measurements by the search and before it.
        is_allowed: true for a config that the search may try.
    """
    listed = list(measured)
    ranked = ranking.ranked(listed)
    if not ranked or len(ranked) >= FEW_TRIED:
        return None
    best = ranked[0]
    found = untried(
        workload, device, listed, best.variant.config, best.time_us, (), is_allowed, worth=WORTH_TRYING
    )
    return None if found is None else found.config
