"""What one row of a benchmark computes: operator, sizes, dtype, layout; its operands, result and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsegen.bench.case import Case, Operator
from sparsegen.errors import SuiteError
from sparsegen.operators import Cost, DType, Layout, Problem, SddmmProblem, SpmmProblem


@dataclass(frozen=True, slots=True)
class Task:
    """One case in one dtype.

    ``spmm``: C[m, n] = A[m, k] · B[k, n] with A sparse, B and C in the layout. ``sddmm``: the product of A
    (m × k, row-major) and B (k × n, column-major: stored n × k, as the keys of an attention are) at the
    nonzeros of a pattern m × n; the result is its nnz values in CSR order, and the pattern's own values play
    no part.

    Raises:
        SuiteError: sddmm with a row-major B.
    """

    operator: Operator
    m: int
    k: int
    n: int
    dtype: DType
    layout: Layout

    def __post_init__(self) -> None:
        if self.operator is Operator.SDDMM and self.layout is not Layout.COLUMN:
            raise SuiteError("sddmm is measured with B column-major (n × k as stored); say layout column")

    @classmethod
    def of(cls, case: Case, dtype: DType) -> Task:
        return cls(case.operator, case.m, case.k, case.n, dtype, case.layout)

    @property
    def problem(self) -> Problem:
        """The same as a problem of `sparsegen.operators`."""
        if self.operator is Operator.SDDMM:
            return SddmmProblem(self.m, self.n, self.k, self.dtype)
        return self.spmm

    @property
    def spmm(self) -> SpmmProblem:
        """`problem`, for contenders that compute ``spmm`` alone."""
        assert self.operator is Operator.SPMM
        return SpmmProblem(self.m, self.k, self.n, self.dtype, self.layout)

    @property
    def operand_shapes(self) -> Mapping[str, tuple[int, int]]:
        """The dense inputs by name, as stored (row-major)."""
        operands = self.problem.operands(0)  # matrices: their shapes know no nonzeros
        return {spec.name: (spec.shape[0], spec.shape[1]) for spec in operands}

    def result_shape(self, nnz: int) -> tuple[int, ...]:
        """As stored."""
        return self.problem.result(nnz).shape

    def cost(self, nnz: int) -> Cost:
        """Useful FLOP and the fewest bytes: every operand once, the pattern as CSR with 32-bit indices."""
        return self.problem.cost(nnz)
