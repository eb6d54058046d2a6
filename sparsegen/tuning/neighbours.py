"""Where to begin: the configs that won on workloads like this one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from sparsegen.errors import ConfigError
from sparsegen.family import Device, Family
from sparsegen.tuning.space import Candidate
from sparsegen.tuning_db.records import Measurement, Workload

MOST_NEIGHBOURS = 5


def distance(a: Workload, b: Workload) -> float:
    """Euclidean, between the logarithms of the features that shape the run time; infinite between dtypes."""
    if (a.problem.dtype, a.problem.layout) != (b.problem.dtype, b.problem.layout):
        return math.inf

    def point(w: Workload) -> tuple[float, ...]:
        f = w.features
        sizes = (f.m, f.k, w.problem.n, f.row_mean, f.row_max)
        return (*(math.log2(1.0 + s) for s in sizes), 2.0 * f.row_cov, 2.0 * f.block_fill)

    return math.dist(point(a), point(b))


def winners_nearby(
    workload: Workload,
    device: Device,
    winners: Iterable[Measurement],
    families: Sequence[Family[Any, Any]],
) -> list[Candidate]:
    """The winners of the nearest workloads that are valid here, nearest first and each once."""
    by_name = {f.name: f for f in families}
    found: dict[Any, Candidate] = {}
    for winner in sorted(winners, key=lambda m: distance(workload, m.workload)):
        if len(found) == MOST_NEIGHBOURS:
            break
        family = by_name.get(winner.variant.family)
        if family is None or winner.workload == workload:
            continue
        try:
            config = family.config(**winner.variant.config_dict)
            family.require_valid(workload.problem, config, device)
        except ConfigError:  # of an older version of the family, or not for these shapes
            continue
        candidate = Candidate(family, config)
        found.setdefault(candidate.key, candidate)
    return list(found.values())
