"""The steps of one head's attention, each written to a given tensor: by sparsegen's kernels, or by PyTorch alone."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sparsegen.integrations.torch import plain
from sparsegen.integrations.torch.pattern import Product, SparsePattern, kernel_device
from sparsegen.integrations.torch.prepared import Prepared


class Steps(Protocol):
    """Dense operands are contiguous, rows × width; values have one for each nonzero, in CSR order."""

    def scores(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """(A · Bᵀ) at the pattern."""

    def softmax(self, values: Tensor, out: Tensor) -> None:
        """The softmax of scale · values over each row; ``out`` may be the values."""

    def softmax_backward(self, y: Tensor, dy: Tensor, out: Tensor) -> None:
        """Its gradient with respect to the values, where it gave y; ``out`` may be dy."""

    def weighted(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        """W · B."""

    def weighted_transposed(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        """Wᵀ · B."""


def steps(pattern: SparsePattern, like: Tensor, scale: float) -> Steps:
    """Those that run for tensors like this one, heads × rows × width."""
    if kernel_device(like) is None:
        return PlainSteps(pattern, scale)
    return KernelSteps(pattern, like, scale)


class KernelSteps:
    """By prepared operators of the pattern; each is looked up when it is first called."""

    def __init__(self, pattern: SparsePattern, like: Tensor, scale: float) -> None:
        self._pattern, self._like, self._scale = pattern, like, scale
        self._width = like.shape[-1]

    def _prepared(self, product: Product) -> Prepared:
        if product in (Product.SOFTMAX, Product.SOFTMAX_BACKWARD):
            found = self._pattern.prepared(product, 0, self._like, scale=self._scale)
        else:
            found = self._pattern.prepared(product, self._width, self._like)
        assert found is not None  # `steps` asked
        return found

    def scores(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        self._prepared(Product.SAMPLED)(a, b, out=out)

    def softmax(self, values: Tensor, out: Tensor) -> None:
        self._prepared(Product.SOFTMAX)(values, out=out)

    def softmax_backward(self, y: Tensor, dy: Tensor, out: Tensor) -> None:
        self._prepared(Product.SOFTMAX_BACKWARD)(y, dy, out=out)

    def weighted(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        self._prepared(Product.WEIGHTED)(b, values=values, out=out)

    def weighted_transposed(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        self._prepared(Product.WEIGHTED_TRANSPOSED)(b, values=values, out=out)


class PlainSteps:
    """By `plain`."""

    def __init__(self, pattern: SparsePattern, scale: float) -> None:
        self._pattern, self._scale = pattern, scale

    def scores(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        out.copy_(plain.sampled(self._pattern, a.t(), b.t()))

    def softmax(self, values: Tensor, out: Tensor) -> None:
        out.copy_(plain.softmax(self._pattern, values, self._scale))

    def softmax_backward(self, y: Tensor, dy: Tensor, out: Tensor) -> None:
        out.copy_(plain.softmax_backward(self._pattern, y, dy, self._scale))

    def weighted(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        out.copy_(plain.product(self._pattern, b.t(), values).t())

    def weighted_transposed(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        out.copy_(plain.product(self._pattern, b.t(), values, transposed=True).t())
