"""Attention of sequences of different lengths that lie behind one another (varlen), with masks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsegen import arguments
from sparsegen.errors import OperandError
from sparsegen.integrations.torch.attention.block_attention import block_attention
from sparsegen.integrations.torch.blocks.block_masks import BlockMaskTensor, check_mask
from sparsegen.integrations.torch.blocks.partial_blocks import PartialBlocks
from sparsegen.integrations.torch.calls.tensor_checks import require_tensors
from sparsegen.matrix.block_mask import checked_blocks, grid
from sparsegen.operators.attention.span import OPEN

Side = int | tuple[int, int]


def varlen_block_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    mask: BlockMaskTensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    block: Side = 128,
    **options: Any,
) -> Any:
    """`block_attention` of sequences that lie behind one another: queries see keys of their own sequence.

    The sequences become a mask of blocks and the bits of its partial blocks (`varlen_blocks`), on the tensors' device
    and without waiting for it: blocks of two sequences cost nothing, and what no two queries of a block see alike is
    exact. For several calls with the same lengths make them once.

    Args:
        q: queries of all sequences × heads × head_dim.
        k, v: keys of all sequences × heads of keys × head_dim.
        cu_seqlens_q, cu_seqlens_k: int32 or int64, sequences + 1: where each sequence begins, and the end; those of the
            keys are by default those of the queries. Their contents are not checked.
        mask: over all queries × all keys, for all heads, or one for each; the blocks that may live.
        causal, window: as in `block_attention`, within each sequence, whose last query stands beside its last key.
        block: queries and keys of a block without a mask.
        options: ``scale``, ``softcap``, ``sink_logits``, ``return_lse``, ``deterministic`` of `block_attention`.

    Returns:
        Queries × heads × head_dim; with ``return_lse`` also the LSE, heads × queries.

    Raises:
        OperandError: tensors or options that do not fit, by name.
    """
    require_tensors(q=q, k=k, v=v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 3:
            raise OperandError(f"{name}: expected tokens × heads × head_dim, got shape {tuple(tensor.shape)}")
    unknown = set(options) - {"scale", "softcap", "sink_logits", "return_lse", "deterministic"}
    if unknown:
        raise OperandError(f"{min(unknown)}: varlen_block_attention takes none")
    shape = int(q.shape[0]), int(k.shape[0])
    if mask is not None:
        check_mask(mask)
        if mask.shape != shape or len(mask.lead) > 1:
            raise OperandError(f"mask: expected one over {shape[0]} × {shape[1]}, or one a head, got {mask}")
        block = mask.block
    own, partial = varlen_blocks(cu_seqlens_q, cu_seqlens_k, shape, block, causal=causal, window=window)
    both = own if mask is None else own & mask
    found = block_attention(q[None], k[None], v[None], both, elements=partial, order="tokens", **options)
    return tuple(one[0] for one in found) if isinstance(found, tuple) else found[0]


def varlen_blocks(
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    shape: tuple[int, int],
    block: Side = 128,
    *,
    causal: bool = False,
    window: int | None = None,
    density: float = 0.5,
) -> tuple[BlockMaskTensor, PartialBlocks]:
    """The mask and the partial blocks of sequences that lie behind one another; see `varlen_block_attention`.

    Args:
        shape: queries and keys of all sequences.
        density: the share of live blocks that is expected.

    Raises:
        OperandError: no lengths, or a window that is none.
        MatrixError: a shape or a block that is none.
    """
    cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    require_tensors(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    for name, tensor in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        is_whole = tensor.dtype in (torch.int32, torch.int64)
        if not is_whole or tensor.dim() != 1 or tensor.shape != cu_seqlens_q.shape or tensor.numel() < 2:
            raise OperandError(
                f"{name}: expected torch.int32, sequences + 1, as many for queries as for keys, got {tensor.dtype} of "
                f"shape {tuple(tensor.shape)}"
            )
    shape, block = checked_blocks(shape, block)
    most = 0 if arguments.flag(causal, "causal", OperandError) else OPEN
    least = -OPEN
    if window is not None:
        least = 1 - arguments.whole(window, "window", OperandError, least=1, most=OPEN)
        most = min(most, -least)
    sequences = _Sequences(cu_seqlens_q.long(), cu_seqlens_k.long(), least, most)
    layout = grid(shape, block)
    room = 4 * (layout.rows + layout.columns) + 8 * cu_seqlens_q.numel()
    live, partial = sequences.blocks(shape, block)
    mask = BlockMaskTensor.from_blocks(live, block, shape, density=density)
    found = PartialBlocks.of_function(sequences.sees, partial[None, None], shape, block, room)
    return mask, found


class _Sequences:
    """Ends of sequences, and the band of each.

    Attributes:
        ends: of queries and keys, sequences + 1: the last of a sequence stand beside each other.
    """

    def __init__(self, q: Tensor, k: Tensor, least: int, most: int) -> None:
        self.ends, self.least, self.most = (q, k), least, most

    def _of(self, tokens: Tensor, which: int) -> Tensor:
        """The sequences of tokens: of those past the last one, a number behind the sequences."""
        return torch.searchsorted(self.ends[which], tokens, right=True) - 1

    def _distance(self, sequence: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Distances of keys behind queries, counted from the end of their sequence."""
        last = self.ends[0].numel() - 1
        at = (sequence + 1).clamp(max=last)
        return (k - self.ends[1][at]) - (q - self.ends[0][at])

    def sees(self, _item: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """True where a query sees a key."""
        of_q, of_k = self._of(q, 0), self._of(k, 1)
        distance = self._distance(of_q, q, k)
        return (of_q == of_k) & (distance <= self.most) & (distance >= self.least)

    def blocks(self, shape: tuple[int, int], block: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """The blocks that may live, among them all that do, and those of them that may be partial."""
        place, layout = self.ends[0].device, grid(shape, block)
        q = torch.arange(layout.rows, device=place)[:, None] * block[0]
        k = torch.arange(layout.columns, device=place) * block[1]
        last_q, last_k = (
            (q + block[0] - 1).clamp(max=shape[0] - 1),
            (k + block[1] - 1).clamp(max=shape[1] - 1),
        )
        (q_least, q_most), (k_least, k_most) = (
            (self._of(q, 0), self._of(last_q, 0)),
            (self._of(k, 1), self._of(last_k, 1)),
        )
        live = (q_least <= k_most) & (k_least <= q_most)
        is_one = (q_least == q_most) & (k_least == k_most) & (q_least == k_least)
        # Within one sequence a rectangle of places has every distance between those of two of its corners.
        nearest, farthest = self._distance(q_least, last_q, k), self._distance(q_least, q, last_k)
        live &= ~is_one | ((nearest <= self.most) & (farthest >= self.least))
        is_whole = is_one & (farthest <= self.most) & (nearest >= self.least)
        return live, live & ~is_whole
