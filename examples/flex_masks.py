"""A mask of FlexAttention's runs in sparsegen's block attention, forward and backward.

python examples/flex_masks.py
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask

from sparsegen.integrations.torch import block_attention, from_flex

TOKENS, HEADS, HEAD_DIM, BLOCK, DOCUMENT = 256, 2, 64, 64, 128


def same_document(batch, head, query, key):
    """Documents packed into one sequence do not see each other."""
    return query // DOCUMENT == key // DOCUMENT


where = "cuda" if torch.cuda.is_available() else "cpu"
theirs = create_block_mask(same_document, None, None, TOKENS, TOKENS, device=where, BLOCK_SIZE=BLOCK)
mask = from_flex(theirs, allow_partial=True)  # documents end where blocks end: none is partial
print(theirs)

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, HEADS, TOKENS, HEAD_DIM, device=where, dtype=torch.float16).unbind()
q.requires_grad_()
out = block_attention(q, k, v, mask, causal=True)
out.float().square().mean().backward()

rows = torch.arange(TOKENS, device=where)
seen = same_document(0, 0, rows[:, None], rows) & (rows[:, None] >= rows)
exact = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=seen)
print(f"largest difference from PyTorch in float32: {(out - exact).abs().max():.1e}")
print(f"gradient of q: {q.grad.abs().mean():.1e}")
