"""Adversarial matrices of the contract tests."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy.sparse

from sparsegen.matrix.formats import Array, CsrMatrix


def csr(dense: Array) -> CsrMatrix:
    """The nonzeros of a dense float32 array."""
    found = scipy.sparse.csr_array(dense)
    found.sort_indices()
    return CsrMatrix(
        dense.shape,
        found.indptr.astype(np.int32),
        found.indices.astype(np.int32),
        found.data.astype(np.float32),
    )


def dense_blocks(m: int, k: int, size: int, share: float, empty: slice = slice(0)) -> CsrMatrix:
    """Random dense blocks, a share of all there could be; none in the rows ``empty``."""
    rng = np.random.default_rng(0)
    kept = np.kron(rng.random((m // size, k // size)) < share, np.ones((size, size)))
    kept[empty] = 0
    return csr(np.where(kept, rng.standard_normal((m, k)), 0).astype(np.float32))


@cache
def matrices() -> dict[str, CsrMatrix]:
    """Small matrices, each with a shape or a pattern that kernels get wrong."""
    rng = np.random.default_rng(7)

    def sparse(m: int, k: int, density: float) -> Array:
        values = rng.standard_normal((m, k)).astype(np.float32)
        return np.where(rng.random((m, k)) < density, values, np.float32(0))

    empty_rows = sparse(67, 50, 0.3)
    empty_rows[[0, 1, 17, 18, 19, 40, 65, 66]] = 0
    huge_row = sparse(9, 1100, 0.004)
    huge_row[4] = rng.standard_normal(1100)
    trailing_empty_columns = sparse(32, 300, 0.15)
    trailing_empty_columns[:, 140:] = 0
    uniform_rows = np.zeros((72, 96), dtype=np.float32)
    uniform_rows[np.arange(72)[:, None], rng.permuted(np.tile(np.arange(96), (72, 1)), axis=1)[:, :19]] = (
        rng.standard_normal((72, 19))
    )
    few_long_rows = sparse(80, 320, 0.03)
    few_long_rows[[5, 33, 34, 79], :150] = rng.standard_normal((4, 150))
    lengths = sparse(96, 90, 1.0)
    lengths[np.arange(90)[None, :] >= np.arange(96)[:, None]] = 0  # row i has i nonzeros
    return {
        "odd_shape": csr(sparse(37, 113, 0.2)),
        "aligned_shape": csr(sparse(64, 128, 0.1)),
        "empty_rows": csr(empty_rows),
        "huge_row": csr(huge_row),
        "no_nonzeros": csr(sparse(33, 40, 0.0)),
        "trailing_empty_columns": csr(trailing_empty_columns),
        "every_row_length": csr(lengths),
        "uniform_rows": csr(uniform_rows),
        "few_long_rows": csr(few_long_rows),
        "dense": csr(sparse(40, 72, 1.0)),
        "one_row": csr(sparse(1, 200, 0.5)),
        "one_column": csr(sparse(50, 1, 0.5)),
        "one_element": csr(np.ones((1, 1), dtype=np.float32)),
        "wide": csr(sparse(16, 2050, 0.02)),
        "no_rows": csr(sparse(0, 24, 0.5)),
        "no_columns": csr(sparse(24, 0, 0.5)),
    }
