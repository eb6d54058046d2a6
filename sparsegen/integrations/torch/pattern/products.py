"""Three differentiable products on a sparsity pattern, as custom operators of PyTorch.

With W of out × in features, which has ``values`` at the pattern's places in CSR order and zeros elsewhere:

- `linear`: X · Wᵀ + bias, what a linear layer computes;
- `transposed_product`: Y · W, its gradient with respect to X;
- `sampled_product`: (Yᵀ · X) at the pattern, its gradient with respect to the values.

The gradient of each is made of the other two (Gale et al., SC 2020, sections IV and VII), so that derivatives of any
order exist. `torch.compile` sees each as one operator; new values never compile or prepare anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.calls.activations import Activation, epilogue_of
from sparsegen.integrations.torch.calls.call_plans import SampledPlan, TrainingPlan
from sparsegen.integrations.torch.calls.column_sums import column_sums
from sparsegen.integrations.torch.calls.devices import DTYPES
from sparsegen.integrations.torch.calls.direct import (
    Asked,
    Context,
    DirectOperator,
    applied,
    asked,
    is_watched,
)
from sparsegen.integrations.torch.calls.launches import Gradients
from sparsegen.integrations.torch.calls.like_before import LATEST
from sparsegen.integrations.torch.calls.prepared import MISALIGNED
from sparsegen.integrations.torch.calls.tensor_checks import check_tensor, require_tensors
from sparsegen.integrations.torch.pattern import plain
from sparsegen.integrations.torch.pattern.carried_patterns import HELD
from sparsegen.integrations.torch.pattern.linear_steps import LinearStep
from sparsegen.integrations.torch.pattern.pattern import Product, SparsePattern


def linear(
    x: Tensor,
    values: Tensor,
    pattern: SparsePattern,
    bias: Tensor | None = None,
    activation: Activation | str = Activation.NONE,
) -> Tensor:
    """X · Wᵀ + bias, and an activation of it.

    The kernel computes the activation too where there is a bias and neither a gradient nor a trace is asked for.

    Args:
        x: ... × in features; all leading dimensions together are tokens.
        values: one for each nonzero, of x's dtype and device.
        bias: out features, likewise.

    Returns:
        ... × out features.

    Raises:
        OperandError: shapes, dtypes or devices that do not fit.
    """
    require_tensors(x=x, values=values, bias=bias)
    arguments.instance(pattern, SparsePattern, "pattern", OperandError)
    return linear_asked(asked(x, values, bias), x, values, bias, pattern, Activation.parse(activation))


def linear_asked(
    what: Asked,
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: SparsePattern,
    activation: Activation = Activation.NONE,
) -> Tensor:
    """`linear` where it is known what is asked of the call."""
    if what is Asked.NOTHING:
        return linear_at_once(x, values, bias, pattern, activation)
    y: Tensor
    if what is Asked.GRADIENT:
        kind = x.shape, x.dtype, x.get_device(), x.requires_grad, bias is not None and bias.requires_grad
        step = pattern.steps.get(kind)
        if step is not None and step.is_for(x, values, bias):
            pattern.steps[LATEST] = step
            y = _step(x, values, bias, pattern, step)
        else:
            y = _linear.apply(x, values, bias, pattern)
            _plan_step(kind, x, values, bias, pattern)
        return y if activation is Activation.NONE else activation.of(y)
    return activation.of(_linear.dispatched(x, values, bias, pattern))


def linear_again(x: Tensor, values: Tensor, bias: Tensor | None, pattern: SparsePattern) -> Tensor | None:
    """`linear` with a gradient, of tensors like the latest ones; None of all others.

    The caller knows that gradients are recorded.
    """
    if is_watched():
        return None
    step = pattern.steps.get(LATEST)
    if step is None or not step.is_for(x, values, bias):
        return None
    y: Tensor = _step(x, values, bias, pattern, step)
    return y


def transposed_product(y: Tensor, values: Tensor, pattern: SparsePattern) -> Tensor:
    """Y · W, tokens × in features, for Y of tokens × out features; see `linear`."""
    require_tensors(y=y, values=values)
    arguments.instance(pattern, SparsePattern, "pattern", OperandError)
    result: Tensor = _transposed(y, values, pattern)
    return result


def sampled_product(y: Tensor, x: Tensor, pattern: SparsePattern) -> Tensor:
    """(Yᵀ · X) at the pattern, in CSR order, for Y of tokens × out and X of tokens × in features; see `linear`."""
    require_tensors(y=y, x=x)
    arguments.instance(pattern, SparsePattern, "pattern", OperandError)
    result: Tensor = _sampled(y, x, pattern)
    return result


def linear_at_once(
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: SparsePattern,
    activation: Activation = Activation.NONE,
    *,
    casts: bool = False,
) -> Tensor:
    """`linear` beside autograd and all else that might look; whether it may run so is the caller's to ask.

    Args:
        casts: values and bias may be of any dtype, and X's counts, as under autocast.
    """
    key = x.shape, x.dtype, activation, bias is None, casts
    plan = pattern.plans.find(key)
    if plan is not None:
        found = plan.run(x, values, bias)
        if found is not None:
            return found
    out_features, in_features = pattern.shape
    flat = x.reshape(-1, x.shape[-1]) if x.dim() > 2 else x
    _check(flat, "x", (None, in_features), x)
    if not casts and x.dtype != values.dtype and values.dtype in DTYPES:
        raise OperandError(
            f"x: expected {values.dtype}, the dtype of the values, got {x.dtype}: x.to({values.dtype}) or the layer's "
            f".to({x.dtype}) make them alike"
        )
    given = (("values", values, pattern.nnz), *(() if bias is None else (("bias", bias, out_features),)))
    for name, tensor, size in given:
        _check(tensor, name, (size,), tensor if casts and tensor.device == x.device else x)
    tokens, shape = flat.shape[0], (*x.shape[:-1], out_features)
    if not tokens or not out_features:
        return x.new_zeros(shape)
    has_bias = bias is not None
    run = pattern.prepared(Product.FORWARD, tokens, x, epilogue=epilogue_of(activation, has_bias=has_bias))
    added = None if bias is None else bias.to(x.dtype)
    if run is None:
        result = plain.product(pattern, flat, values.to(x.dtype))
        result = activation.of(result if added is None else result + added)
    else:
        result = run(flat, values=values, bias=added)
        if has_bias or activation is Activation.NONE:
            pattern.plans.add(key, pattern.plan(run, x, shape, bias))
        else:
            result = activation.of(result)
    return result if x.dim() == 2 else result.view(shape).detach()


def _transposed_of(y: Tensor, values: Tensor, found: SparsePattern) -> Tensor:
    key = Product.TRANSPOSED, y.shape, y.dtype
    plan = found.plans.find(key)
    if plan is not None:
        result = plan.run(y, values, None)
        if result is not None:
            return result
    out_features, in_features = found.shape
    _check(y, "y", (None, out_features), y)
    _check(values, "values", (found.nnz,), y)
    if not y.shape[0] or not in_features:
        return y.new_zeros((y.shape[0], in_features))
    run = found.prepared(Product.TRANSPOSED, y.shape[0], y)
    if run is None:
        return plain.product(found, y, values, transposed=True)
    result = run(y, values=values)
    found.plans.add(key, found.plan(run, y, result.shape))
    return result


def _sampled_of(y: Tensor, x: Tensor, found: SparsePattern) -> Tensor:
    key = Product.SAMPLED, y.shape, x.shape, x.dtype
    plan = found.plans.find(key)
    if plan is not None:
        result = plan.run(y, x, None)
        if result is not None:
            return result
    _check(y, "y", (None, found.shape[0]), x)
    _check(x, "x", (y.shape[0], found.shape[1]), x)
    if not x.shape[0] or not found.nnz:
        return x.new_zeros((found.nnz,))
    run = found.prepared(Product.SAMPLED, x.shape[0], x)
    if run is None:
        return plain.sampled(found, y, x)
    result = run(y.t(), x.t())  # an SDDMM takes tokens along rows: Yᵀ and Xᵀ
    found.plans.add(key, found.sampled_plan(run, y, x))
    return result


def _check(tensor: Tensor, name: str, shape: tuple[int | None, ...], like: Tensor) -> None:
    """None in a shape stands for any number of tokens."""
    check_tensor(tensor, name, shape, like, free="tokens")


# --- gradients ---


def _remember(ctx: Context, inputs: Sequence[Any], output: Tensor) -> None:
    first, second, *_, ctx.pattern = inputs  # the pattern: alive until the backward pass
    ctx.save_for_backward(first, second)


def _linear_backward(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, values = ctx.saved_tensors
    return (*_linear_gradients(dy, x, values, ctx.pattern, ctx.needs_input_grad), None)


def _linear_gradients(
    dy: Tensor, x: Tensor, values: Tensor, pattern: SparsePattern, needs: Sequence[bool]
) -> Gradients:
    what, shape = asked(dy, x, values), x.shape
    if dy.dim() != 2:
        dy, x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, shape[-1])
    dx = _transposed.by(what, dy, values, pattern) if needs[0] else None
    return (
        dx if dx is None or len(shape) == 2 else dx.view(shape),
        _sampled.by(what, dy, x, pattern) if needs[1] else None,
        column_sums.by(what, dy) if needs[2] else None,
    )


def _plan_step(
    kind: Hashable, x: Tensor, values: Tensor, bias: Tensor | None, pattern: SparsePattern
) -> None:
    """Have the next call like this one, which was computed, be a step of few functions, if a kernel computes it."""
    plan = pattern.plans.find((x.shape, x.dtype, Activation.NONE, bias is None, False))
    if isinstance(plan, TrainingPlan) and values.requires_grad and (bias is None or bias.dtype is x.dtype):
        given = (x, values) if bias is None else (x, values, bias)
        if all(tensor.is_contiguous() for tensor in given) and not x.data_ptr() & MISALIGNED:
            pattern.steps[kind] = LinearStep(plan, pattern.shape[0], x, values, bias)


def _forward_step(
    ctx: Context,
    x: Tensor,
    values: Tensor,
    bias: Tensor | None,
    pattern: SparsePattern,
    step: LinearStep,
) -> Tensor:
    ctx.save_for_backward(x, values)
    ctx.step = pattern, step  # alive until the backward pass
    return step.forward(x, values, bias)


def _backward_step(ctx: Context, dy: Tensor) -> tuple[Tensor | None, ...]:
    (x, values), (pattern, step), needs = ctx.saved_tensors, ctx.step, ctx.needs_input_grad
    found = step.backward(dy, x, values, needs)
    if found is None:
        found = _linear_gradients(dy, x, values, pattern, needs)
        if step.is_open:
            _learn(step, dy, x, values, pattern)
    return (*found, None, None)


def _learn(step: LinearStep, dy: Tensor, x: Tensor, values: Tensor, pattern: SparsePattern) -> None:
    """Have the next gradients like these, which were computed, go by the plans of their products."""
    if dy.requires_grad or not dy.is_contiguous():
        return
    rows, columns = dy.view(-1, dy.shape[-1]), x.view(-1, x.shape[-1])
    by_values = pattern.plans.find((Product.SAMPLED, rows.shape, columns.shape, x.dtype))
    by_x = pattern.plans.find((Product.TRANSPOSED, rows.shape, x.dtype))
    if isinstance(by_values, SampledPlan) and (by_x is None or isinstance(by_x, TrainingPlan)):
        step.learn(dy, x, values, by_x, by_values)


_step = applied("linear", _forward_step, _backward_step)


def _transposed_backward(ctx: Context, dx: Tensor) -> tuple[Tensor | None, ...]:
    y, values = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        _linear(dx, values, None, ctx.pattern) if needs[0] else None,
        _sampled(y, dx, ctx.pattern) if needs[1] else None,
        None,
    )


def _sampled_backward(ctx: Context, dvalues: Tensor) -> tuple[Tensor | None, ...]:
    y, x = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        _linear(x, dvalues, None, ctx.pattern) if needs[0] else None,
        _transposed(y, dvalues, ctx.pattern) if needs[1] else None,
        None,
    )


_linear = DirectOperator(
    "linear",
    "(Tensor x, Tensor values, Tensor? bias, int pattern) -> Tensor",
    linear_at_once,
    fake=lambda x, values, bias, pattern: x.new_empty((*x.shape[:-1], pattern.shape[0])),
    tensors=3,
    backward=_linear_backward,
    remember=_remember,
    held=HELD,
)
_transposed = DirectOperator(
    "transposed_product",
    "(Tensor y, Tensor values, int pattern) -> Tensor",
    _transposed_of,
    fake=lambda y, values, pattern: y.new_empty((y.shape[0], pattern.shape[1])),
    tensors=2,
    backward=_transposed_backward,
    remember=_remember,
    held=HELD,
)
_sampled = DirectOperator(
    "sampled_product",
    "(Tensor y, Tensor x, int pattern) -> Tensor",
    _sampled_of,
    fake=lambda y, x, pattern: x.new_empty((pattern.nnz,)),
    tensors=2,
    backward=_sampled_backward,
    remember=_remember,
    held=HELD,
)
