"""Personalised PageRank of many users at once: one sparse product for each step of the power iteration.

python examples/pagerank.py
"""

import numpy as np

import sparsegen
from sparsegen.matrix.generators import power_law

PAGES, USERS, DAMPING = 600, 8, 0.85
links = (
    power_law(PAGES, PAGES, 0.02, seed=0).to_scipy().copy()
)  # row i: the pages that link to i; few have most links
links.data[:] = 1
out = np.asarray(links.sum(axis=0)).ravel()
links.data /= np.maximum(out, 1)[links.indices]  # columns add up to 1

step = sparsegen.prepare(links, n=USERS)
rng = np.random.default_rng(0)
home = np.zeros((PAGES, USERS), np.float32)
home[rng.integers(0, PAGES, USERS), np.arange(USERS)] = 1  # where each user starts again

rank, change, steps = home, 1.0, 0
while change > 1e-4:
    following = DAMPING * step(rank) + (1 - DAMPING) * home
    following += home * (1 - following.sum(axis=0))  # pages without links lead back home
    change, rank, steps = np.abs(following - rank).sum(axis=0).max(), following, steps + 1
print(f"{links.nnz} links, {steps} steps, ranks add up to 1 within {np.abs(rank.sum(axis=0) - 1).max():.0e}")
print("first pages of user 0:", np.argsort(-rank[:, 0])[:5])
