"""A matrix as it is, in CSR: for families that lay nothing out."""

from __future__ import annotations

import numpy as np

from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import Problem


def packed_csr(problem: Problem, matrix: CsrMatrix) -> Packed[Array]:
    """The packed arrays ``row_offsets`` and ``column_indices`` (int32) and ``values`` (the problem's dtype)."""
    source = empty_as_padding(np.arange(matrix.nnz, dtype=np.int32))
    return Packed(
        arrays={
            "row_offsets": np.array(matrix.row_offsets),
            "column_indices": empty_as_one(matrix.column_indices),
            "values": empty_as_one(problem.dtype.to_storage(matrix.values)),
        },
        sizes={},
        nnz=matrix.nnz,
        values="values",
        value_source=lambda: source,
    )
