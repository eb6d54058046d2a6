"""Shared parts of the families of sampled products: the matrix's values count only where they scale the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np

from sparsegen.kernels.base import Constraint, Family
from sparsegen.kernels.config import Config
from sparsegen.kernels.launch import Argument
from sparsegen.kernels.layouts.batches import batch_in_grid
from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import SddmmEpilogue, SddmmProblem

VALUES = "values"  # the packed array that only a scaled result needs

C = TypeVar("C", bound=Config)


class SampledProduct(Family[SddmmProblem, C]):
    """A family of sddmm whose last packed array is `VALUES`, in CSR order, and whose grid has the batch along z."""

    def batch_size_names(self, problem: SddmmProblem) -> tuple[str, ...]:
        """SIZE parameters that give the strides of batch elements' A, B and D, but for k and those in `size_names`."""
        if problem.batch == 1:
            return ()
        return tuple(name for name in ("m", "n", "nnz") if name not in self.size_names)

    def scope(self, problem: SddmmProblem) -> Iterator[Constraint]:
        yield batch_in_grid(problem)

    def arguments(self, problem: SddmmProblem) -> tuple[Argument, ...]:
        """The arguments of all such products, but values only where they scale the result."""
        scales = problem.epilogue is SddmmEpilogue.SCALE
        return tuple(a for a in super().arguments(problem) if scales or a.name != VALUES)

    @staticmethod
    def with_values(
        problem: SddmmProblem, matrix: CsrMatrix, arrays: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> Packed[Array]:
        """The packed pattern, and the values if they scale the result."""
        if problem.epilogue is not SddmmEpilogue.SCALE:
            return Packed(arrays, sizes, matrix.nnz)
        values = empty_as_one(problem.dtype.to_storage(matrix.values))
        source = empty_as_padding(np.arange(matrix.nnz, dtype=np.int32))
        return Packed({**arrays, VALUES: values}, sizes, matrix.nnz, VALUES, lambda: source)
