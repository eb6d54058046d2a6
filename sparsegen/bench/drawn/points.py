"""Submanifold convolutions of points, and their gradients by the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sparsegen.bench.drawn.distribution import Distribution, Row
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.patterns import Drawn
from sparsegen.operators import (
    Density,
    DType,
    FilterVolume,
    PointsProblem,
    Problem,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)

VOLUMES = ((3, 3, 3), (1, 3, 3), (3, 1, 1), (5, 5, 5), (1, 1, 1))


class Points(Distribution):
    """Distribution of convolutions of points, shared by both operators."""

    kind: type[PointsProblem]
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "2000 to 300000 points, 3 to 256 channels and 8 to 256 filters",
        "filters": "3 × 3 × 3 in seven of ten, else 1 × 3 × 3, 3 × 1 × 1, 5 × 5 × 5, 1 × 1 × 1; .08 to .7 of "
        "the taps meet a point "
        "(points at random in a cube)",
        "types": "float16 in half of the rows, bfloat16, float32",
    }

    def drawn(self, draw: Draw) -> Row:
        points = draw.size(2000, 300_000)
        problem = self.kind(
            points,
            4 if draw.chance(0.1) else draw.size(9, 256),
            draw.size(9, 256),
            draw.one_of(list(DType), (1, 2, 1)),
            FilterVolume(*draw.one_of(VOLUMES, (7, 1, 0.8, 0.6, 0.6))),
            Density(draw.share(0.08, 0.7)),
        )
        return problem, Drawn(*problem.matrix_shape), "random points"

    def dense_flop(self, problem: Problem) -> float:
        """Counts all taps of all points: there is no dense computation."""
        assert isinstance(problem, PointsProblem)
        return 2.0 * problem.points * problem.channels * problem.filters * problem.filter_volume.taps


class Submanifold(Points):
    operator: ClassVar[str] = SubmanifoldConv3dProblem.operator
    kind = SubmanifoldConv3dProblem


class SubmanifoldWeights(Points):
    operator: ClassVar[str] = SubmanifoldConv3dWeightsProblem.operator
    kind = SubmanifoldConv3dWeightsProblem


DISTRIBUTIONS = (Submanifold(), SubmanifoldWeights())
