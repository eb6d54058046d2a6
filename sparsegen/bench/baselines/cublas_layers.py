"""A network layer by layer by dense products of cuBLAS, which PyTorch calls; the layers have their zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._layers import Layer, LayerByLayer, Products
from sparsegen.bench.baselines._torch import nbytes, open_torch, to_tensor
from sparsegen.bench.baselines.cublas import LARGEST_DENSE_BYTES
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem, SparseNetworkProblem


class CublasLayers(LayerByLayer):
    name, kind = "cublas-layers", Kind.DENSE

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if isinstance(problem, SparseNetworkProblem):
            size = problem.m * problem.neurons * problem.dtype.itemsize
            if size > LARGEST_DENSE_BYTES:
                return f"the dense layers would take {size / 2**30:.0f} GiB"
        return super().why_not(problem, features)

    def open(self, executor: Executor) -> Mapping[str, str]:
        return open_torch(executor)

    def products(self, bench: Workbench, layers: Sequence[Layer]) -> Iterator[Products]:
        dtype = bench.problem.dtype
        made = [to_tensor(dtype.to_storage(layer.matrix.to_dense()), dtype) for layer in layers]
        yield Products("with its zeros", [weights.matmul for weights in made], nbytes(*made))


BASELINE = CublasLayers()
