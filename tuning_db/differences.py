"""Differences between two databases: their choices, and the cost of one's choices by the other's times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sparsegen.kernels.base import Device
from sparsegen.system.json_object import Json
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.record_json import workload_dict
from sparsegen.tuning_db.records import Workload


class Standing(StrEnum):
    """Comparison of two databases' choices for one workload and device."""

    ONLY_A = "only in A"
    ONLY_B = "only in B"
    SAME = "the same"
    TIED = "another, within the noise"
    SLOWER = "another, slower"
    FASTER = "another, faster"
    UNKNOWN = "another, which B has not timed"


@dataclass(frozen=True, slots=True)
class Difference:
    """A workload on a device.

    Attributes:
        a, b: each database's choice; None if it knows nothing that may run.
        cost: A's choice over B's own, by B's times; None if B did not time it.
    """

    workload: Workload
    device: Device
    standing: Standing
    a: ranking.Ranked | None
    b: ranking.Ranked | None
    cost: float | None

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            **workload_dict(self.workload),
            "device": self.device.key,
            "standing": self.standing,
            "a": _chosen(self.a),
            "b": _chosen(self.b),
            "cost": self.cost,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All workloads that either database has."""

    differences: tuple[Difference, ...]

    def count(self, standing: Standing) -> int:
        return sum(d.standing is standing for d in self.differences)

    @property
    def costs(self) -> tuple[float, ...]:
        """Costs of all workloads for which B timed A's choice: 1 if both choose the same."""
        return tuple(d.cost for d in self.differences if d.cost is not None)

    @property
    def geomean(self) -> float | None:
        """The geometric mean of the costs; None where there are none."""
        return math.exp(sum(map(math.log, self.costs)) / len(self.costs)) if self.costs else None

    @property
    def worst(self) -> Difference | None:
        """The workload for which A's choice costs most."""
        return max(
            (d for d in self.differences if d.cost is not None), key=lambda d: d.cost or 0.0, default=None
        )

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "counts": {standing.name.lower(): self.count(standing) for standing in Standing},
            "compared": len(self.costs),
            "geomean": self.geomean,
            "worst": None if self.worst is None else self.worst.cost,
            "differences": [d.to_dict() for d in self.differences],
        }


def compare(a: Layer, b: Layer) -> Comparison:
    """Hold the choices of two databases against each other, by B's times."""
    listed = {(t.workload, t.device.key): t.device for layer in (a, b) for t in layer.list_workloads()}
    return Comparison(tuple(_differences(a, b, [(w, device) for (w, _), device in listed.items()])))


def _differences(a: Layer, b: Layer, listed: Sequence[tuple[Workload, Device]]) -> Iterator[Difference]:
    for workload, device in listed:
        order = ranking.ranked(b.measurements(workload, device))
        mine = next(iter(ranking.ranked(a.measurements(workload, device))), None)
        theirs = next(iter(order), None)
        if mine is None and theirs is None:
            continue
        standing, cost = _standing(mine, theirs, order)
        yield Difference(workload, device, standing, mine, theirs, cost)


def _standing(
    mine: ranking.Ranked | None, theirs: ranking.Ranked | None, order: Sequence[ranking.Ranked]
) -> tuple[Standing, float | None]:
    if mine is None:
        return Standing.ONLY_B, None
    if theirs is None:
        return Standing.ONLY_A, None
    if mine.variant.config == theirs.variant.config:
        return Standing.SAME, 1.0
    there = next((r for r in order if r.variant.config == mine.variant.config), None)
    if there is None:
        return Standing.UNKNOWN, None
    cost = there.time_us / theirs.time_us
    if theirs.interval.is_below(there.interval):
        return Standing.SLOWER, cost
    return (Standing.FASTER if there.interval.is_below(theirs.interval) else Standing.TIED), cost


def _chosen(chosen: ranking.Ranked | None) -> Json | None:
    if chosen is None:
        return None
    config = chosen.variant.config
    return {"family": config.family_name, "config": config.to_dict(), "time_us": chosen.time_us}
