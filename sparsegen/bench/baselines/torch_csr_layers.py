"""A network layer by layer by PyTorch's products of compressed sparse rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._layers import Layer, LayerByLayer, Products
from sparsegen.bench.baselines._torch import import_torch, nbytes, open_torch, to_tensor
from sparsegen.bench.results.results import Kind


class TorchCsrLayers(LayerByLayer):
    name, kind = "torch-csr-layers", Kind.SPARSE

    def open(self, executor: Executor) -> Mapping[str, str]:
        return open_torch(executor)

    def products(self, bench: Workbench, layers: Sequence[Layer]) -> Iterator[Products]:
        torch, dtype, memory = import_torch(), bench.problem.dtype, 0
        made = []
        for layer in layers:
            matrix = layer.matrix
            parts = (
                to_tensor(matrix.row_offsets),
                to_tensor(matrix.column_indices),
                to_tensor(dtype.to_storage(matrix.values), dtype),
            )
            memory += nbytes(*parts)
            made.append(torch.sparse_csr_tensor(*parts, size=matrix.shape, check_invariants=False))
        yield Products("CSR", [weights.matmul for weights in made], memory)


BASELINE = TorchCsrLayers()
