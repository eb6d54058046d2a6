"""Makes examples/pruned_mlp_layer.npz: trains a small network on real data, prunes one layer, trains on.

The data are the 1,797 handwritten digits (8 × 8 pixels) that scikit-learn carries; the network is an MLP
64 → 256 → 512 → 10 with ReLU, trained with Adam. Its middle layer, 512 × 256, loses its smallest weights step
by step until 90 % are zero, while training goes on (gradual magnitude pruning: Zhu and Gupta, "To prune, or
not to prune", 2017).

    pip install scikit-learn
    python examples/train_pruned_mlp.py

Needs scikit-learn for the data only; it takes half a minute on one core.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.datasets import load_digits

LAYER = Path(__file__).with_name("pruned_mlp_layer.npz")
WIDTHS = (64, 256, 512, 10)
PRUNED = 1  # index of the pruned layer: 256 → 512
SPARSITY = 0.9
DENSE_EPOCHS, PRUNING_EPOCHS, FINE_TUNING_EPOCHS = 30, 30, 30
BATCH = 64
SEED = 0

Array = NDArray[np.float32]


class Mlp:
    """Weights are out × in, activations batch × features; a mask keeps pruned weights at zero."""

    def __init__(self, rng: np.random.Generator) -> None:
        pairs = list(pairwise(WIDTHS))
        self.weights = [
            (rng.standard_normal((outs, ins)) * np.sqrt(2 / ins)).astype(np.float32) for ins, outs in pairs
        ]
        self.biases = [np.zeros(outs, np.float32) for _, outs in pairs]
        self.mask = np.ones_like(self.weights[PRUNED])

    def forward(self, x: Array) -> list[Array]:
        """The input and every layer's output; the last are the logits."""
        outputs = [x]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            y = outputs[-1] @ weight.T + bias
            outputs.append(y if layer == len(self.weights) - 1 else np.maximum(y, 0))
        return outputs

    def gradients(self, x: Array, labels: NDArray[np.int64]) -> list[Array]:
        """Gradients of the mean cross-entropy, for the weights and then the biases."""
        outputs = self.forward(x)
        logits = outputs[-1] - outputs[-1].max(axis=1, keepdims=True)
        flow = np.exp(logits)
        flow /= flow.sum(axis=1, keepdims=True)
        flow[np.arange(len(x)), labels] -= 1
        flow /= len(x)
        weights, biases = [], []
        for layer in reversed(range(len(self.weights))):
            weights.insert(0, flow.T @ outputs[layer])
            biases.insert(0, flow.sum(axis=0))
            flow = (flow @ self.weights[layer]) * (outputs[layer] > 0)
        weights[PRUNED] *= self.mask
        return weights + biases

    def prune(self, sparsity: float) -> None:
        """Zero the smallest weights of the pruned layer, for good."""
        magnitudes = np.abs(self.weights[PRUNED])
        zeros = round(sparsity * magnitudes.size)
        threshold = np.partition(magnitudes, zeros - 1, axis=None)[zeros - 1]
        self.mask = (magnitudes > threshold).astype(np.float32)
        self.weights[PRUNED] *= self.mask

    def accuracy(self, x: Array, labels: NDArray[np.int64]) -> float:
        return float(np.mean(self.forward(x)[-1].argmax(axis=1) == labels))


class Adam:
    def __init__(self, parameters: list[Array], rate: float = 1e-3) -> None:
        self.parameters, self.rate, self.step = parameters, rate, 0
        self.means = [np.zeros_like(p) for p in parameters]
        self.squares = [np.zeros_like(p) for p in parameters]

    def update(self, gradients: list[Array]) -> None:
        self.step += 1
        scale = self.rate * np.sqrt(1 - 0.999**self.step) / (1 - 0.9**self.step)
        for p, g, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
            mean += 0.1 * (g - mean)
            square += 0.001 * (g * g - square)
            p -= (scale * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


def main() -> None:
    digits = load_digits()
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(digits.target))
    x, labels = (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)
    test = len(x) // 4
    (x_test, x), (labels_test, labels) = (x[:test], x[test:]), (labels[:test], labels[test:])

    mlp = Mlp(rng)
    adam = Adam(mlp.weights + mlp.biases)

    def epoch() -> None:
        order = rng.permutation(len(x))
        for start in range(0, len(x), BATCH):
            batch = order[start : start + BATCH]
            adam.update(mlp.gradients(x[batch], labels[batch]))
            mlp.weights[PRUNED] *= mlp.mask  # Adam's momentum would revive pruned weights

    for _ in range(DENSE_EPOCHS):
        epoch()
    print(f"dense:                     {mlp.accuracy(x_test, labels_test):.1%} of {test} test digits right")
    for i in range(1, PRUNING_EPOCHS + 1):
        mlp.prune(SPARSITY * (1 - (1 - i / PRUNING_EPOCHS) ** 3))
        epoch()
    for _ in range(FINE_TUNING_EPOCHS):
        epoch()
    print(f"{SPARSITY:.0%} of the layer pruned: {mlp.accuracy(x_test, labels_test):.1%}")

    layer = scipy.sparse.csr_matrix(mlp.weights[PRUNED])
    scipy.sparse.save_npz(LAYER, layer)
    lengths = np.diff(layer.indptr)
    print(
        f"{LAYER.name}: {layer.shape[0]} × {layer.shape[1]}, {layer.nnz} nonzeros, rows of {lengths.min()} "
        f"to {lengths.max()}, {LAYER.stat().st_size / 1000:.0f} kB"
    )


if __name__ == "__main__":
    main()
