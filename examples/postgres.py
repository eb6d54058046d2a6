"""One PostgreSQL database for many hosts: what this process measures, every other one looks up.

pip install '.[postgres]' && python examples/postgres.py postgresql://me@db-host/tuning
"""

import sys

import numpy as np
import scipy.sparse

import sparsegen

if len(sys.argv) < 2:
    sys.exit("Name a database by its URL: python examples/postgres.py postgresql://me@db-host/tuning")

db = sys.argv[1]  # or SPARSEGEN_DB, for all commands and calls
matrix = scipy.sparse.random(128, 96, 0.1, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
found = sparsegen.tune(matrix, n=16, families=["csr_spmm"], trials=2, db=db)
print(f"recorded: {found.winner.variant.family} on {found.device.name}")
print(sparsegen.lookup(matrix, n=16, db=db).explain().splitlines()[0])
