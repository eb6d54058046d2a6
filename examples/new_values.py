"""The same pattern with new values, step after step: nothing is packed, planned or compiled again.

python examples/new_values.py
"""

import numpy as np
import scipy.sparse

import sparsegen

rng = np.random.default_rng(0)
weight = scipy.sparse.random(96, 64, 0.2, format="csr", dtype=np.float32, rng=rng)
op = sparsegen.prepare(weight, n=16)
x = rng.standard_normal((64, 16), dtype=np.float32)

for step in range(3):
    weight.data -= 0.1 * rng.standard_normal(weight.nnz, dtype=np.float32)  # an optimizer's step
    op.update_values(weight.data)  # in the order of the CSR matrix
    print(f"step {step}: largest difference from SciPy {np.abs(op(x) - weight @ x).max():.1e}")
