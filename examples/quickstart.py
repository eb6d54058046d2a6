"""Tune a pruned layer once, then multiply with the winner from NumPy: on a GPU, or without one on the emulator.

python examples/quickstart.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import sparsegen

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")
N = 64  # columns of B: samples in a batch


def main() -> None:
    layer = sparsegen.load_matrix(LAYER)
    m, k = layer.shape
    print(f"{LAYER.name}: {m} × {k}, {layer.nnz} nonzeros")

    # Measured once; the same call finds what is recorded already and returns at once.
    result = sparsegen.tune(layer, n=N, trials=8)
    print(
        f"tuned on {result.device.name}: {result.winner.variant.family} is the fastest of {result.counts.tried}"
    )

    # Looks the winner up, compiles it (or finds it compiled), packs and uploads the matrix.
    op = sparsegen.prepare(layer, n=N)
    print(op.explain())

    b = np.random.default_rng(0).standard_normal((k, N), dtype=np.float32)
    c = op(b)  # m × n
    exact = layer.to_scipy().astype(np.float64) @ b
    print(f"largest difference from SciPy in float64: {np.abs(c - exact).max():.1e}")


if __name__ == "__main__":
    main()
