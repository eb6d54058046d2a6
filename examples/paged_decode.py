"""Tokens that attend to the pages of a cache with the best scores, as in Quest: each head of keys chooses its own.

python examples/paged_decode.py
"""

from __future__ import annotations

import sys

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch. examples/quickstart.py does not.")

from sparsegen.integrations.torch import paged_attention

where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
batch, heads, kv_heads, head_dim, page, slots, keep = 2, 8, 2, 64, 16, 32, 8
like = {"device": where, "dtype": torch.bfloat16}

# A cache as a server keeps it: pages in any order, and of each page the mean of its keys.
pool = batch * slots
k_pages, v_pages = (torch.randn(pool, page, kv_heads, head_dim, **like) for _ in range(2))
table = torch.randperm(pool, device=where).view(batch, slots).int()
lengths = torch.tensor([page * slots, 300], device=where, dtype=torch.int32)
means = k_pages.float().mean(1)[table.long()]  # batch × places × heads of keys × head_dim

q = torch.randn(batch, 1, heads, head_dim, **like)
of_keys = q.float().view(batch, kv_heads, -1, head_dim).sum(2)  # queries that share keys choose together
scores = torch.einsum("bhd,bshd->bhs", of_keys, means)
places = torch.arange(slots, device=where)
last = (lengths[:, None, None] - 1) // page
scores = scores.masked_fill(places > last, -torch.inf).masked_fill(
    places == last, torch.inf
)  # the newest page always
pages = scores.topk(keep).indices.int()

out = paged_attention(q, k_pages, v_pages, table, lengths, pages)
whole = paged_attention(q, k_pages, v_pages, table, lengths)
print(f"{keep} of {slots} pages: {(out - whole).abs().max():.2f} off on {where}")
