"""Layers of any widths, whose weights and biases have either sign."""

from __future__ import annotations

import itertools

import numpy as np

from sparsegen.system.numpy_types import Array


def general_layers(widths: tuple[int, ...], rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
    """Weights and biases, float32; two fifths of the weights are not zero."""
    weights = [
        rng.standard_normal((after, before)).astype(np.float32) * (rng.random((after, before)) < 0.4)
        for before, after in itertools.pairwise(widths)
    ]
    return weights, [rng.standard_normal(after).astype(np.float32) for after in widths[1:]]
