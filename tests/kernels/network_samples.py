"""Networks whose layers share no columns, for the families that take any pattern."""

from __future__ import annotations

import itertools

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, radixnet
from sparsegen.operators import DType
from sparsegen.testing.matrices import csr


def unstructured(widths: tuple[int, ...], dtype: DType) -> CsrMatrix:
    """Layers of any width whose rows share no columns; one has an empty and a full row, one no weight at all."""
    rng = np.random.default_rng(1)
    weights = []
    for before, after in itertools.pairwise(widths):
        kept = rng.random((after, before)) < 0.1
        kept[0], kept[-1] = True, False
        weights.append(csr(np.where(kept, rng.uniform(-0.05, 0.2, kept.shape), 0).astype(np.float32)))
    weights.insert(2, csr(np.zeros((widths[2], widths[2]), dtype=np.float32)))
    biases = [rng.uniform(-0.3, 0, layer.shape[0]).astype(np.float32) for layer in weights]
    biases[2] = np.abs(biases[2])
    return Network.of(weights, biases, CLIP).stacked(dtype)


def mixed(neurons: int, layers: int, dtype: DType) -> CsrMatrix:
    """The challenge's layers with other weights, and one in the middle whose rows share nothing; inputs die."""
    rng = np.random.default_rng(1)
    made = radixnet(neurons, layers).layers
    weights = [layer.with_values(rng.uniform(-0.05, 0.1, layer.nnz).astype(np.float32)) for layer in made]
    kept = rng.random((neurons, neurons)) < 0.1
    weights[layers // 2] = csr(np.where(kept, rng.uniform(0, 0.08, kept.shape), 0).astype(np.float32))
    biases = [rng.uniform(-0.3, 0, neurons).astype(np.float32) for _ in weights]
    return Network.of(weights, biases, CLIP).stacked(dtype)


def layers_of(kept: np.ndarray) -> CsrMatrix:
    """One layer with a weight wherever ``kept`` is true."""
    return Network.of([csr(kept.astype(np.float32))], 0.0, CLIP).stacked(DType.FLOAT16)
