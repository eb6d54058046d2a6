"""PyTorch's products of a network's layers: weights with their zeros by cuBLAS, and as CSR."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._layers import Layer, LayerByLayer, Products
from sparsegen.bench.baselines._torch import TorchBaseline, import_torch, nbytes, to_tensor
from sparsegen.bench.baselines.cublas import LARGEST_DENSE_BYTES
from sparsegen.bench.results.results import Kind
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, Problem, SparseNetworkProblem


@dataclass(frozen=True)
class TorchLayers(LayerByLayer, TorchBaseline):
    """Layers by `Tensor.matmul`.

    Attributes:
        stored: a layer's weights as PyTorch multiplies them, and their bytes.
    """

    name: str
    kind: Kind
    detail: str
    stored: Callable[[CsrMatrix, DType], tuple[Any, int]]

    def why_not(self, problem: Problem, features: Features) -> str | None:
        if self.kind is Kind.DENSE and isinstance(problem, SparseNetworkProblem):
            size = problem.m * problem.neurons * problem.dtype.itemsize
            if size > LARGEST_DENSE_BYTES:
                return f"the dense layers would take {size / 2**30:.0f} GiB"
        return super().why_not(problem, features)

    def products(self, bench: Workbench, layers: Sequence[Layer]) -> Iterator[Products]:
        made = [self.stored(layer.matrix, bench.problem.dtype) for layer in layers]
        yield Products(self.detail, [weights.matmul for weights, _ in made], sum(size for _, size in made))


def dense(matrix: CsrMatrix, dtype: DType) -> tuple[Any, int]:
    """Weights with their zeros."""
    weights = to_tensor(dtype.to_storage(matrix.to_dense()), dtype)
    return weights, nbytes(weights)


def as_csr(matrix: CsrMatrix, dtype: DType) -> tuple[Any, int]:
    """Weights in compressed sparse rows."""
    values = to_tensor(dtype.to_storage(matrix.values), dtype)
    parts = to_tensor(matrix.row_offsets), to_tensor(matrix.column_indices), values
    tensor = import_torch().sparse_csr_tensor(*parts, size=matrix.shape, check_invariants=False)
    return tensor, nbytes(*parts)


BASELINES = (
    TorchLayers("cublas-layers", Kind.DENSE, "with its zeros", dense),
    TorchLayers("torch-csr-layers", Kind.SPARSE, "CSR", as_csr),
)
