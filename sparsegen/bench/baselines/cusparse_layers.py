"""A network layer by layer by cuSPARSE's SpMM: each of its algorithms; PyTorch does what is between the products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._layers import Layer, LayerByLayer, Multiply, Products
from sparsegen.bench.baselines._torch import import_torch, open_torch, place
from sparsegen.bench.baselines._vendor import cuda, require_library
from sparsegen.bench.results.results import Kind
from sparsegen.measure.baselines import cusparse
from sparsegen.measure.baselines.libraries import Handle, VendorError
from sparsegen.operators import SparseNetworkProblem
from sparsegen.system.device_memory import Address, Buffer


class CusparseLayers(LayerByLayer):
    name, kind = "cusparse-layers", Kind.SPARSE

    def open(self, executor: Executor) -> Mapping[str, str]:
        require_library("cusparse")
        versions = open_torch(executor)
        return {"cusparse": cusparse.version(cusparse.open_handle()), **versions}

    def products(self, bench: Workbench, layers: Sequence[Layer]) -> Iterator[Products]:
        problem, handle = bench.problem_as(SparseNetworkProblem), cusparse.open_handle()
        stored = [_stored(bench, layer) for layer in layers]
        # Layers take turns with two tensors; each product's descriptors name the one it reads and the one it writes.
        torch = import_torch()
        most = max((layer.matrix.shape[0] for layer in layers), default=0)
        rows = max(most, problem.neurons)
        kind = getattr(torch, str(problem.dtype))
        sides = [torch.empty((rows, problem.n), dtype=kind, device=place()) for _ in range(2)]
        memory = sum(buffer.nbytes for arrays in stored for buffer in arrays)
        for algorithm, code in cusparse.CSR_ALGORITHMS.items():
            try:
                made = [
                    _product(bench, handle, layer, arrays, sides[i % 2], sides[1 - i % 2], code)
                    for i, (layer, arrays) in enumerate(zip(layers, stored, strict=True))
                ]
            except VendorError:
                continue
            yield Products(
                f"CSR {algorithm}, row-major",
                [multiply for multiply, _ in made],
                memory + sum(workspace for _, workspace in made),
            )


def _stored(bench: Workbench, layer: Layer) -> tuple[Buffer, Buffer, Buffer]:
    matrix, dtype = layer.matrix, bench.problem.dtype
    arrays = (matrix.row_offsets, matrix.column_indices, dtype.to_storage(matrix.values))
    offsets, columns, values = (bench.executor.upload(array) for array in arrays)
    return offsets, columns, values


def _product(
    bench: Workbench,
    handle: Handle,
    layer: Layer,
    arrays: tuple[Buffer, Buffer, Buffer],
    before: Any,
    after: Any,
    code: int,
) -> tuple[Multiply, int]:
    """A layer's product from one tensor to the other, and the bytes of its workspace."""
    (rows, columns), n, dtype = (
        layer.matrix.shape,
        bench.problem_as(SparseNetworkProblem).n,
        bench.problem.dtype,
    )
    dense_b, dense_c = (
        cusparse.dense_descriptor(
            handle,
            (count, n),
            cusparse.ROW_ORDER,
            Address(side.data_ptr(), side.numel() * dtype.itemsize),
            dtype,
        )
        for count, side in ((columns, before), (rows, after))
    )
    sparse = cusparse.csr_descriptor(handle, layer.matrix.shape, arrays, layer.matrix.nnz, dtype)
    run, workspace = cusparse.product(cuda(bench), handle, sparse, dense_b, dense_c, code)
    return from_to(run, before, after[:rows], arrays), workspace.nbytes


def from_to(run: Callable[[], None], before: Any, after: Any, arrays: Sequence[Buffer]) -> Multiply:
    """The product as a function of what is copied to its place where it is not there yet, as the inputs are not.

    Args:
        arrays: arrays that the product reads by address alone, and that therefore live as long as the function.
    """

    def multiply(neurons: Any, arrays: Sequence[Buffer] = arrays) -> Any:
        if neurons.data_ptr() != before.data_ptr():
            before[: neurons.shape[0]].copy_(neurons)
        run()
        return after

    return multiply


BASELINES = (CusparseLayers(),)
