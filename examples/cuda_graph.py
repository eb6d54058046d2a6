"""An operator in a CUDA graph of PyTorch's: captured once, replayed without any work of the host's (needs a GPU).

python examples/cuda_graph.py
"""

import sys

import torch

import sparsegen

if not torch.cuda.is_available():
    sys.exit("This example needs a GPU: the emulator has no CUDA graphs.")

torch.manual_seed(0)
weight = torch.randn(512, 256) * (torch.rand(512, 256) < 0.1)
op = sparsegen.prepare(weight, n=64, dtype="float16", layout="column", dense="never")
x = torch.randn(64, 256, device="cuda", dtype=torch.float16)  # tokens × features
y = op(x)  # compiles, packs and uploads, which no capture may

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    op(x, out=y)
for _ in range(3):
    x.normal_()
    graph.replay()
exact = x.float() @ weight.cuda().T
print(f"largest difference from a dense product: {(y - exact).abs().max():.1e}")
