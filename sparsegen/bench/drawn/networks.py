"""Networks of sparse layers that one call computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sparsegen.bench.drawn.distribution import Distribution, Row
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.layer_generators import BLOCK, Connections
from sparsegen.bench.patterns.patterns import Pattern, RandomLayers
from sparsegen.operators import DType, Problem, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import BIAS_COLUMNS

MOST_READ = 16  # a neuron reads on average at most one of this many neurons of a layer


class Networks(Distribution):
    operator: ClassVar[str] = SparseNetworkProblem.operator
    most_nonzeros: ClassVar[int] = 1 << 22  # the nonzeros are made layer by layer
    words: ClassVar[Mapping[str, str]] = {
        "sizes": "512 to 4096 neurons a layer, 12 to 120 layers, 64 to 8192 inputs",
        "pattern": "8 to 64 weights a neuron; scattered, in bands that wander from layer to layer, by a power "
        "law, in blocks of "
        "16 × 16; all inputs alive",
        "types": "float16 in three of four, bfloat16, float32; neurons or their sums read out; ReLU",
    }

    def drawn(self, draw: Draw) -> Row:
        connections = draw.one_of(list(Connections))
        step = BLOCK if connections is Connections.BLOCKS else 1
        neurons = draw.multiple(step, 512, 4096)
        layers = draw.whole(12, 120)
        per_row = min(neurons // MOST_READ, draw.whole(8, 64))
        pattern = RandomLayers(
            neurons * layers, neurons + BIAS_COLUMNS, neurons, layers, per_row, str(connections), draw.seed()
        )
        problem = SparseNetworkProblem(
            *pattern.shape,
            draw.size(64, 8192),
            draw.one_of(list(DType), (6, 1, 1)),
            readout=draw.one_of(list(Readout)),
        )
        return problem, pattern, f"{connections}, {layers} layers, {per_row} a row"

    def dense_flop(self, problem: Problem) -> float:
        assert isinstance(problem, SparseNetworkProblem)
        return (
            2.0 * problem.m * problem.neurons * problem.n / 8
        )  # at the tensor cores' rate; peers have no other

    def nonzeros(self, problem: Problem, pattern: Pattern) -> int:
        assert isinstance(pattern, RandomLayers)
        return problem.matrix_shape[0] * (pattern.per_row + BIAS_COLUMNS)


DISTRIBUTIONS = (Networks(),)
