"""Three differentiable products on a sparsity pattern, as custom operators of PyTorch.

With W of out × in features, which has ``values`` at the pattern's places in CSR order and zeros elsewhere:

- `linear`: X · Wᵀ + bias, what a linear layer computes;
- `transposed_product`: Y · W, its gradient with respect to X;
- `sampled_product`: (Yᵀ · X) at the pattern, its gradient with respect to the values.

The gradient of each is made of the other two (Gale et al., SC 2020, sections IV and VII), so that derivatives of any
order exist. `torch.compile` sees each as one operator; new values never compile or prepare anything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen.integrations.torch import plain
from sparsegen.integrations.torch.activations import Activation, epilogue_of
from sparsegen.integrations.torch.direct import Asked, asked, may_run_at_once
from sparsegen.integrations.torch.pattern import Product, SparsePattern, pattern_of
from sparsegen.integrations.torch.tensor_checks import check_tensor


def linear(
    x: Tensor,
    values: Tensor,
    pattern: SparsePattern,
    bias: Tensor | None = None,
    activation: Activation = Activation.NONE,
) -> Tensor:
    """X · Wᵀ + bias, and an activation of it.

    The kernel computes the activation too where there is a bias and neither a gradient nor a trace is asked for.

    Args:
        x: tokens × in features.
        values: one for each nonzero, of x's dtype and device.
        bias: out features, likewise.

    Returns:
        tokens × out features.

    Raises:
        OperandError: shapes, dtypes or devices that do not fit.
    """
    what = asked(x, values, bias)
    if what is Asked.NOTHING:
        return linear_at_once(x, values, bias, pattern, activation)
    result: Tensor
    if what is Asked.GRADIENT:
        result = _Linear.apply(x, values, bias, pattern)
    else:
        result = torch.ops.sparsegen.linear(x, values, bias, pattern.handle)
    return activation.of(result)


def transposed_product(y: Tensor, values: Tensor, pattern: SparsePattern) -> Tensor:
    """Y · W, tokens × in features, for Y of tokens × out features; see `linear`."""
    if may_run_at_once(y, values):
        return _transposed_of(y, values, pattern)
    result: Tensor = torch.ops.sparsegen.transposed_product(y, values, pattern.handle)
    return result


def sampled_product(y: Tensor, x: Tensor, pattern: SparsePattern) -> Tensor:
    """(Yᵀ · X) at the pattern, in CSR order, for Y of tokens × out and X of tokens × in features; see `linear`."""
    if may_run_at_once(y, x):
        return _sampled_of(y, x, pattern)
    result: Tensor = torch.ops.sparsegen.sampled_product(y, x, pattern.handle)
    return result


@torch.library.custom_op(
    "sparsegen::linear",
    mutates_args=(),
    schema="(Tensor x, Tensor values, Tensor? bias, int pattern) -> Tensor",
)
def _linear(x: Tensor, values: Tensor, bias: Tensor | None, pattern: int) -> Tensor:
    return linear_at_once(x, values, bias, pattern_of(pattern))


def linear_at_once(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: SparsePattern,
    activation: Activation = Activation.NONE,
) -> Tensor:
    """`linear` beside autograd and all else that might look; whether it may run so is the caller's to ask."""
    out_features, in_features = pattern.shape
    if not (
        _is(x, (x.shape[0], in_features) if x.dim() == 2 else None, x)
        and _is(values, (pattern.nnz,), x)
        and (bias is None or _is(bias, (out_features,), x))
    ):
        _check(x, "x", (None, in_features), x)
        _check(values, "values", (pattern.nnz,), x)
        if bias is not None:
            _check(bias, "bias", (out_features,), x)
    tokens = x.shape[0]
    if not tokens or not out_features:
        return x.new_zeros((tokens, out_features))
    epilogue = epilogue_of(activation, has_bias=bias is not None)
    run = pattern.prepared(Product.FORWARD, tokens, x, epilogue=epilogue)
    if run is not None:
        result = run(x, values=values, bias=bias)
        return activation.of(result) if bias is None else result
    result = plain.product(pattern, x, values)
    return activation.of(result if bias is None else result + bias)


