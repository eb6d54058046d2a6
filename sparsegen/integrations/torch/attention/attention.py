"""Sparse attention as a differentiable function, by custom operators of PyTorch, and as a module.

Where the mask's places fill blocks, both passes are those of `block_attention`. Else the forward pass is SDDMM, sparse
softmax and product, each one launch for many heads; the backward pass (first order) is made of SDDMM, the softmax's
gradient, and products with the mask and its transpose (Gale et al., SC 2020, sections IV and VII). Where no gradient
may be asked for, the forward pass may be one fused kernel instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention.attention_choice import fused_runs
from sparsegen.integrations.torch.attention.attention_passes import (
    Turns,
    by_fused,
    by_steps,
    padded,
    room_for_weights,
)
from sparsegen.integrations.torch.attention.attention_steps import Steps, steps
from sparsegen.integrations.torch.attention.pattern_blocks import TAKEN, pattern_blocks, runs_by_blocks
from sparsegen.integrations.torch.calls.autocast import autocast_dtype
from sparsegen.integrations.torch.calls.devices import kernel_device
from sparsegen.integrations.torch.calls.direct import Context, DirectOperator
from sparsegen.integrations.torch.calls.prepared import Prepared
from sparsegen.integrations.torch.calls.prepared_calls import PreparedCall
from sparsegen.integrations.torch.calls.tensor_checks import require_real, require_tensors
from sparsegen.integrations.torch.pattern.carried_patterns import HELD
from sparsegen.integrations.torch.pattern.pattern import Product, SparsePattern
from sparsegen.integrations.torch.pattern.pattern_module import PatternModule
from sparsegen.matrix.csr import MAX_INDEX


def sparse_attention(
    q: Tensor, k: Tensor, v: Tensor, pattern: SparsePattern, scale: float | None = None
) -> Tensor:
    """softmax(scale · Q · Kᵀ at the pattern) · V, for each head.

    While a gradient may be asked for, the weights are kept for it: a number for each head and nonzero; by blocks O and
    a number for each query.

    Args:
        q: any leading dimensions (batch, heads) × queries × head_dim.
        k, v: the same leading dimensions × keys × head_dim.
        pattern: queries × keys; all heads share it. A query without a nonzero gets zeros.
        scale: default 1 / √head_dim.

    Returns:
        Of q's shape, contiguous.

    Raises:
        OperandError: shapes, dtypes or devices that do not fit.
    """
    require_tensors(q=q, k=k, v=v)
    arguments.instance(pattern, SparsePattern, "pattern", OperandError)
    if q.dim() < 2:
        raise OperandError(f"q: expected ... × queries × head_dim, got {tuple(q.shape)}")
    queries, keys = pattern.shape
    lead, head_dim = q.shape[:-2], q.shape[-1]
    for name, tensor, rows in (("q", q, queries), ("k", k, keys), ("v", v, keys)):
        require_real(tensor, name)
        if tensor.shape != (*lead, rows, head_dim):
            raise OperandError(
                f"{name}: expected shape {(*lead, rows, head_dim)} for a mask of {queries} queries × {keys} keys, "
                f"got {tuple(tensor.shape)}"
            )
    heads = math.prod(lead)
    factor = max(head_dim, 1) ** -0.5 if scale is None else arguments.factor(scale, "scale", OperandError)
    keeps = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    out, _ = _attention(
        q.reshape(heads, queries, head_dim),
        k.reshape(heads, keys, head_dim),
        v.reshape(heads, keys, head_dim),
        factor,
        keeps,
        pattern,
    )
    result: Tensor = out.reshape(q.shape)
    return result


class SparseAttention(PatternModule):
    """`sparse_attention` with a fixed mask: no parameters, called like ``scaled_dot_product_attention``.

    A state dict holds the mask (``row_offsets`` and ``column_indices``), and loading one of the same shape takes it
    over. Copies and pickles prepare anew and hold no compiled code. Under autocast Q, K and V are cast like a dense
    layer's operands.

    Attributes:
        heads, head_dim, scale: the given values.
    """

    def __init__(
        self,
        mask: object,
        heads: int,
        head_dim: int,
        *,
        scale: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Take a mask's pattern.

        Args:
            mask: anything that `sparsegen.as_csr` takes, queries × keys, or a `SparsePattern`, which is shared; a dense
                mask's places are those that are not zero. `sparsegen.masks` makes some.
            heads: their number, all with this mask.
            head_dim: the columns of Q, K and V.
            scale: default 1 / √head_dim.
            device: device of the buffers that hold the mask for state dicts.

        Raises:
            MatrixError: the mask is malformed.
            OperandError: heads or head_dim below 1.
        """
        heads = arguments.whole(heads, "heads", OperandError)
        head_dim = arguments.whole(head_dim, "head_dim", OperandError)
        if heads < 1 or head_dim < 1:
            raise OperandError(
                f"expected at least one head and column, got heads={heads}, head_dim={head_dim}"
            )
        if max(heads, head_dim) > MAX_INDEX:
            raise OperandError(
                f"expected at most {MAX_INDEX} heads and columns, got heads={heads}, head_dim={head_dim}"
            )
        super().__init__(mask if isinstance(mask, SparsePattern) else SparsePattern(mask), device=device)
        self.heads, self.head_dim = heads, head_dim
        self.scale = head_dim**-0.5 if scale is None else arguments.factor(scale, "scale", OperandError)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention at the mask.

        Args:
            q: any leading dimensions × heads × queries × head_dim.
            k, v: the same × heads × keys × head_dim.

        Raises:
            OperandError: shapes, dtypes or devices that do not fit.
        """
        require_tensors(q=q, k=k, v=v)
        if q.dim() < 3 or q.shape[-3] != self.heads or q.shape[-1] != self.head_dim:
            raise OperandError(
                f"q: expected ... × {self.heads} heads × {self.pattern.shape[0]} queries × head_dim {self.head_dim}, "
                f"got {tuple(q.shape)}"
            )
        dtype = autocast_dtype(q)
        if dtype is not None:
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        return sparse_attention(q, k, v, self.pattern, self.scale)

    def extra_repr(self) -> str:
        queries, keys = self.pattern.shape
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, queries={queries}, keys={keys}, "
            f"nonzeros={self.pattern.nnz} ({self.pattern.sparsity:.1%} sparse)"
        )


# --- the operators ---


def _attention_of(
    q: Tensor, k: Tensor, v: Tensor, scale: float, keeps_weights: bool, pattern: SparsePattern
) -> tuple[Tensor, Tensor]:
    """O, and what the gradients need beside it: the weights, or by blocks the log-sum-exp of each query."""
    _check(pattern, q, k, v)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    blocks = (
        pattern_blocks(pattern, q, scale, trains=keeps_weights) if q.dtype in TAKEN and q.numel() else None
    )
    if blocks is not None:
        out, lse = blocks.forward(q, k, v)
        return out, lse if keeps_weights else room_for_weights(q, pattern, heads=0)
    out = torch.zeros_like(q)
    weights = room_for_weights(q, pattern, heads=q.shape[0] if keeps_weights else 0)
    if not out.numel() or not pattern.nnz:
        return out, weights
    if not keeps_weights and fused_runs(pattern, q, scale):
        by_fused(pattern, q, k, v, scale, out)
    else:
        by_steps(pattern, q, k, v, scale, out, weights if keeps_weights else None)
    return out, weights


def prepared(
    q: Tensor, k: Tensor, v: Tensor, scale: float, keeps_weights: bool, pattern: SparsePattern
) -> PreparedCall | None:
    """The kernel of the operator ``attention``, whose arguments these are; None where PyTorch computes it.

    Raises:
        OperandError: it runs in several steps, or nothing lives.
    """
    if kernel_device(q) is None:
        return None
    heads, _, head_dim = q.shape
    by_blocks = None if keeps_weights or not q.numel() else pattern_blocks(pattern, q, scale, trains=False)
    if by_blocks is not None and (call := by_blocks.prepared(q, k, v)) is not None:
        return PreparedCall(
            call.operator,
            call.operands,
            lambda written, inputs: (
                call.results(written, inputs),
                room_for_weights(inputs[0], pattern, heads=0),
            ),
        )
    if keeps_weights or not (q.numel() and pattern.nnz) or not fused_runs(pattern, q, scale):
        raise OperandError(
            f"sparse attention over {pattern.nnz} places runs in several launches here, which cannot be shipped: one "
            "launch can, as can block_attention with a mask of blocks"
        )
    found = pattern.prepared(Product.ATTENTION, head_dim, q, scale=scale, batch=heads)
    assert isinstance(found, Prepared)  # the choice says so
    return PreparedCall(
        found.operator,
        lambda inputs: dict(zip("qkv", inputs[:3], strict=True)),
        lambda written, inputs: (
            next(iter(written.values())).reshape(inputs[0].shape),
            room_for_weights(inputs[0], pattern, heads=0),
        ),
    )


def _backward_of(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    out: Tensor | None,
    scale: float,
    pattern: SparsePattern,
) -> tuple[Tensor, Tensor, Tensor]:
    dout, q, k, v = (t.contiguous() for t in (dout, q, k, v))
    if out is not None:
        blocks = pattern_blocks(pattern, q, scale, trains=True)
        assert blocks is not None  # they computed O
        return blocks.backward(dout, q, k, v, out, weights)
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    if weights.shape[0] != q.shape[0]:
        raise OperandError(
            "the attention weights were not kept for the backward pass: call sparse_attention, which keeps them "
            "while q, k or v requires a gradient"
        )
    if not (dq.numel() or dk.numel()) or not pattern.nnz:
        return dq, dk, dv
    turns = Turns(q.shape[0], pattern.nnz, q.element_size())
    run: Steps = steps(pattern, q, scale, turns.heads)
    buffer = room_for_weights(q, pattern, heads=turns.heads)
    for turn, part in enumerate(turns.parts()):
        # Views made anew, for `Prepared` takes a tensor that it knows for unchanged.
        own, gradient = turns.of(weights, turn), turns.of(buffer, 0)
        run.weighted_transposed(dout[part], own, dv[part])
        run.scores(dout[part], v[part], gradient)
        run.softmax_backward(own, gradient, gradient)
        run.weighted(k[part], gradient, dq[part])
        run.weighted_transposed(q[part], gradient, dk[part])
    return dq, dk, dv


def _check(pattern: SparsePattern, q: Tensor, k: Tensor, v: Tensor) -> None:
    queries, keys = pattern.shape
    for name, tensor, rows in (("q", q, queries), ("k", k, keys), ("v", v, keys)):
        wanted = (q.shape[0], rows, q.shape[-1])
        if tensor.shape != wanted:
            raise OperandError(f"{name}: expected shape {wanted}, got {tuple(tensor.shape)}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise OperandError(
                f"{name}: expected {q.dtype} on {q.device}, got {tensor.dtype} on {tensor.device}"
            )


def _fake(
    q: Tensor, k: Tensor, v: Tensor, scale: float, keeps_weights: bool, pattern: SparsePattern
) -> tuple[Tensor, Tensor]:
    out = q.new_empty(q.shape)
    if keeps_weights and runs_by_blocks(pattern, q, trains=True):
        return out, q.new_empty(q.shape[:2], dtype=torch.float32)
    return out, q.new_empty((q.shape[0] if keeps_weights else 0, padded(pattern.nnz)))


def _remember(ctx: Context, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.scale, _, ctx.pattern = inputs  # the pattern: alive until the backward pass
    out, weights = output
    ctx.set_materialize_grads(False)  # the weights have no gradient, and zeros of their size would be made
    ctx.mark_non_differentiable(weights)
    is_by_blocks = weights.dtype is not q.dtype  # a log-sum-exp has more bits than weights
    ctx.save_for_backward(q, k, v, weights, out if is_by_blocks else None)


def _backward(ctx: Context, dout: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if dout is None:
        return (None,) * 6
    gradients = _attention_backward(dout, *ctx.saved_tensors, ctx.scale, ctx.pattern)
    return (*gradients, None, None, None)


def _refuse(ctx: Context, *_: object) -> None:
    raise OperandError(
        "sparse attention has gradients of the first order alone: attention_backward has none (create_graph=True asks "
        "for it); take torch.nn.functional.scaled_dot_product_attention with a mask where it is needed"
    )


_attention = DirectOperator(
    "attention",
    "(Tensor q, Tensor k, Tensor v, float scale, bool keeps_weights, int pattern) -> (Tensor, Tensor)",
    _attention_of,
    fake=_fake,
    tensors=3,
    backward=_backward,
    remember=_remember,
    held=HELD,
)
_attention_backward = DirectOperator(
    "attention_backward",
    "(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor weights, Tensor? out, float scale, int pattern) -> "
    "(Tensor, Tensor, Tensor)",
    _backward_of,
    fake=lambda dout, q, k, v, *_: (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)),
    tensors=6,
    backward=_refuse,
    remember=lambda *_: None,
    held=HELD,
)
