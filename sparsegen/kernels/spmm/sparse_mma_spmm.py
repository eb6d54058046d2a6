"""SpMM for decoding: 16-bit weights with 2:4 sparsity times few tokens, on sparse tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from sparsegen.kernels.config import Value
from sparsegen.kernels.layouts.padding import empty_as_padding, stored_values
from sparsegen.kernels.layouts.sparse_mma import SparseMma, SparseMmaConfig
from sparsegen.kernels.layouts.two_four import pack
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import SpmmProblem
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True)
class SparseMmaSpmmConfig(SparseMmaConfig):
    """One point of the tuning space of `SparseMmaSpmm`."""


class SparseMmaSpmm(SparseMma[SpmmProblem, SparseMmaSpmmConfig]):
    """Values lie in fragments of the products, and go from shared memory to these as they are."""

    name = "sparse_mma_spmm"
    summary = "SpMM for few columns and 2:4 sparsity: 16-bit values for sparse tensor cores"
    entry = "sparse_mma_spmm"
    packed_names = ("values", "metadata")
    problem_type = SpmmProblem
    config_type = SparseMmaSpmmConfig

    def value_bits(self, problem: SpmmProblem) -> int:
        return 16

    def group_columns(self, problem: SpmmProblem) -> int:
        return 0

    def constants(self, problem: SpmmProblem, config: SparseMmaSpmmConfig) -> Mapping[str, Value]:
        return {**super().constants(problem, config), "quantized": False}

    def pack(self, problem: SpmmProblem, config: SparseMmaSpmmConfig, matrix: CsrMatrix) -> Packed[Array]:
        units = pack(matrix, np.arange(matrix.nnz, dtype=np.int32), -1, bits=16, paired=True)
        source = empty_as_padding(units.codes)
        return Packed(
            arrays={
                "values": stored_values(matrix, source, problem.dtype),
                "metadata": empty_as_one(units.metadata),
            },
            sizes={"layers": units.layers},
            nnz=matrix.nnz,
            values="values",
            value_source=partial(np.asarray, source),
            scratch=self.scratch(problem, config),
        )


FAMILY = SparseMmaSpmm()
