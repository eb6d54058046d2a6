"""A dense matrix plus a CSR one, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators.dense_sparse_add import DenseSparseAddProblem


@dataclass(frozen=True)
class CsrDenseAddConfig(Config):
    """One point of the tuning space of `CsrDenseAdd`."""

    threads: int = tunable(128, (32, 64, 128, 256), "threads of a block, which has a row")


class CsrDenseAdd(Family[DenseSparseAddProblem, CsrDenseAddConfig]):
    """A block copies its row of B, and writes the elements at the row's nonzeros again."""

    name = "csr_dense_add"
    summary = "a dense matrix plus a CSR one, a block for each row"
    source = "no paper: two loops"
    size_names = ("k",)
    packed_names = ("row_offsets", "column_indices", "values")

    def scope(self, problem: DenseSparseAddProblem) -> Iterator[Constraint]:
        yield one_batch_element(problem)

    def constraints(
        self, problem: DenseSparseAddProblem, config: CsrDenseAddConfig, device: Device
    ) -> Iterator[Constraint]:
        yield from self.scope(problem)

    def constants(self, problem: DenseSparseAddProblem, config: CsrDenseAddConfig) -> Mapping[str, Value]:
        return {"dtype": problem.dtype.value, "sign": problem.sign.value}

    def pack(
        self, problem: DenseSparseAddProblem, config: CsrDenseAddConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        arrays = {
            "row_offsets": np.array(matrix.row_offsets),
            "column_indices": empty_as_one(matrix.column_indices),
            "values": empty_as_one(problem.dtype.to_storage(matrix.values)),
        }
        source = empty_as_padding(np.arange(matrix.nnz, dtype=np.int32))
        return Packed(arrays, {}, matrix.nnz, "values", lambda: source)

    def launch(
        self,
        problem: DenseSparseAddProblem,
        config: CsrDenseAddConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch((problem.m, 1, 1), (config.threads, 1, 1))

    def heuristic(
        self, problem: DenseSparseAddProblem, features: Features, device: Device
    ) -> CsrDenseAddConfig:
        return CsrDenseAddConfig()

    def analytic_us(
        self, problem: DenseSparseAddProblem, features: Features, config: CsrDenseAddConfig, device: Device
    ) -> float:
        rates = device.expected_rates
        return rates.launch_us + problem.cost(features.nnz).bytes / rates.copy_bytes_per_us


FAMILY = CsrDenseAdd()
