"""Shared parts of the baselines that compute a network layer by layer: PyTorch adds biases, activates and reads out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsegen.bench.baseline.baseline import Baseline, Implementation, Stopwatch
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._torch import TensorResult, import_torch, nbytes, to_tensor, wait
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Problem, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation, largest
from sparsegen.system.numpy_types import Array

Multiply = Callable[[Any], Any]  # neurons × inputs before a layer → the layer's sums, a new tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as matrix and bias.

    Attributes:
        matrix: its neurons × the neurons before; values that the dtype holds.
        bias: float32, one for each neuron.
    """

    matrix: CsrMatrix
    bias: Array


@dataclass(frozen=True, slots=True)
class Products:
    """A library's products of all layers.

    Attributes:
        detail: description of the layers.
        multiply: products of each layer.
        memory_bytes: bytes that they keep on the device for the layers.
    """

    detail: str
    multiply: Sequence[Multiply]
    memory_bytes: int


class LayerByLayer(Baseline):
    """A call computes the whole network: each layer's product, then bias and activation in place, then the readout.

    Neurons are neurons × inputs between layers, as sparse × dense products want them; a call turns its inputs round.
    Inputs that died are computed on. Implementations are ranked by their first layer: some take a minute for all.
    """

    operators: tuple[type[Problem], ...] = (SparseNetworkProblem,)

    @abstractmethod
    def products(self, bench: Workbench, layers: Sequence[Layer]) -> Iterator[Products]:
        """Every implementation that the library has for the products of all layers."""

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        problem = bench.problem_as(SparseNetworkProblem)
        y = to_tensor(bench.operand("y"), problem.dtype)
        clip = min(float(bench.operand("clip")[0]), largest(problem.dtype))
        limit = float(problem.dtype.rounded(np.array([clip]))[0])
        least = -limit if problem.activation is Activation.NONE else 0.0
        spec = problem.result(bench.features.nnz)
        assert isinstance(spec.dtype, DType)
        result = TensorResult(bench, spec.shape, spec.dtype)
        watch = Stopwatch()
        layers = list(layers_of(problem, bench.matrix))
        biases = [to_tensor(layer.bias[:, None]) for layer in layers]
        turned = y.t().contiguous()
        shared_ms = watch.lap()
        for found in self.products(bench, layers):
            wait()
            elapsed = shared_ms + watch.lap()

            def run(multiply: Sequence[Multiply] = found.multiply) -> None:
                neurons = y.t().contiguous()
                for product, bias in zip(multiply, biases, strict=True):
                    neurons = product(neurons)
                    neurons.add_(bias).clamp_(least, limit)
                if problem.readout is Readout.TOTALS:
                    result.tensor = neurons.sum(dim=0, dtype=import_torch().float32)
                else:
                    result.tensor = neurons.t().contiguous()

            memory = found.memory_bytes + nbytes(*biases)
            first = partial(found.multiply[0], turned) if layers else None
            yield Implementation(
                found.detail,
                run,
                result.clear,
                result.read,
                elapsed,
                memory,
                part=first,
                parts=max(1, len(layers)),
            )
            watch.lap()


def layers_of(problem: SparseNetworkProblem, matrix: CsrMatrix) -> Iterator[Layer]:
    """A network's layers, one after another."""
    for weights, bias in problem.real_layers(matrix):
        offsets, columns = (array.astype(np.int32) for array in (weights.indptr, weights.indices))
        yield Layer(
            CsrMatrix(weights.shape, offsets, columns, weights.data.astype(np.float32)),
            bias.astype(np.float32),
        )
