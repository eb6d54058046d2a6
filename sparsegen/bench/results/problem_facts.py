"""Facts about a problem of any operator, for listings, tables and keys of rows."""

from __future__ import annotations

from sparsegen.operators import DType, Epilogue, FactorType, ImageLayout, Layout, Problem


def layout_of(problem: Problem) -> Layout | ImageLayout:
    """Returns a problem's layout, of matrices or of images.

    It is column-major for problems without a layout: B of an SDDMM is column-major, a softmax has no B.
    """
    layout = problem.traits.get("layout", Layout.COLUMN)
    assert isinstance(layout, Layout | ImageLayout)
    return layout


def in_order(layout: Layout | ImageLayout) -> str:
    """The layout in words: ``row-major``, ``nhwc``."""
    return f"{layout}-major" if isinstance(layout, Layout) else layout.value


def factor_type_of(problem: Problem) -> FactorType:
    """The types of the dense operands that it multiplies: the result's, unless it has another pair to tell."""
    return FactorType(problem.traits.get("factor_type", FactorType.SAME))


def of_factors(factor_type: FactorType, result: str) -> str:
    """The types of a product in words, with the result's name: ``fp16``, or ``e4m3 → fp16`` of 8-bit operands."""
    return result if factor_type is FactorType.SAME else f"{factor_type} → {result}"


class HasProblem:
    """Facts of the ``problem`` that something is about; a size that its operator lacks is 0."""

    __slots__ = ()

    problem: Problem

    @property
    def operator(self) -> str:
        return self.problem.operator

    @property
    def dtype(self) -> DType:
        return self.problem.dtype

    @property
    def factor_type(self) -> FactorType:
        """See `factor_type_of`."""
        return factor_type_of(self.problem)

    @property
    def layout(self) -> Layout | ImageLayout:
        """See `layout_of`."""
        return layout_of(self.problem)

    @property
    def m(self) -> int:
        return self.problem.sizes.get("m", 0)

    @property
    def k(self) -> int:
        return self.problem.sizes.get("k", 0)

    @property
    def n(self) -> int:
        return self.problem.sizes.get("n", 0)

    @property
    def batch(self) -> int:
        """Batch elements that a call computes."""
        return self.problem.batch

    @property
    def epilogue(self) -> str:
        return str(self.problem.traits.get("epilogue", Epilogue.NONE))
