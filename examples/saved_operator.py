"""An operator saved with its packed matrix and its compiled kernel's source: the next process starts at once.

python examples/saved_operator.py
"""

import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse

import sparsegen

matrix = scipy.sparse.random(256, 128, 0.1, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
x = np.random.default_rng(1).standard_normal((128, 8), dtype=np.float32)
op = sparsegen.prepare(matrix, n=8)

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "layer.spop")
    sparsegen.save_operator(op, file)
    again = sparsegen.load_operator(file)
    print(f"{file.stat().st_size / 1000:.0f} kB; equal bits: {np.array_equal(op(x), again(x))}")
