"""A first speed-up: a pruned model of a decoder's sizes, converted where it is called, timed before and after.

python examples/first_speedup.py
"""

import time

import torch
from torch import nn

from sparsegen.integrations.torch import convert

GPU = torch.cuda.is_available()  # without one: small, and PyTorch's own products
WIDTH, HIDDEN, BLOCKS, TOKENS = (4096, 11008, 4, 8) if GPU else (64, 128, 1, 8)
kind = {"device": "cuda", "dtype": torch.float16} if GPU else {"dtype": torch.float32}

torch.manual_seed(0)
layers: list[nn.Module] = []
for _ in range(BLOCKS):
    layers += [nn.Linear(WIDTH, HIDDEN, **kind), nn.ReLU(), nn.Linear(HIDDEN, WIDTH, **kind)]
model = nn.Sequential(*layers).requires_grad_(False).eval()
x = torch.randn(TOKENS, WIDTH, **kind)

began = time.perf_counter()
report = convert(model, "unstructured", 0.7, example_inputs=x)  # a pruned model of yours: convert(model, ...)
print(report)
found = report.in_situ
assert found is not None
print(f"{found.dense_us / found.final_us:.2f} times as fast as dense")
print(f"converted within {time.perf_counter() - began:.1f} s")
