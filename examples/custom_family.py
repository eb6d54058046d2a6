"""A kernel family of your own: checked by sparsegen's contract tests, with a bug that they catch, then tuned.

python examples/custom_family.py
"""

import numpy as np
import scipy.sparse
from own_family.row_spmm import FAMILY

import sparsegen
from sparsegen.errors import ContractError, KernelFault
from sparsegen.kernels import register
from sparsegen.operators import DType, Epilogue, Layout
from sparsegen.testing import Kind, PlantedBugs, check_family

# Every rule of declarations, and variants on adversarial matrices under AddressSanitizer, on the emulator.
print(f"{len(check_family(FAMILY))} checks hold")

# Do the tests see anything? This reads the row behind each row, and one past the end of A.
kind = Kind.spmm(20, DType.FLOAT32, Layout.ROW, Epilogue.NONE)
bugs = PlantedBugs(
    FAMILY, kind, {}, {"no end of the row": ("i < row_offsets[row + 1]", "i <= row_offsets[row + 1]")}
)
try:
    bugs.check("no end of the row")
except (ContractError, KernelFault) as caught:
    print("caught:", str(caught).partition(" on ")[0])

# From here on it competes with sparsegen's own families, in child processes too.
register(FAMILY)
matrix = scipy.sparse.random(128, 96, 0.1, format="csr", random_state=0, dtype=np.float32)
sparsegen.tune(matrix, n=16, families=["row_spmm", "csr_spmm"], trials=4)
op = sparsegen.prepare(matrix, n=16, family="row_spmm")
b = np.random.default_rng(0).standard_normal((96, 16)).astype(np.float32)
print(op.explain())
print(f"largest difference from NumPy: {np.abs(op(b) - matrix @ b).max():.1e}")
