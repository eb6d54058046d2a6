"""Prune a trained layer in two patterns, and tune the kernel of each: on a GPU, or without one on the emulator.

python examples/prune_and_tune.py
"""

from __future__ import annotations

from pathlib import Path

import sparsegen

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")
N = 64  # columns of B: samples in a batch
SPARSITY = 0.95


def main() -> None:
    weights = (
        sparsegen.load_matrix(LAYER).to_scipy().toarray()
    )  # PyTorch tensors and dictionaries work as well
    for pattern in ("unstructured", "uniform"):
        pruned = sparsegen.prune(weights, pattern=pattern, sparsity=SPARSITY)
        layer = pruned.report.layers[0]
        result = sparsegen.tune(pruned.weights, n=N, trials=4)
        sample = result.winner.sample
        assert sample is not None
        print(
            f"{pattern}: {layer.sparsity:.2%} zeros, rows of {layer.features.row_mean:.1f} ± "
            f"{layer.features.row_cov:.0%}, {layer.kept_energy:.1%} of the energy kept, "
            f"{result.winner.variant.family} takes {sample.median_us:,.1f} µs on {result.device.name}"
        )


if __name__ == "__main__":
    main()
