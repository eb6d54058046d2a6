"""Attention over the tokens of a video that sees the blocks of keys with the largest pooled scores, and near frames.

python examples/video_attention.py
"""

import torch

from sparsegen.integrations.torch import block_attention, masks

FRAMES, PER_FRAME, HEADS, HEAD_DIM, BLOCK = 8, 32, 2, 64, 64
TOKENS = FRAMES * PER_FRAME

torch.manual_seed(0)
where = "cuda" if torch.cuda.is_available() else "cpu"
scene = torch.randn(1, HEADS, 1, PER_FRAME, HEAD_DIM, device=where)  # frames resemble each other
motion = torch.randn(1, HEADS, FRAMES, PER_FRAME, HEAD_DIM, device=where)
q, k, v = ((scene + 0.5 * motion).flatten(2, 3).half() for _ in range(3))

scores = masks.pooled_scores(q, k, BLOCK)  # batch × heads × blocks of queries × blocks of keys
best = masks.topk_blocks(scores, 2, BLOCK, (TOKENS, TOKENS))
near = masks.window_blocks((TOKENS, TOKENS), BLOCK, window=BLOCK, device=where)
mask = best | near
out = block_attention(q, k, v, mask)

exact = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
print(f"{mask.blocks().float().mean():.0%} of the blocks are computed")
print(f"relative error against all of them: {(out - exact).norm() / exact.norm():.0%}")
