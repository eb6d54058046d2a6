"""Two layers of a graph convolution (Kipf and Welling 2017) on a generated graph of communities.

python examples/graph_convolution.py
"""

import numpy as np
import scipy.sparse

import sparsegen

NODES, FEATURES, HIDDEN, CLASSES = 400, 32, 16, 4
rng = np.random.default_rng(0)
community = rng.integers(0, CLASSES, NODES)
is_same = community[:, None] == community[None, :]
edges = np.triu(rng.random((NODES, NODES)) < np.where(is_same, 0.06, 0.004), 1)
with_loops = scipy.sparse.csr_array((edges + edges.T + np.eye(NODES)).astype(np.float32))
degree = scipy.sparse.diags_array(with_loops.sum(axis=1) ** -0.5)
adjacency = (degree @ with_loops @ degree).tocsr().astype(np.float32)  # D^-1/2 (A + I) D^-1/2

hidden = sparsegen.prepare(adjacency, n=HIDDEN)
spread = sparsegen.prepare(adjacency, n=CLASSES)

# Features are noise with a hint of the community; the weights average them: what spreads along edges tells classes.
x = (
    rng.standard_normal((NODES, FEATURES), dtype=np.float32)
    + 0.8 * np.eye(FEATURES, dtype=np.float32)[community]
)
first = np.eye(FEATURES, HIDDEN, dtype=np.float32)
second = np.eye(HIDDEN, CLASSES, dtype=np.float32)
scores = spread(np.maximum(hidden(x @ first), 0) @ second)

print(f"{adjacency.nnz} edges; {hidden.explain().splitlines()[0]}")
print(f"right without edges: {np.mean((x @ first @ second).argmax(1) == community):.0%}")
print(f"right by the graph:  {np.mean(scores.argmax(1) == community):.0%}")
