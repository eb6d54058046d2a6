"""Masks of blocks by scores: the largest of each row or head, a share of their softmax, or those above a threshold.

All is made where the scores lie, without waiting for their device, and CUDA graphs capture it. One launch makes the
words of all masks of scores; two make scores of Q and K.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention.pooled_scores import Pooling, pooled
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, sizes_of
from sparsegen.integrations.torch.blocks.mask_operators import (
    pack_from_threshold,
    pack_largest,
    pack_share,
)
from sparsegen.integrations.torch.calls.tensor_checks import require_real, require_tensors
from sparsegen.matrix.block_mask import checked_blocks
from sparsegen.operators import member
from sparsegen.plan.mask_sources import Largest

Side = int | tuple[int, int]


class Per(StrEnum):
    """Set of blocks among which the largest scores are chosen."""

    ROW = "row"  # within a row of blocks
    HEAD = "head"  # within a whole mask


def topk_blocks(
    scores: Tensor,
    keep: int | float,
    block: Side,
    shape: tuple[int, int] | None = None,
    *,
    per: Per | str = Per.ROW,
) -> BlockMaskTensor:
    """Masks of the blocks with the largest scores, of equal ones the first; one launch makes all of them.

    Args:
        scores: ... × rows × columns of blocks, such as `pooled_scores`. A block whose score is -inf or NaN never lives.
        keep: their number, a whole number; or their share, a fraction up to 1.0, at least one block.
        block: rows and columns of a block, or one number for both.
        shape: queries and keys; by default as many as whole blocks have.
        per: ``row`` to keep as many in each row of blocks, or ``head``, in each mask.

    Raises:
        OperandError: no scores, or a number of blocks that there is not.
        MatrixError: see `BlockMaskTensor.from_blocks`.
    """
    _check_scores(scores)
    rows, columns = scores.shape[-2:]
    among = Largest.ROWS if member(Per, per, "per", OperandError) is Per.ROW else Largest.WHOLE
    there = columns if among is Largest.ROWS else rows * columns
    count = _count(keep, there)
    shape, block = sizes_of(scores, block, shape)
    words = pack_largest(scores.detach(), str(among), count)
    return BlockMaskTensor(shape, block, words, count / there)


def top_p_blocks(
    scores: Tensor, p: float, block: Side, shape: tuple[int, int] | None = None, *, density: float = 0.5
) -> BlockMaskTensor:
    """The masks of the fewest blocks of each row whose softmax sums to p or more.

    Args:
        scores: see `topk_blocks`.
        p: above 0, up to 1.
        density: the share of live blocks that is expected.
    """
    _check_scores(scores)
    p = arguments.number(p, "p", OperandError)
    if not 0 < p <= 1:
        raise OperandError(f"p = {p:g} is outside (0, 1]: it is the share of each row's softmax that is kept")
    shape, block = sizes_of(scores, block, shape)
    return BlockMaskTensor(shape, block, pack_share(scores.detach(), p), density)


def threshold_blocks(
    scores: Tensor,
    least: float | Tensor,
    block: Side,
    shape: tuple[int, int] | None = None,
    *,
    density: float = 0.5,
) -> BlockMaskTensor:
    """The masks of the blocks whose score is this or more.

    Args:
        scores: see `topk_blocks`.
        least: a number, or a tensor that broadcasts to the scores, such as one for each head and row.
        density: the share of live blocks that is expected.
    """
    _check_scores(scores)
    if not isinstance(least, Tensor):
        least = arguments.number(least, "least", OperandError)
    elif not _broadcasts(least, scores):
        raise OperandError(
            f"least: expected what broadcasts to {tuple(scores.shape)} on {scores.device}, got {tuple(least.shape)} on "
            f"{least.device}"
        )
    thresholds, number = (least.detach(), 0.0) if isinstance(least, Tensor) else (None, least)
    shape, block = sizes_of(scores, block, shape)
    words = pack_from_threshold(scores.detach(), thresholds, number)
    return BlockMaskTensor(shape, block, words, density)


def pooled_scores(
    q: Tensor, k: Tensor, block: Side, *, pooling: Pooling | str = Pooling.MEAN, scale: float | None = None
) -> Tensor:
    """Scores of blocks: scale · pooled Q · pooled Kᵀ, float32, batch × query heads × rows × columns of blocks.

    Args:
        q, k: batch × heads × tokens × head_dim; as many query heads share a head of K. A last block that is cut off
            pools what it has.
        block: queries and keys of a block, or one number for both.
        pooling: ``mean`` of the tokens of a block, or ``max``, column by column.
        scale: default 1 / √head_dim.

    Raises:
        OperandError: shapes that do not fit.
        MatrixError: a block that is none.
    """
    require_tensors(q=q, k=k)
    for name, tensor in (("q", q), ("k", k)):
        require_real(tensor, name)
        if tensor.dim() != 4 or not tensor.shape[2] * tensor.shape[3]:
            raise OperandError(
                f"{name}: expected batch × heads × tokens × head_dim, got shape {tuple(tensor.shape)}"
            )
    heads, kv_heads = q.shape[1], k.shape[1]
    if k.shape[::3] != q.shape[::3] or not kv_heads or heads % kv_heads:
        raise OperandError(
            f"k: expected {q.shape[0]} × a divisor of {heads} heads × any keys × {q.shape[3]}, got {tuple(k.shape)}"
        )
    if q.device != k.device:
        raise OperandError(f"k: expected it on {q.device}, got {k.device}")
    how = member(Pooling, pooling, "pooling", OperandError)
    _, sides = checked_blocks((q.shape[2], k.shape[2]), block)
    factor = q.shape[3] ** -0.5 if scale is None else arguments.factor(scale, "scale", OperandError)
    return pooled(q.detach(), k.detach(), *sides, str(how), factor)


def _check_scores(scores: Tensor) -> None:
    require_tensors(scores=scores)
    require_real(scores, "scores")
    if scores.dim() < 2 or not scores.shape[-1] * scores.shape[-2]:
        raise OperandError(
            f"scores: expected ... × rows × columns of blocks, got shape {tuple(scores.shape)}"
        )


def _broadcasts(tensor: Tensor, to: Tensor) -> bool:
    require_tensors(least=tensor)
    try:
        return tensor.device == to.device and torch.broadcast_shapes(tensor.shape, to.shape) == to.shape
    except RuntimeError:  # their sizes differ
        return False


def _count(keep: int | float, there: int) -> int:
    if isinstance(keep, float):
        if not 0 < keep <= 1:
            raise OperandError(
                f"keep = {keep:g}: a share is above 0 and at most 1.0, a number of blocks whole"
            )
        return max(1, round(keep * there))
    return arguments.whole(keep, "keep", OperandError, least=1, most=there)
