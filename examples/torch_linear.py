"""A pruned linear layer with its bias and ReLU as one sparse kernel, called with PyTorch tensors.

python examples/torch_linear.py

On a GPU the operator takes CUDA tensors in place, on PyTorch's current stream. The emulator takes and gives
NumPy arrays, so that the same kernel can be tried where there is no GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sparsegen

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch. examples/quickstart.py does not.")

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")
TOKENS = 128


def main() -> None:
    torch.manual_seed(0)
    weight = sparsegen.load_matrix(LAYER).to_scipy().toarray()
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))

    # layout="column": activations are tokens × features, as PyTorch has them, and nothing is transposed.
    op = sparsegen.prepare(linear.weight, n=TOKENS, layout="column", epilogue="bias_relu", bias=linear.bias)
    print(op.explain())

    x = torch.randn(TOKENS, linear.in_features)
    on_gpu = op.device.backend == "cuda"
    y = op(x.to(f"cuda:{op.device.index}")).cpu() if on_gpu else torch.from_numpy(op(x.numpy()))
    with torch.no_grad():
        expected = torch.relu(linear(x))
    print(
        f"{tuple(x.shape)} → {tuple(y.shape)}, largest difference from PyTorch: {(y - expected).abs().max():.1e}"
    )


if __name__ == "__main__":
    main()
