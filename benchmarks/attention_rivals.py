"""PyTorch's attentions for `benchmarks.attention`: dense ones, with and without the mask, and FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # of heads × tokens × width
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
MASKED = ("efficient", "math")  # take any mask


@dataclass(frozen=True)
class Rival:
    """An attention to compare with.

    Attributes:
        sees_mask: whether it computes the sparse attention; otherwise the dense causal one.
        make: gets ready, which may compile; may raise whatever PyTorch raises.
    """

    name: str
    sees_mask: bool
    make: Callable[[], Attention]


def rivals(mask: Tensor, *, compiled: bool) -> Iterator[Rival]:
    """All of them.

    Args:
        mask: queries × keys of bool, where attention is paid.
        compiled: whether FlexAttention is compiled, as it is meant to be; it cannot be without Triton.
    """
    for name, backend in BACKENDS.items():
        yield Rival(f"dense {name}", False, lambda b=backend: _dense(b, None))
    for name in MASKED:
        yield Rival(f"masked {name}", True, lambda b=BACKENDS[name]: _dense(b, mask))
    yield Rival("flex", True, lambda: _flex(mask, compiled=compiled))


def _dense(backend: SDPBackend, mask: Tensor | None) -> Attention:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            four = (t[None] for t in (q, k, v))
            found: Tensor = scaled_dot_product_attention(*four, attn_mask=mask, is_causal=mask is None)
            return found[0]

    return run


def _flex(mask: Tensor, *, compiled: bool) -> Attention:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mask[query, key]

    blocks = create_block_mask(is_seen, None, None, *mask.shape, device=str(mask.device))
    attend: Any = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found: Tensor = attend(q[None], k[None], v[None], block_mask=blocks)
        return found[0]

    return run


class Referee:
    """Attention in float64 on a sample of the queries, causal and at the mask.

    Args:
        mask: as of `rivals`.
        rows: how many queries, the first and the last among them.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, rows: int = 24) -> None:
        length = q.shape[1]
        inner = torch.randperm(length, generator=torch.Generator().manual_seed(3))[: max(0, rows - 2)]
        self._rows = torch.cat((torch.tensor([0, length - 1]), inner)).to(q.device)
        scores = q[:, self._rows].double() @ k.double().mT * q.shape[2] ** -0.5
        causal = torch.arange(length, device=q.device) <= self._rows[:, None]
        self._exact = {
            sees_mask: torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=2) @ v.double()
            for sees_mask, seen in ((True, mask[self._rows]), (False, causal))
        }

    def worst_error(self, out: Tensor, *, sees_mask: bool) -> float:
        """The largest error over the largest result; infinite if it is no number."""
        exact = self._exact[sees_mask]
        worst = float((out[:, self._rows].double() - exact).abs().max() / exact.abs().max())
        return worst if worst == worst else float("inf")
