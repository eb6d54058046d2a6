"""The baseline kernel of the Sparse DNN Challenge's champions: CSR, and a thread for each output.

M. Hidayetoglu et al., At-Scale Sparse Deep Neural Network Inference With Efficient GPU Implementation, HPEC 2020,
listing 1. There the host lists the inputs that live between layers; here a block sees by itself whether its input died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sparsegen.backends.plain import THREADS
from sparsegen.bench.baseline.baseline import Implementation, OwnBaseline, Stopwatch
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._layers import layers_of
from sparsegen.bench.results.results import Kind
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.packed import empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Problem, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation, largest
from sparsegen.plan.plain_launcher import plain_launchers
from sparsegen.system.device_memory import WARP, Buffer
from sparsegen.system.integers import ceil_div

FILE = "csr_network.cu"
MOST_ROWS = 65535  # of a grid
FLOAT_BYTES = 4


class CsrNetwork(OwnBaseline):
    name, kind = "csr-network", Kind.SPARSE
    operators = (SparseNetworkProblem,)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if not isinstance(problem, SparseNetworkProblem):
            return "it computes sparse_network"
        if problem.dtype is not DType.FLOAT32:
            return "it computes float32"
        if problem.n > MOST_ROWS and problem.n % 2:
            return f"more than {MOST_ROWS} inputs must be an even number"
        return None if problem.layers else "it has no layer"

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        yield layer_by_layer(bench)


def layer_by_layer(bench: Workbench) -> Implementation:
    """A launch for each layer, between two buffers of neurons in turn, and one that adds up totals."""
    problem, executor = bench.problem_as(SparseNetworkProblem), bench.executor
    layer, totals = plain_launchers(executor, FILE, "csr_layer", "csr_totals")
    watch = Stopwatch()
    clip = min(float(bench.operand("clip")[0]), largest(problem.dtype))
    least = -clip if problem.activation is Activation.NONE else 0.0
    dying, adds_up = problem.activation is Activation.DYING_RELU, problem.readout is Readout.TOTALS
    result, grid = bench.result(), inputs_in_grid(problem.n)
    limits = executor.upload(np.array([least, clip], np.float32))
    sides = [executor.allocate(max(1, problem.n * problem.neurons) * FLOAT_BYTES) for _ in range(2)]
    flags = [executor.allocate(max(1, problem.n) * FLOAT_BYTES) for _ in range(2)]
    kept: list[Buffer] = [limits, *sides, *flags]
    launches: list[tuple[Callable[..., Any], Buffer]] = []
    before, alive = bench.upload("y"), flags[1]
    layers = list(layers_of(problem, bench.matrix))
    for number, one in enumerate(layers):
        ends = number == len(layers) - 1 and not adds_up
        after, lives = result.buffer if ends else sides[number % 2], flags[number % 2]
        width = problem.outputs if ends else problem.neurons
        bias = np.minimum(one.bias, 0) if dying else one.bias
        parts = (one.matrix.row_offsets, one.matrix.column_indices, one.matrix.values, bias)
        arrays = [executor.upload(empty_as_one(part)) for part in parts]
        kept += arrays
        sizes = [one.matrix.shape[0], problem.neurons, width, int(dying)]
        launch = Launch((ceil_div(max(1, width), THREADS), *grid), (THREADS, 1, 1))
        bound = layer.bind(launch, *sizes, *arrays, limits, before, alive, after, lives)
        launches.append((bound, lives))
        before, alive = after, lives
    adding = totals.bind(Launch((1, *grid), (WARP, 1, 1)), problem.neurons, before, result.buffer)

    def run(kept: list[Buffer] = kept) -> None:  # which launches know by address alone
        executor.fill(flags[1], 0xFF)  # all inputs live at first
        for launch, lives in launches:
            executor.fill(lives, 0)
            launch(0)
        if adds_up:
            adding(0)

    nbytes = sum(buffer.nbytes for buffer in kept)
    return Implementation("a launch for each layer", run, result.clear, result.read, watch.lap(), nbytes)


def inputs_in_grid(count: int) -> tuple[int, int]:
    """The second and third side of the grid for a number of inputs."""
    return (count, 1) if count <= MOST_ROWS else (count // 2, 2)


BASELINES = (CsrNetwork(),)
