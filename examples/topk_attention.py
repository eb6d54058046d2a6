"""A layer of attention that sees the blocks of keys with the largest pooled scores; the mask follows the tensors.

python examples/topk_attention.py
"""

from __future__ import annotations

import sys

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch. examples/quickstart.py does not.")

from sparsegen.integrations.torch import block_attention, masks


class TopkAttention(nn.Module):
    def __init__(self, width: int, heads: int, keep: float, block: int = 64) -> None:
        super().__init__()
        self.heads, self.keep, self.block = heads, keep, block
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2))
        side, shape = self.block, (x.shape[1], x.shape[1])
        causal = masks.window_blocks(shape, side, causal=True, device=x.device)
        near = masks.window_blocks(shape, side, causal=True, window=side, device=x.device)
        scores = masks.pooled_scores(q, k, side).masked_fill(~causal.blocks(), -torch.inf)
        mask = masks.topk_blocks(scores, self.keep, side, shape) | near
        seen = block_attention(q, k, v, mask, causal=True)
        return self.out(seen.transpose(1, 2).flatten(2))


if __name__ == "__main__":
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layer = TopkAttention(256, 4, keep=0.25).to(where, torch.bfloat16)
    layer(torch.randn(1, 512, 256, device=where, dtype=torch.bfloat16)).square().mean().backward()
    print(f"gradient of {layer.qkv.weight.grad.abs().mean():.2e} on {where}")
