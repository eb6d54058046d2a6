"""The useful work of one call, which no kernel can do without."""

from __future__ import annotations

from typing import NamedTuple

from sparsegen.system.integers import ceil_div


class Cost(NamedTuple):
    """Useful work of one call: floating-point operations and the fewest bytes moved (each operand once)."""

    flop: int
    bytes: int


def matrix_bytes(rows: int, columns: int, nnz: int, value_bytes: int) -> int:
    """Fewest bytes of a sparse matrix with values of this size (0: a pattern).

    Its places are as in CSR with 32-bit indices, or one bit each, where that is less.
    """
    return nnz * value_bytes + min(4 * (nnz + rows + 1), ceil_div(rows * columns, 8))