def _is(tensor: Tensor, shape: tuple[int, ...] | None, like: Tensor) -> bool:
    """Whether a tensor is as it must be; `_check` says what is wrong, and takes longer."""
    return tensor.shape == shape and tensor.dtype is like.dtype and tensor.device == like.device


@torch.library.custom_op(
    "sparsegen::transposed_product",
    mutates_args=(),
    schema="(Tensor y, Tensor values, int pattern) -> Tensor",
)
def _transposed(y: Tensor, values: Tensor, pattern: int) -> Tensor:
    return _transposed_of(y, values, pattern_of(pattern))


def _transposed_of(y: Tensor, values: Tensor, found: SparsePattern) -> Tensor:
    out_features, in_features = found.shape
    _check(y, "y", (None, out_features), y)
    _check(values, "values", (found.nnz,), y)
    if not y.shape[0] or not in_features:
        return y.new_zeros((y.shape[0], in_features))
    run = found.prepared(Product.TRANSPOSED, y.shape[0], y)
    return plain.product(found, y, values, transposed=True) if run is None else run(y, values=values)


@torch.library.custom_op(
    "sparsegen::sampled_product", mutates_args=(), schema="(Tensor y, Tensor x, int pattern) -> Tensor"
)
def _sampled(y: Tensor, x: Tensor, pattern: int) -> Tensor:
    return _sampled_of(y, x, pattern_of(pattern))


def _sampled_of(y: Tensor, x: Tensor, found: SparsePattern) -> Tensor:
    _check(y, "y", (None, found.shape[0]), x)
    _check(x, "x", (y.shape[0], found.shape[1]), x)
    if not x.shape[0] or not found.nnz:
        return x.new_zeros((found.nnz,))
    run = found.prepared(Product.SAMPLED, x.shape[0], x)
    # An SDDMM takes tokens along rows: Yᵀ and Xᵀ.
    return plain.sampled(found, y, x) if run is None else run(y.t(), x.t())


def _check(tensor: Tensor, name: str, shape: tuple[int | None, ...], like: Tensor) -> None:
    """None in a shape stands for any number of tokens."""
    check_tensor(tensor, name, shape, like, free="tokens")


# --- what they give, for tensors without data ---


@_linear.register_fake
def _(x: Tensor, values: Tensor, bias: Tensor | None, pattern: int) -> Tensor:
    return x.new_empty((x.shape[0], pattern_of(pattern).shape[0]))


@_transposed.register_fake
def _(y: Tensor, values: Tensor, pattern: int) -> Tensor:
    return y.new_empty((y.shape[0], pattern_of(pattern).shape[1]))


@_sampled.register_fake
def _(y: Tensor, x: Tensor, pattern: int) -> Tensor:
    return x.new_empty((pattern_of(pattern).nnz,))


# --- gradients ---


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, *_, handle = inputs
    ctx.save_for_backward(first, second)
    ctx.pattern = pattern_of(handle)  # alive until the backward pass


def _linear_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        transposed_product(dy, values, ctx.pattern) if needs[0] else None,
        sampled_product(dy, x, ctx.pattern) if needs[1] else None,
        dy.sum(0) if needs[2] else None,
        None,
    )


def _transposed_backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    y, values = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        linear(dx, values, ctx.pattern) if needs[0] else None,
        sampled_product(y, dx, ctx.pattern) if needs[1] else None,
        None,
    )


def _sampled_backward(ctx: Any, dvalues: Tensor) -> tuple[Tensor | None, ...]:
    y, x = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        linear(x, dvalues, ctx.pattern) if needs[0] else None,
        transposed_product(y, dvalues, ctx.pattern) if needs[1] else None,
        None,
    )


class _Linear(torch.autograd.Function):
    """`linear` where a gradient is all that is asked for; as a custom operator it takes several times as long."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, pattern: SparsePattern) -> Tensor:
        ctx.save_for_backward(x, values)
        ctx.pattern = pattern
        return linear_at_once(x, values, bias, pattern)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _linear_backward(ctx, dy)


_linear.register_autograd(_linear_backward, setup_context=_remember)
_transposed.register_autograd(_transposed_backward, setup_context=_remember)
_sampled.register_autograd(_sampled_backward, setup_context=_remember)
