"""The steps of attention for some heads at once, each written to a given tensor: by our kernels, or by PyTorch."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from sparsegen.integrations.torch.calls.dense_products import DensePrepared
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.prepared import Prepared
from sparsegen.integrations.torch.pattern import plain
from sparsegen.integrations.torch.pattern.pattern import Product, SparsePattern


class Steps(Protocol):
    """Dense operands are contiguous, heads × rows × head_dim; values heads × nonzeros, in CSR order."""

    def scores(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """(A · Bᵀ) at the pattern."""

    def softmax(self, values: Tensor, out: Tensor) -> None:
        """The softmax of scale · values over each row; ``out`` may be the values."""

    def softmax_backward(self, y: Tensor, dy: Tensor, out: Tensor) -> None:
        """Computes the softmax's gradient with respect to the values, given its result y; ``out`` may be dy."""

    def weighted(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        """W · B."""

    def weighted_transposed(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        """Wᵀ · B."""


def steps(pattern: SparsePattern, like: Tensor, scale: float, heads: int) -> Steps:
    """Returns the steps for ``heads`` heads at once of tensors like this one, ... × rows × head_dim."""
    if kernel_device(like) is None:
        return PlainSteps(pattern, scale)
    return KernelSteps(pattern, like, scale, heads)


class KernelSteps:
    """Runs prepared operators of the pattern, one launch for all heads; looks each up at its first call."""

    def __init__(self, pattern: SparsePattern, like: Tensor, scale: float, heads: int) -> None:
        self._pattern, self._like, self._scale, self._heads = pattern, like, scale, heads
        self._head_dim = like.shape[-1]

    def _prepared(self, product: Product) -> Prepared | DensePrepared:
        softmaxes = (Product.SOFTMAX, Product.SOFTMAX_BACKWARD)
        head_dim, scale = (0, self._scale) if product in softmaxes else (self._head_dim, 1.0)
        found = self._pattern.prepared(product, head_dim, self._like, scale=scale, batch=self._heads)
        assert found is not None  # `steps` asked
        return found

    def _run(self, product: Product, *operands: Tensor, out: Tensor, values: Tensor | None = None) -> None:
        if self._heads == 1:  # a batch of one has no dimension for it
            operands, out = tuple(t[0] for t in operands), out[0]
            values = None if values is None else values[0]
        self._prepared(product)(*operands, values=values, out=out)

    def scores(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        self._run(Product.SAMPLED, a, b, out=out)

    def softmax(self, values: Tensor, out: Tensor) -> None:
        self._run(Product.SOFTMAX, values, out=out)

    def softmax_backward(self, y: Tensor, dy: Tensor, out: Tensor) -> None:
        self._run(Product.SOFTMAX_BACKWARD, y, dy, out=out)

    def weighted(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        self._run(Product.WEIGHTED, b, values=values, out=out)

    def weighted_transposed(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        self._run(Product.WEIGHTED_TRANSPOSED, b, values=values, out=out)


class PlainSteps:
    """Runs `plain`, head after head."""

    def __init__(self, pattern: SparsePattern, scale: float) -> None:
        self._pattern, self._scale = pattern, scale

    def scores(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        for left, right, into in zip(a, b, out, strict=True):
            into.copy_(plain.sampled(self._pattern, left.t(), right.t()))

    def softmax(self, values: Tensor, out: Tensor) -> None:
        for own, into in zip(values, out, strict=True):
            into.copy_(plain.softmax(self._pattern, own, self._scale))

    def softmax_backward(self, y: Tensor, dy: Tensor, out: Tensor) -> None:
        for own, gradient, into in zip(y, dy, out, strict=True):
            into.copy_(plain.softmax_backward(self._pattern, own, gradient, self._scale))

    def weighted(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        for dense, own, into in zip(b, values, out, strict=True):
            into.copy_(plain.product(self._pattern, dense.t(), own).t())

    def weighted_transposed(self, b: Tensor, values: Tensor, out: Tensor) -> None:
        for dense, own, into in zip(b, values, out, strict=True):
            into.copy_(plain.product(self._pattern, dense.t(), own, transposed=True).t())
