"""Places of measured workloads in feature space, and their distances from one that was not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.system.numpy_types import Array
from sparsegen.tuning_db.records import Tuned, Workload

OTHER_EPILOGUE = 0.5  # distance added for another of the near traits; an epilogue touches the result once
OTHER_DEVICE = 1.0  # distance added; same compute capability, another chip


class Neighbour(NamedTuple):
    """A measured workload and its distance in octaves (a factor of two in one feature is about one)."""

    workload: Workload
    device: Device
    distance: float


def position(problem: Problem, features: Features) -> Array:
    """The workload's place in feature space: float64, in octaves."""
    return np.array(_place(problem, features))


def _place(problem: Problem, features: Features) -> tuple[float, ...]:
    log2 = math.log2
    return (
        log2(features.m + 1),  # with the dense sizes it determines the number of tiles
        0.5 * log2(features.k + 1),
        *(log2(getattr(problem, name)) for name in problem.dense_sizes),
        *(place for value in problem.parameters.values() for place in value.octaves),
        0.5 * log2(problem.batch),  # more tiles of the same kind: they change little once a device is full
        0.5 * log2(features.nnz + 1),
        log2(features.row_mean + 1),
        features.row_cov,
        0.5 * log2(features.row_max + 1),
        0.5 * log2(1e-3 + features.block_fill),
    )


class Places(NamedTuple):
    """Places of the measured workloads of one kind (see `Problem.kind`), independent of the question.

    Attributes:
        tuned: the workloads on which something ran.
        octaves: float64 [workloads, dimensions].
        traits: the different traits, and ``traits_of``, int64 [workloads], an index into them for each workload.
        devices: the key of each workload's device.
    """

    tuned: Sequence[Tuned]
    octaves: Array
    traits: Sequence[dict[str, StrEnum]]
    traits_of: Array
    devices: Array

    @classmethod
    def of(cls, kind: tuple[str, ...], known: Sequence[Tuned]) -> Places:
        """The places of those of this kind."""
        kinds = {problem: problem.kind == kind for problem in {t.workload.problem for t in known}}
        tuned = [t for t in known if t.ok and kinds[t.workload.problem]]
        traits: list[dict[str, StrEnum]] = []
        number: dict[Problem, int] = {}
        for problem in (problem for problem, is_alike in kinds.items() if is_alike):
            mine = problem.traits
            if mine not in traits:
                traits.append(mine)
            number[problem] = traits.index(mine)
        return cls(
            tuned,
            np.array([_place(t.workload.problem, t.workload.features) for t in tuned]),
            traits,
            np.array([number[t.workload.problem] for t in tuned], dtype=np.int64),
            np.array([t.device.key for t in tuned]),
        )

    def nearest(self, problem: Problem, features: Features, device: Device) -> list[Neighbour]:
        """All of them, the nearest to a workload of their kind first."""
        if not self.tuned:
            return []
        traits = problem.traits
        apart = np.linalg.norm(self.octaves - position(problem, features), axis=1)
        other_epilogue = np.array([OTHER_EPILOGUE * (mine != traits) for mine in self.traits])
        apart += other_epilogue[self.traits_of] + OTHER_DEVICE * (self.devices != device.key)
        order = np.argsort(apart, kind="stable")
        return [
            Neighbour(self.tuned[i].workload, self.tuned[i].device, distance)
            for i, distance in zip(order.tolist(), apart[order].tolist(), strict=True)
        ]


def nearest(problem: Problem, features: Features, device: Device, known: Sequence[Tuned]) -> list[Neighbour]:
    """Measured workloads of the same kind, nearest first."""
    return Places.of(problem.kind, known).nearest(problem, features, device)
