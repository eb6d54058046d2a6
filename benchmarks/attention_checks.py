"""Shared parts of studies of attention: O and gradients held against float32, and FlexAttention's masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.study import WrongResultError
from sparsegen.integrations.torch import BlockMaskTensor, masks

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
USUAL_TILE = 128  # of FlexAttention's kernels, which must divide blocks


def attended(attend: Attend, given: Sequence[Tensor]) -> list[Tensor]:
    """O and the gradients by Q, K and V, of Q, K, V and the gradient by O."""
    q, k, v = (tensor.detach().requires_grad_() for tensor in given[:3])
    out = attend(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3])]


def largest_errors(
    found: Mapping[str, Sequence[Tensor]],
    given: Sequence[Tensor],
    seen_by: Callable[[int], Tensor],
    heads: Iterable[int],
    tolerance: float,
) -> dict[str, float]:
    """The largest error over the largest element, of what `attended` gave each implementation, against float32.

    Args:
        seen_by: queries × keys of bool, by a head's number.
        heads: number of heads that are looked at, one after the other: scores of all would take much memory.

    Raises:
        WrongResultError: an error is over the tolerance.
    """
    errors = dict.fromkeys(found, 0.0)
    for head in heads:
        one, seen = slice(head, head + 1), seen_by(head)

        def dense(q: Tensor, k: Tensor, v: Tensor, seen: Tensor = seen) -> Tensor:
            return scaled_dot_product_attention(q, k, v, attn_mask=seen)

        right = attended(dense, [t[:, one].float() for t in given])
        for name, results in found.items():
            for result, wanted in zip(results, right, strict=True):
                off = (result[:, one].float() - wanted).abs().max() / wanted.abs().max()
                errors[name] = max(errors[name], float(off))
    for name, error in errors.items():
        if not error <= tolerance:
            raise WrongResultError(f"{name}: the error is {error:.3g} of the largest element")
    return errors


def flex_implementation(mask: BlockMaskTensor, *, causal: bool = False) -> Attend:
    """FlexAttention, compiled, with the same blocks of each head; causal, those on the diagonal live in part."""
    live, side = mask.blocks(), mask.block[0]
    in_part = torch.zeros_like(live)
    if causal:
        in_part = live & torch.eye(live.shape[-1], dtype=torch.bool, device=live.device)
    parts: list[Tensor] = []
    for blocks in (in_part, live & ~in_part):
        parts += masks.to_counts(BlockMaskTensor.from_blocks(blocks, mask.block, mask.shape))

    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        of_block = live[h, q // side, k // side]
        return of_block & (q >= k) if causal else of_block

    block_mask = flex_attention.BlockMask.from_kv_blocks(
        *(part[None] for part in parts), BLOCK_SIZE=mask.block, mask_mod=seen, seq_lengths=mask.shape
    )
    options = {
        "max_autotune": side < USUAL_TILE
    }  # no usual tile divides smaller blocks backward: NoValidChoices
    compiled = torch.compile(flex_attention.flex_attention, dynamic=False, options=options)
    return lambda q, k, v: compiled(q, k, v, block_mask=block_mask)
