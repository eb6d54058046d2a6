"""Masked products as one product A · B, whichever operand the mask covers."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.config import Value
from sparsegen.operators import DsdProblem, DsdTransposedProblem, Layout, MaskedProblem, Rest, SddProblem
from sparsegen.system.integers import ceil_div


@dataclass(frozen=True, slots=True)
class Side:
    """A masked product as A · B.

    Attributes:
        rows, columns, inner: the result's rows and columns, and the length of the contraction.
        row_block, inner_block: the sides of a mask block along the result's rows and along the contraction; in a
            sampled product, the second one is along the result's columns.
        a_by_inner, b_by_inner: true if A and B are contiguous along the contraction.
        samples: true if the mask covers the result.
        transposes: true if the mask's columns correspond to the result's rows.
        by_columns: true if the result is stored in column-major order.
        fills: true if dead blocks of a sampled result are filled with zeros, not left as they were.
    """

    rows: int
    columns: int
    inner: int
    row_block: int
    inner_block: int
    a_by_inner: bool
    b_by_inner: bool
    samples: bool = False
    transposes: bool = False
    by_columns: bool = False
    fills: bool = True

    @classmethod
    def of(cls, problem: MaskedProblem) -> Side:
        """An operator's problem as a product."""
        p, block = problem, problem.block
        if isinstance(p, DsdProblem):
            return cls(p.m, p.n, p.k, block.rows, block.columns, True, p.w_layout is Layout.COLUMN)
        if isinstance(p, SddProblem):
            by_inner = p.w_layout is Layout.ROW
            fills = p.rest is Rest.FILLED
            return cls(p.m, p.k, p.n, block.rows, block.columns, True, by_inner, samples=True, fills=fills)
        assert isinstance(p, DsdTransposedProblem)
        by_columns = p.y_layout is Layout.COLUMN
        return cls(
            p.k, p.n, p.m, block.columns, block.rows, False, False, transposes=True, by_columns=by_columns
        )

    @property
    def constants(self) -> dict[str, Value]:
        """Returns the constants of every template: block sizes of the mask, and the orientation of A and B."""
        return {
            "row_block": self.row_block,
            "inner_block": self.inner_block,
            "a_by_inner": self.a_by_inner,
            "b_by_inner": self.b_by_inner,
        }

    @property
    def by_lines(self) -> bool:
        """True if the pairs of results in a thread are none in memory; they are stored by way of shared memory."""
        return self.by_columns or self.columns % 2 == 1

    @property
    def mask_rows(self) -> int:
        """The number of mask blocks along the result's rows."""
        return ceil_div(self.rows, self.row_block)
