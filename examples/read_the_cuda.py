"""The CUDA source that a choice stands for: rendered on any machine, no GPU and no compiler needed.

python examples/read_the_cuda.py
"""

from pathlib import Path

import sparsegen
from sparsegen.operators import SpmmProblem
from sparsegen.render import render

layer = sparsegen.load_matrix(Path(__file__).with_name("pruned_mlp_layer.npz"))
choice = sparsegen.lookup(layer, n=64, dtype="float16", layout="column")
print(choice.explain())

problem = SpmmProblem.of(layer.shape, n=64, dtype="float16", layout="column")
source = render(choice.family, problem, choice.config)
lines = source.splitlines()
print("\n".join(lines[:6]))  # what it is, after which paper, problem and config
print(f"... {len(lines)} lines, of which these are the constants that were tuned:")
print("\n".join(line for line in lines if line.startswith("constexpr int kTile")))
# sparsegen source --matrix ... --ptx, --sass and --resources show what becomes of it (nvcc needed)
