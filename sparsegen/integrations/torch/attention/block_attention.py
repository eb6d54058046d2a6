"""Attention over the live blocks of masks that every call brings, as a differentiable function, by custom operators.

Masks are data of the call: a new one prepares, compiles and waits for nothing, and CUDA graphs follow what lies in its
buffer. `torch.compile` sees one operator forward and one backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention import block_attention_kernels as kernels
from sparsegen.integrations.torch.attention.attention_options import (
    SCHEMA,
    AttentionOptions,
    Beside,
    check_operands,
    empty_like,
    memory_order,
    result_like,
    sink_gradient_like,
    statistics_like,
)
from sparsegen.integrations.torch.attention.partial_elements import with_elements
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks
from sparsegen.integrations.torch.calls.autocast import cast_like_dense, is_any_autocast
from sparsegen.integrations.torch.calls.direct import Context
from sparsegen.integrations.torch.calls.launched_operator import LaunchedOperator
from sparsegen.integrations.torch.calls.tensor_checks import require_real, require_tensors
from sparsegen.operators import TokenOrder, member
from sparsegen.operators.attention.span import OPEN, Band


def block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: BlockMaskTensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    sinks: int = 0,
    from_start: bool = False,
    elements: Tensor | PartialBlocks | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
    sink_logits: Tensor | None = None,
    order: TokenOrder | str = TokenOrder.HEADS,
    return_lse: bool = False,
    deterministic: bool | None = None,
) -> Any:
    """softmax(scale · Q · Kᵀ at the live places) · V, for each query head.

    A place, a query and a key, is live where its block of the mask is, where causal, window and sinks let the query see
    the key, and where ``elements`` is true. A query without a live place gets zeros, no gradient, and an LSE of -inf.
    Keys and values must be finite even if no query sees them. Under autocast Q, K and V are cast as
    `torch.nn.functional.scaled_dot_product_attention` does.

    Without a kernel of ours (on the CPU without the emulator, in float64, on a GPU or for a head_dim that no family
    takes) PyTorch computes the same in parts, wide and slowly; on a GPU and in the emulator the log says so, once for
    each reason.

    Args:
        q: batch × heads × queries × head_dim.
        k, v: batch × heads of keys × keys × head_dim; v may have columns of another number. Equally many query heads
            share each of theirs (GQA, MQA). Strides are free: kernels read both batch × heads × tokens and batch ×
            tokens × heads where they lie in memory without gaps, as Q does; other strides are copied.
        mask: over queries × keys, a mask for all, or several: one for each query head, or batch × heads of them, where
            1 stands for a mask that all share. By default all blocks live.
        causal: no query sees a key after its own position.
        window: keys that a causal query sees, its own the last of them; without ``causal``, the distance from which on
            keys on both sides are hidden. By default all.
        sinks: first keys that queries see beside their window.
        from_start: query 0 stands beside key 0, as in PyTorch's causal attention; by default the last query stands
            beside the last key, as with a cache of keys, and as in FlashAttention.
        elements: exact places inside of blocks: the `PartialBlocks` of the mask (`masks.partial_blocks_from_flex`), or
            bool, whatever broadcasts to batch × heads × queries × keys: every call makes partial blocks of them.
        scale: default 1 / √head_dim.
        softcap: scores x become softcap · tanh(x / softcap).
        slopes: float32, one for each query head (ALiBi): a score, capped or not, loses slope · |distance|, where the
            last query stands beside the last key. They have no gradient.
        sink_logits: one for each query head: a learned logit that is part of the softmax's sum and has no value. The
            LSE counts it; it has a gradient.
        order: ``tokens`` for tensors of shape batch × tokens × heads × head_dim, as FlashAttention takes them; O too.
        return_lse: return O and the LSE, the natural logarithm of each query's sum of exponentials.
        deterministic: use a backward pass that gives equal bits for equal inputs; by default if
            `torch.use_deterministic_algorithms` or SPARSEGEN_DETERMINISTIC asks for it.

    Returns:
        O, of q's shape with v's columns, q's dtype and order in memory, and with ``return_lse`` the LSE, batch ×
        heads × queries, float32 (float64 for float64), without a gradient.

    Raises:
        OperandError: shapes, dtypes, devices or a mask that do not fit, by name.
    """
    require_tensors(q=q, k=k, v=v)
    order, device = member(TokenOrder, order, "order", OperandError), q.device
    if is_any_autocast():
        q, k, v = (cast_like_dense(tensor, device) for tensor in (q, k, v))
    if order is TokenOrder.TOKENS:
        q, k, v = (_by_heads(tensor, name) for name, tensor in (("q", q), ("k", k), ("v", v)))
    if mask is not None:
        if type(mask) is not BlockMaskTensor:
            check_mask(mask)
        _check_places(mask, q, k)
    numbers = bits = None
    if elements is not None:
        mask, partial = with_elements(elements, mask, q, k)
        numbers, bits = partial.numbers, partial.bits
    words, block, density, longest = None, (0, 0), 1.0, 0.0
    if mask is not None:
        words, block, density, longest = _of_items_and_heads(mask), mask.block, mask.density, mask.longest
    if slopes is not None or sink_logits is not None:
        slopes, sink_logits = _of_heads(q, k, slopes, sink_logits, from_start)
    head_dim = max(1, int(q.shape[-1])) if q.dim() else 1
    options = AttentionOptions(
        scale=head_dim**-0.5 if scale is None else arguments.factor(scale, "scale", OperandError),
        softcap=0.0 if softcap is None else _above_zero(softcap, "softcap"),
        causal=arguments.flag(causal, "causal", OperandError),
        from_start=arguments.flag(from_start, "from_start", OperandError),
        window=0 if window is None else arguments.whole(window, "window", OperandError, least=1, most=OPEN),
        sinks=arguments.whole(sinks, "sinks", OperandError, least=0, most=OPEN),
        block_rows=block[0],
        block_columns=block[1],
        density=density,
        longest=longest,
        deterministic=_is_deterministic(deterministic),
    )
    if options.sinks:
        Band.of(1, 1, causal=options.causal, window=options.window, sinks=options.sinks)  # they need a window
    out, lse = _attention(q, k, v, words, numbers, bits, slopes, sink_logits, *options)
    out = out.transpose(1, 2) if order is TokenOrder.TOKENS else out
    return (out, lse) if arguments.flag(return_lse, "return_lse", OperandError) else out


def _by_heads(tensor: Tensor, name: str) -> Tensor:
    if tensor.dim() != 4:
        raise OperandError(
            f"{name}: expected batch × tokens × heads × head_dim, got shape {tuple(tensor.shape)}; "
            f"{name}[None] makes tokens a batch of one"
        )
    return tensor.transpose(1, 2)


def _check_places(mask: BlockMaskTensor, q: Tensor, k: Tensor) -> None:
    if q.dim() != 4 or k.dim() != 4:  # the operator reports other shapes
        return
    queries, keys = q.shape[2], k.shape[2]
    if mask.shape != (queries, keys):
        raise OperandError(f"mask: expected one over {queries} queries × {keys} keys, got {mask}")


def _of_heads(
    q: Tensor, k: Tensor, slopes: Tensor | None, sink_logits: Tensor | None, from_start: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Slopes and sinks, as wide as the LSE."""
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    if slopes is not None:
        require_tensors(slopes=slopes)
        require_real(slopes, "slopes")
        if slopes.requires_grad:
            raise OperandError("slopes: they have no gradient; detach them")
        if from_start and q.shape[-2:-1] != k.shape[-2:-1]:
            raise OperandError(
                "slopes: distances are those of the last query beside the last key; from_start=True needs as many "
                "queries as keys"
            )
        slopes = slopes.to(wide)
    if sink_logits is not None:
        require_tensors(sink_logits=sink_logits)
        require_real(sink_logits, "sink_logits")
        sink_logits = sink_logits.to(wide)
    return slopes, sink_logits


