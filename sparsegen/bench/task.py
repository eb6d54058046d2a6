"""What one row of a benchmark computes: operator, sizes, dtype, layout; its operands, result and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparsegen.bench.case import Case, Operator
from sparsegen.errors import SuiteError
from sparsegen.operators import Cost, DType, Layout, Problem, SddmmProblem, SpmmProblem


@dataclass(frozen=True, slots=True)
class Task:
    """One case in one dtype.

    ``spmm``: C[m, n] = A[m, k] · B[k, n] with A sparse, B and C in the layout. ``sddmm``: the product of A
    (m × k, row-major) and B (k × n, column-major: stored n × k, as the keys of an attention are) at the
    nonzeros of a pattern m × n; the result is its nnz values in CSR order, and the pattern's own values play
    no part. The items of a batch share the sparse matrix, values included.

    Raises:
        SuiteError: sddmm with a row-major B.
    """

    operator: Operator
    m: int
    k: int
    n: int
    dtype: DType
    layout: Layout
    batch: int = 1

    def __post_init__(self) -> None:
        if self.operator is Operator.SDDMM and self.layout is not Layout.COLUMN:
            raise SuiteError("sddmm is measured with B column-major (n × k as stored); say layout column")

    @classmethod
    def of(cls, case: Case, dtype: DType) -> Task:
        return cls(case.operator, case.m, case.k, case.n, dtype, case.layout, case.batch)

    @property
    def problem(self) -> Problem:
        """The same as a problem of `sparsegen.operators`."""
        if self.operator is Operator.SDDMM:
            return SddmmProblem(self.m, self.n, self.k, self.dtype, batch=self.batch)
        return self.spmm

    @property
    def spmm(self) -> SpmmProblem:
        """`problem`, for contenders that compute ``spmm`` alone."""
        assert self.operator is Operator.SPMM
        return SpmmProblem(self.m, self.k, self.n, self.dtype, self.layout, batch=self.batch)

    @property
    def item(self) -> Task:
        """The task of one item."""
        return replace(self, batch=1)

    @property
    def operand_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The dense inputs by name, as stored (row-major)."""
        return {spec.name: spec.shape for spec in self.problem.operands(0)}  # whose shapes know no nonzeros

    def result_shape(self, nnz: int) -> tuple[int, ...]:
        """As stored."""
        return self.problem.result(nnz).shape

    def cost(self, nnz: int) -> Cost:
        """Useful FLOP and the fewest bytes: every operand once, the pattern as CSR with 32-bit indices or bits."""
        return self.problem.cost(nnz)
