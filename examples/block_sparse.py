"""Weights pruned in blocks of 16 × 16, in float16: what tensor cores multiply.

python examples/block_sparse.py
"""

import numpy as np

import sparsegen

rng = np.random.default_rng(0)
weight = rng.standard_normal((128, 192), dtype=np.float32)
pruned = sparsegen.prune({"mlp.weight": weight}, pattern="block", sparsity=0.75, block=(16, 16))
[layer] = pruned.report.layers
print(f"{layer.name}: sparsity {layer.sparsity:.0%}, {layer.kept_energy:.0%} of the squares kept")

x = rng.standard_normal((192, 32)).astype(np.float16)
for family in ("block_spmm", "csr_spmm"):
    op = sparsegen.prepare(pruned.weights["mlp.weight"], n=32, dtype="float16", family=family)
    exact = pruned.weights["mlp.weight"] @ x.astype(np.float32)
    print(f"{family}: largest difference from float32 {np.abs(op(x) - exact).max():.1e}")
