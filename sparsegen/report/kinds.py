"""Kinds of workloads that may share a chart: an operator, the types of its elements, and a layout."""

from __future__ import annotations

from typing import NamedTuple, Self

from sparsegen.bench.results.problem_facts import factor_type_of, in_order, layout_of, of_factors
from sparsegen.operators import OPERATORS, DType, FactorType, ImageLayout, Layout, Problem
from sparsegen.report import words


class Kind(NamedTuple):
    """Common properties of the workloads of one chart.

    Attributes:
        dtype: the result's type.
        factor_type: type of the dense operands that are multiplied.
    """

    operator: str
    dtype: DType
    factor_type: FactorType
    layout: Layout | ImageLayout

    @classmethod
    def of(cls, problem: Problem) -> Self:
        return cls(problem.operator, problem.dtype, factor_type_of(problem), layout_of(problem))

    @property
    def slug(self) -> str:
        """The kind as it stands in names of files and anchors."""
        factors = [] if self.factor_type is FactorType.SAME else [self.factor_type]
        return "-".join(map(str, (self.operator, *factors, self.dtype, self.layout)))

    def __str__(self) -> str:
        """``SpMM fp16, column-major``."""
        known = OPERATORS.get(self.operator)
        order = f", {in_order(self.layout)}" if known is not None and known.multiplies_by_b else ""
        types = of_factors(self.factor_type, words.DTYPES[self.dtype])
        return f"{self.operator if known is None else known.title} {types}{order}"
