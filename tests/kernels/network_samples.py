"""Networks that kernels of all families are run on, and the run, whose results are held against the reference."""

from __future__ import annotations

import itertools

import numpy as np

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family_of
from sparsegen.kernels.config import Config
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.network import Network
from sparsegen.networks.model.radixnet import CLIP, radixnet
from sparsegen.operators import DType, Readout, SparseNetworkProblem
from sparsegen.operators.sparse_network import Activation
from sparsegen.render import render
from sparsegen.system.numpy_types import Array
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import csr
from sparsegen.testing.variants import Variant


def check_network(
    toolchain: EmulatorToolchain,
    config: Config,
    matrix: CsrMatrix,
    activation: Activation,
    readout: Readout,
    *,
    dtype: DType = DType.FLOAT16,
    inputs: int = 83,
) -> Packed[Array]:
    """Runs a variant under sanitizers and holds its results against the reference; returns the packed matrix."""
    traits = (("dtype", dtype), ("activation", activation), ("readout", readout))
    kind, family = Kind(SparseNetworkProblem, (("n", inputs),), traits), family_of(config)
    problem = kind.problem(matrix)
    source = render(family, problem, config)
    kernel = toolchain.compile_sanitized(family.name, family.entry, source)
    packed = family.pack(problem, config, matrix)
    variant = Variant(family, config, kind, ("network",), source)
    run_and_compare(variant, kernel, problem, matrix, packed, where=f"{config.settings}, {inputs} inputs")
    return packed


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