def _of_items_and_heads(mask: BlockMaskTensor) -> Tensor:
    """The buffers, batch × heads × words."""
    missing = 3 - mask.words.dim()
    if missing < 0:
        raise OperandError(f"mask: expected one, one for each head, or batch × heads of them, got {mask}")
    return mask.words[(None,) * missing]


def _above_zero(value: object, name: str) -> float:
    found = arguments.factor(value, name, OperandError)
    if found <= 0:
        raise OperandError(f"{name} = {found:g} is not above 0; leave it out for none")
    return found


def _is_deterministic(asked: bool | None) -> bool:
    if asked is None:
        return torch.are_deterministic_algorithms_enabled()
    return arguments.flag(asked, "deterministic", OperandError)


# --- the operators ---


def _remember(ctx: Context, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *more = inputs[: 3 + kernels.BESIDE]
    ctx.rest = inputs[3 + kernels.BESIDE :]
    out, lse = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse, *more)


def _backward(ctx: Context, dout: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if dout is None:
        return (None,) * (3 + kernels.BESIDE + len(ctx.rest))
    saved = ctx.saved_tensors  # once: a checkpoint computes them again, and gives each out once
    *gradients, by_logits = _attention_backward(dout, *saved, *ctx.rest)
    has_logits = saved[-1] is not None  # the last of what is beside Q, K and V
    no_others = (None,) * (kernels.BESIDE - 1)
    return (*gradients, *no_others, by_logits if has_logits else None, *[None] * len(ctx.rest))


def _refuse(ctx: Context, *_: object) -> None:
    raise OperandError(
        "block attention has gradients of the first order alone: block_attention_backward has none "
        "(create_graph=True asks for it); take torch.nn.functional.scaled_dot_product_attention where it is needed"
    )


def _fake(q: Tensor, k: Tensor, v: Tensor, *more: Any) -> tuple[Tensor, Tensor]:
    check_operands(q, k, v, Beside(*more[: kernels.BESIDE]))
    return result_like(q, v), statistics_like(q)


def _fake_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *more: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    order, sink_logits = memory_order(q), Beside(*more[: kernels.BESIDE]).sink_logits
    dq, dk, dv = (empty_like(tensor, order) for tensor in (q, k, v))
    return dq, dk, dv, sink_gradient_like(q, sink_logits)


_attention = LaunchedOperator(
    "block_attention",
    f"(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor, Tensor)",
    kernels.forward_of,
    fake=_fake,
    tensors=3 + kernels.BESIDE,
    backward=_backward,
    remember=_remember,
)
_attention_backward = LaunchedOperator(
    "block_attention_backward",
    f"(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {SCHEMA}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    kernels.backward_of,
    fake=_fake_backward,
    tensors=6 + kernels.BESIDE,
    backward=_refuse,
    remember=lambda *_: None,
)
