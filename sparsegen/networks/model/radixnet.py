"""RadiX-Net topologies of the Sparse DNN Challenge, and whether two networks have the same.

Sources: Kepner and Robinett, RadiX-Net: Structured sparse matrices for deep neural networks, IPDPSW 2019; the rule for
the challenge's networks was found on the published one of 1024 neurons and 120 layers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.random_words import Words
from sparsegen.networks.model.network import Network
from sparsegen.system.numpy_types import Array

COPIES = 16  # copies of each neuron of the radix-2 network: the Kronecker product with ones
FAN_IN = 2 * COPIES
WEIGHT = 1.0 / 16.0
CLIP = 32.0
BYTES_PER_NONZERO = 8  # column and value, each of 4
CHALLENGE_BIAS = {1024: -0.3, 4096: -0.35, 16384: -0.4, 65536: -0.45}
CHALLENGE_LAYERS = (120, 480, 1920)
CONFIGURATIONS = tuple((neurons, layers) for neurons in CHALLENGE_BIAS for layers in CHALLENGE_LAYERS)


def radixnet(neurons: int, layers: int, *, seed: int = 0, bias: float | None = None) -> Network:
    """A network of the challenge's family: all weights 1/16, one bias, activations clipped at 32.

    Bases of log₂(neurons / 16) layers follow each other. In layer k of a base a neuron of number j takes the neurons
    whose numbers modulo Q = neurons / 16 are j or j + 2ᵏ, after the base's permutation of the neurons before: none in
    the first base, then a random one for each.

    Args:
        neurons: 16 times a power of two, at least 32; of the challenge 1024, 4096, 16384 and 65536.
        layers: number of layers, at least 1; in the challenge 120, 480 and 1920.
        seed: seed of the permutations.
        bias: bias; by default the challenge's for these neurons, else that of the nearest size.

    Raises:
        ConfigError: other sizes.
        MatrixError: it would take more memory than the machine has left.
    """
    width = arguments.whole(neurons, "neurons", least=2 * COPIES)
    depth = arguments.whole(layers, "layers", least=1)
    base = base_layers(width)
    budget = MemoryBudget.of_machine("network")
    budget.require(
        depth * FAN_IN * width * BYTES_PER_NONZERO,
        f"{depth} layers of {width} neurons, {FAN_IN} weights each,",
    )
    words = Words(arguments.whole(seed, "seed", least=0))
    bases = [np.arange(width), *(words.permutation(width) for _ in range((depth - 1) // base))]
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda i: _layer(bases[i // base], width // COPIES, i % base), range(depth)))
    value = challenge_bias(width) if bias is None else arguments.number(bias, "bias")
    return Network.of(made, value, CLIP)


def base_layers(neurons: int) -> int:
    """Layers of a base.

    Raises:
        ConfigError: there are no such networks.
    """
    radix_neurons, left = divmod(neurons, COPIES)
    if left or radix_neurons < 2 or radix_neurons & radix_neurons - 1:
        raise ConfigError(f"neurons = {neurons}: expected {COPIES} times a power of two, at least {FAN_IN}")
    return radix_neurons.bit_length() - 1


def challenge_bias(neurons: int) -> float:
    """The challenge's bias for the nearest of its sizes."""
    nearest = min(CHALLENGE_BIAS, key=lambda size: abs(np.log2(size / neurons)))
    return CHALLENGE_BIAS[nearest]


def _layer(number: Array, radix_neurons: int, step: int) -> CsrMatrix:
    """Neurons × neurons before, whose numbers are given."""
    width = number.size
    by_class = np.argsort(number % radix_neurons, kind="stable").reshape(radix_neurons, COPIES)
    classes = np.arange(width) % radix_neurons
    taken = np.concatenate((by_class[classes], by_class[(classes + (1 << step)) % radix_neurons]), axis=1)
    columns = np.sort(taken, axis=1).astype(np.int32)
    offsets = np.arange(width + 1) * FAN_IN
    return CsrMatrix((width, width), offsets, columns.ravel(), np.full(columns.size, WEIGHT, np.float32))
