"""Three differentiable products with a mask of blocks for every call, as custom operators of PyTorch.

With X of tokens × in features, a mask M over it, W of out × in features and a number s:

- `dsd`: s · (X ⊙ M) · Wᵀ + bias, a linear layer behind structured dropout;
- `sdd`: s · (D · W) ⊙ M, its gradient with respect to X, for D of tokens × out features;
- `dsd_transposed`: s · Dᵀ · (X ⊙ M), its gradient with respect to W.

The gradient of each is made of the other two, so that derivatives of any order exist (A. Lo, Efficient Sparse Training
with Structured Dropout). `torch.compile` sees each as one operator; a new mask prepares and compiles nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.column_sums import column_sums
from sparsegen.integrations.torch.blocks.mask_launches import blocks_of, expanded
from sparsegen.integrations.torch.blocks.masked_prepared import Call, Masked, run
from sparsegen.integrations.torch.calls.direct import DirectOperator
from sparsegen.integrations.torch.calls.ready_calls import Computed, ReadyCalls
from sparsegen.integrations.torch.calls.tensor_checks import check_tensor, require_tensors
from sparsegen.matrix.block_mask import grid
from sparsegen.operators import Epilogue, Rest
from sparsegen.operators.masked import BLOCK_SIDES


def dsd(
    x: Tensor,
    weight: Tensor,
    mask: BlockMaskTensor,
    bias: Tensor | None = None,
    *,
    scale: float = 1.0,
    relu: bool = False,
) -> Tensor:
    """scale · (X ⊙ mask) · Wᵀ + bias; dead blocks of X are never read.

    Args:
        x: tokens × in features.
        weight: out × in features, of x's dtype and device; a transpose of in × out ones is read where it lies.
        mask: over X.
        bias: out features, likewise.
        relu: set negative results to zero. It needs a bias.

    Returns:
        tokens × out features. Of float32 the tensor cores take the 19 highest bits of each factor (TF32).

    Raises:
        OperandError: shapes, dtypes or devices that do not fit.
    """
    check_mask(mask)
    require_tensors(x=x, weight=weight, bias=bias)
    scale, relu = arguments.factor(scale, "scale", OperandError), arguments.flag(relu, "relu", OperandError)
    if relu and bias is None:
        raise OperandError("relu=True needs a bias: use torch.relu on the result without one")
    shared = mask.words, scale, *mask.block, mask.density
    result: Tensor = _dsd(x, weight, bias, *shared, relu)
    return result


def dsd_transposed(x: Tensor, d: Tensor, mask: BlockMaskTensor, *, scale: float = 1.0) -> Tensor:
    """scale · Dᵀ · (X ⊙ mask), out × in features, for D of tokens × out features; see `dsd`."""
    check_mask(mask)
    require_tensors(x=x, d=d)
    scale = arguments.factor(scale, "scale", OperandError)
    result: Tensor = _dsd_transposed(x, d, mask.words, scale, *mask.block, mask.density)
    return result


def sdd(d: Tensor, weight: Tensor, mask: BlockMaskTensor, *, scale: float = 1.0) -> Tensor:
    """scale · (D · W) ⊙ mask, tokens × in features, for D of tokens × out features: live blocks alone are computed, the
    others are zero; see `dsd`.
    """
    check_mask(mask)
    require_tensors(d=d, weight=weight)
    scale = arguments.factor(scale, "scale", OperandError)
    result: Tensor = _sdd(d, weight, mask.words, scale, *mask.block, mask.density)
    return result


def sdd_into(out: Tensor, d: Tensor, weight: Tensor, mask: BlockMaskTensor, *, scale: float = 1.0) -> Tensor:
    """The live blocks of scale · (D · W) written into ``out``, whose dead blocks stay as they are; see `sdd`.

    There is no gradient: inputs are taken as `torch.no_grad` does.

    Args:
        out: tokens × in features, contiguous, of d's dtype and device, on 16 bytes.

    Returns:
        ``out``.
    """
    check_mask(mask)
    require_tensors(out=out, d=d, weight=weight)
    scale = arguments.factor(scale, "scale", OperandError)
    torch.ops.sparsegen.sdd_into(out, d, weight, mask.words, scale, *mask.block, mask.density)
    return out


_MASK = "Tensor words, float scale, int block_rows, int block_columns, float density"


_ready = ReadyCalls()


def _dsd_of(x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, *rest: Any) -> Tensor:
    return _ready.run(Masked.DSD, (x, weight, words, bias), rest, _checked_dsd)


def _transposed_of(x: Tensor, d: Tensor, words: Tensor, *rest: Any) -> Tensor:
    return _ready.run(Masked.DSD_TRANSPOSED, (x, d, words, None), rest, _checked_transposed)


def _sdd_of(d: Tensor, weight: Tensor, words: Tensor, *rest: Any) -> Tensor:
    return _ready.run(Masked.SDD, (d, weight, words, None), rest, _checked_sdd)


def _checked_dsd(
    x: Tensor,
    weight: Tensor,
    words: Tensor,
    bias: Tensor | None,
    scale: float,
    block_rows: int,
    block_columns: int,
    density: float,
    relu: bool,
) -> Computed:
    check_tensor(x, "x", (None, None), x)
    check_tensor(weight, "weight", (None, x.shape[1]), x, free="out features")
    (m, k), n = x.shape, weight.shape[0]
    if bias is not None:
        check_tensor(bias, "bias", (n,), x)
    if not (m and n and k):
        empty = x.new_zeros((m, n)) if bias is None else bias.detach().expand(m, n).clone()
        return empty.relu() if relu else empty, None
    epilogue = Epilogue.NONE if bias is None else Epilogue.BIAS_RELU if relu else Epilogue.BIAS
    call = Call(Masked.DSD, m, k, n, (block_rows, block_columns), density, scale, epilogue)
    check_words((call.m, call.k), call.block, words, x)
    return run(call, x, weight, words, bias)


def _checked_transposed(
    x: Tensor,
    d: Tensor,
    words: Tensor,
    _: None,
    scale: float,
    block_rows: int,
    block_columns: int,
    density: float,
) -> Computed:
    check_tensor(x, "x", (None, None), x)
    check_tensor(d, "d", (x.shape[0], None), x, free="out features")
    (m, k), n = x.shape, d.shape[1]
    if not (m and n and k):
        return x.new_zeros((n, k)), None
    call = Call(Masked.DSD_TRANSPOSED, m, k, n, (block_rows, block_columns), density, scale)
    check_words((call.m, call.k), call.block, words, x)
    return run(call, x, d, words)


def _checked_sdd(
    d: Tensor,
    weight: Tensor,
    words: Tensor,
    _: None,
    scale: float,
    block_rows: int,
    block_columns: int,
    density: float,
) -> Computed:
    check_tensor(d, "d", (None, None), d)
    check_tensor(weight, "weight", (d.shape[1], None), d, free="in features")
    (m, n), k = d.shape, weight.shape[1]
    if not (m and n and k):
        return d.new_zeros((m, k)), None
    call = Call(Masked.SDD, m, k, n, (block_rows, block_columns), density, scale)
    check_words((call.m, call.k), call.block, words, d)
    return run(call, d, weight, words)


@torch.library.custom_op(
    "sparsegen::sdd_into",
    mutates_args=("out",),
    schema=f"(Tensor(a!) out, Tensor d, Tensor weight, {_MASK}) -> ()",
)
def _sdd_into(
    out: Tensor,
    d: Tensor,
    weight: Tensor,
    words: Tensor,
    scale: float,
    block_rows: int,
    block_columns: int,
    density: float,
) -> None:
    check_tensor(d, "d", (None, None), d)
    check_tensor(weight, "weight", (d.shape[1], None), d, free="in features")
    (m, n), k = d.shape, weight.shape[1]
    check_tensor(out, "out", (m, k), d)
    if not out.is_contiguous():
        raise OperandError("out: expected a contiguous tensor, which is written in place")
    call = Call(Masked.SDD, m, k, n, (block_rows, block_columns), density, scale, rest=Rest.KEPT)
    check_words((call.m, call.k), call.block, words, d)
    if not (m and k):
        return
    if not n:
        live = expanded(blocks_of(words, grid((m, k), call.block)), call.block, (m, k))
        out.masked_fill_(live, 0)
        return
    run(call, d, weight, words, out=out)


def check_words(shape: tuple[int, int], block: tuple[int, int], words: Tensor, like: Tensor) -> None:
    """Hold the buffer of a mask against the sizes, and against the device of another tensor.

    Raises:
        OperandError: it is of another mask, or of one whose blocks no product takes.
    """
    if not set(block) <= set(BLOCK_SIDES):
        sides = ", ".join(map(str, BLOCK_SIDES))
        raise OperandError(f"mask: products take blocks whose sides are {sides}, not {block[0]} × {block[1]}")
    layout = grid(shape, block)
    if tuple(words.shape) != (layout.words,) or words.dtype != torch.uint64 or words.device != like.device:
        raise OperandError(
            f"mask: expected one over {shape[0]} × {shape[1]} elements in blocks of {block[0]} × {block[1]} on "
            f"{like.device} ({layout.words} torch.uint64), got {tuple(words.shape)} {words.dtype} on {words.device}"
        )


@_sdd_into.register_fake
def _(out: Tensor, *_: Any) -> None:
    return None


# --- gradients ---


def _remember_dsd(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, words, *rest, relu = inputs
    ctx.save_for_backward(x, weight, words, output if relu else None)
    ctx.rest = rest


def _dsd_backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, words, y = ctx.saved_tensors
    needs = ctx.needs_input_grad
    if y is not None:
        dy = torch.where(y > 0, dy, 0)
    return (
        _sdd(dy, weight, words, *ctx.rest) if needs[0] else None,
        _dsd_transposed(x, dy, words, *ctx.rest) if needs[1] else None,
        column_sums(dy) if needs[2] else None,
        *[None] * 6,
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, words, *rest = inputs
    ctx.save_for_backward(first, second, words)
    ctx.rest = rest


def _transposed_backward(ctx: Any, dw: Tensor) -> tuple[Tensor | None, ...]:
    x, d, words = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        _sdd(d, dw, words, *ctx.rest) if needs[0] else None,
        _dsd(x, dw, None, words, *ctx.rest, False) if needs[1] else None,
        *[None] * 5,
    )


def _sdd_backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    d, weight, words = ctx.saved_tensors
    needs = ctx.needs_input_grad
    return (
        _dsd(dx, weight, None, words, *ctx.rest, False) if needs[0] else None,
        _dsd_transposed(dx, d, words, *ctx.rest) if needs[1] else None,
        *[None] * 5,
    )


_dsd = DirectOperator(
    "dsd",
    f"(Tensor x, Tensor weight, Tensor? bias, {_MASK}, bool relu) -> Tensor",
    _dsd_of,
    fake=lambda x, weight, *_: x.new_empty((x.shape[0], weight.shape[0])),
    tensors=4,
    backward=_dsd_backward,
    remember=_remember_dsd,
)
_dsd_transposed = DirectOperator(
    "dsd_transposed",
    f"(Tensor x, Tensor d, {_MASK}) -> Tensor",
    _transposed_of,
    fake=lambda x, d, *_: x.new_empty((d.shape[1], x.shape[1])),
    tensors=3,
    backward=_transposed_backward,
    remember=_remember,
)
_sdd = DirectOperator(
    "sdd",
    f"(Tensor d, Tensor weight, {_MASK}) -> Tensor",
    _sdd_of,
    fake=lambda d, weight, *_: d.new_empty((d.shape[0], weight.shape[1])),
    tensors=3,
    backward=_sdd_backward,
    remember=_remember,
)
