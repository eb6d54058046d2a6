"""Softmax over the nonzeros of each row: routing weights of a mixture whose tokens see few experts each.

python examples/sparse_softmax.py
"""

import numpy as np
import scipy.sparse

import sparsegen

TOKENS, EXPERTS = 128, 64
rng = np.random.default_rng(0)
allowed = scipy.sparse.random(TOKENS, EXPERTS, 0.1, format="csr", dtype=np.float32, rng=rng)
logits = rng.standard_normal(allowed.nnz, dtype=np.float32)  # one for each allowed pair, in CSR order

softmax = sparsegen.prepare(allowed, operator="sparse_softmax", scale=0.5)
weights = softmax(logits)

rows = np.repeat(np.arange(TOKENS), np.diff(allowed.indptr))
sums = np.bincount(rows, weights, TOKENS)
print(softmax.explain().splitlines()[0])
print(f"rows with experts add up to 1 within {np.abs(sums[np.diff(allowed.indptr) > 0] - 1).max():.0e}")
