"""Sparse attention of several heads on one mask, from NumPy: a window with sinks, as in StreamingLLM.

python examples/batched_attention.py
"""

import numpy as np

import sparsegen
from sparsegen import masks

HEADS, TOKENS, HEAD_DIM = 2, 96, 32
mask = masks.sliding_window(TOKENS, window=16, sinks=4)
attention = sparsegen.prepare_attention(mask, heads=HEADS, head_dim=HEAD_DIM)
q, k, v = np.random.default_rng(0).standard_normal((3, HEADS, TOKENS, HEAD_DIM), dtype=np.float32)
out = attention(q, k, v)

seen = mask.to_scipy().toarray() != 0
scores = np.where(seen, q @ k.swapaxes(1, 2) / np.sqrt(HEAD_DIM), -np.inf)
weights = np.exp(scores - scores.max(-1, keepdims=True))
exact = weights / weights.sum(-1, keepdims=True) @ v
print(
    f"{mask.nnz / TOKENS**2:.0%} of the scores; largest difference from NumPy {np.abs(out - exact).max():.1e}"
)
print(attention.explain())
