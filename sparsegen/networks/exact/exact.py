"""Exact categories: two networks that bound a third one from above and below decide what rounding could not.

Where no weight is negative, ReLU and a clip leave neurons monotone in weights, biases and inputs. An input that dies in
a network with larger weights and biases dies in the network itself, however both are rounded, as long as the difference
is larger than all roundings of a layer; one that lives in a smaller network lives.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.errors import ConfigError
from sparsegen.networks.model.inputs import Inputs
from sparsegen.networks.model.network import Network
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Activation, largest
from sparsegen.system.numpy_types import Array

CHUNK = 1 << 22  # neurons times inputs that are computed together on the host
MARGIN = 2.0  # unit roundoffs by which bounds lie apart from what they bound, at least
SUM_MARGIN = 2.0**-16  # relative, for sums of up to 100 terms in float32 that tensor cores cut off

Totals = Callable[[Inputs, int], Array]  # for one side: the network above (1) or below (-1)


@dataclass(frozen=True, slots=True, eq=False)
class Categories:
    """The inputs that live, as float64 computes them.

    Attributes:
        live: int64, sorted.
        undecided: number of inputs that had to be computed in float64.
    """

    live: Array
    undecided: int


def require_monotone(network: Network, activation: Activation, dtype: DType) -> None:
    """Raises ConfigError where nothing bounds a network's neurons."""
    otherwise = "exact=False computes them in the dtype"
    if activation is Activation.NONE:
        raise ConfigError(f"exact categories need ReLU; {otherwise}")
    with ThreadPoolExecutor() as pool:  # NumPy leaves the interpreter to others
        least = min(pool.map(lambda layer: float(layer.values.min(initial=0.0)), network.layers))
    if least < 0:
        raise ConfigError(
            f"exact categories need weights of at least 0, which make a network monotone; {otherwise}"
        )
    if network.clip > largest(dtype):
        raise ConfigError(
            f"exact categories need a clip that {dtype} holds, at most {largest(dtype):g}; {otherwise}"
        )


def bound(network: Network, dtype: DType, side: int) -> Network:
    """A network whose neurons, rounded to the dtype, are at least (side 1) or at most (side -1) the exact ones.

    Every weight moves by two unit roundoffs and the margin of sums, and on to the next number that the dtype holds; a
    bias by the margin, and by twice the smallest number of the dtype. A neuron's own rounding is one roundoff.
    """
    margin = MARGIN * dtype.unit_roundoff + SUM_MARGIN
    least = 2.0**-23 if dtype is DType.FLOAT16 else 2.0**-125
    layers = tuple(
        layer.with_values(_moved(layer.values * (1.0 + side * margin), dtype, side))
        for layer in network.layers
    )
    biases = tuple(
        np.nextafter(
            (bias.astype(np.float64) + side * (SUM_MARGIN * np.abs(bias) + least)).astype(np.float32),
            np.float32(side * np.inf),
        )
        for bias in network.biases
    )
    clip = float(_moved(np.array([network.clip]), dtype, side)[0])
    return replace(network, layers=layers, biases=biases, clip=clip)


def exact_categories(
    inputs: Inputs, totals: Totals, lives_in_float64: Callable[[Inputs], Array]
) -> Categories:
    """The inputs that live, by bounds of all layers: for devices that hold some of them at a time.

    Args:
        totals: sums of outputs by the network above or below (`bound`).
        lives_in_float64: returns whether each of some inputs lives.
    """
    may_live = np.flatnonzero(totals(inputs, 1))
    if not may_live.size:
        return Categories(may_live, 0)
    # Batches of powers of two, filled up with the first input, so that few sizes are ever prepared.
    size = 1 << (int(may_live.size) - 1).bit_length()
    padded = np.concatenate((may_live, np.full(size - may_live.size, may_live[0])))
    found = np.flatnonzero(totals(inputs.some(padded), -1))
    lives = np.zeros(may_live.size, dtype=bool)
    lives[found[found < may_live.size]] = True
    undecided = may_live[~lives]
    if undecided.size:
        lives[~lives] = lives_in_float64(inputs.some(undecided))
    return Categories(may_live[lives], int(undecided.size))


def inferred(network: Network, activation: Activation, y: Array) -> Array:
    """The last layer's neurons in float64, inputs × outputs.

    Inputs without a live neuron are dropped on the way, and of those with all neurons at the clip one goes on for all.

    Args:
        y: inputs × neurons.
    """
    found = np.zeros((len(y), network.outputs))
    step = max(1, CHUNK // max(1, network.neurons))
    for start in range(0, len(y), step):
        neurons = y[start : start + step].astype(np.float64).T
        column = np.arange(neurons.shape[1])  # column of each input; -1 if it died
        least = -network.clip if activation is Activation.NONE else 0.0
        for layer, bias in zip(network.layers, network.biases, strict=True):
            weights = layer.with_values(layer.values.astype(np.float64)).to_scipy()
            neurons = np.clip(weights @ neurons + bias.astype(np.float64)[:, None], least, network.clip)
            neurons, becomes = _merged(neurons, network.clip, activation)
            column = np.where(column >= 0, becomes[column], -1)
        is_live = column >= 0
        found[start : start + step][is_live] = neurons[:, column[is_live]].T
    return found


def _merged(neurons: Array, clip: float, activation: Activation) -> tuple[Array, Array]:
    """The columns that go on, and which of them each column becomes; -1 where it died."""
    count = neurons.shape[1]
    becomes = np.arange(count)
    full = np.flatnonzero((neurons == clip).all(axis=0))
    becomes[full] = full[0] if full.size else 0
    if activation is Activation.DYING_RELU:
        becomes[~neurons.any(axis=0)] = -1
    kept = np.flatnonzero(becomes == np.arange(count))
    number = np.full(count + 1, -1)  # the last one for those that died
    number[kept] = np.arange(kept.size)
    if kept.size < count:
        neurons = np.ascontiguousarray(neurons[:, kept])
    return neurons, np.append(number[becomes], -1)


def _moved(values: Array, dtype: DType, side: int) -> Array:
    """float32: the numbers of the dtype at or beyond these, upwards or downwards; none falls below 0."""
    held = dtype.rounded(values.astype(np.float32)).astype(np.float64)
    step = np.maximum(np.abs(held) * 2.0 * dtype.unit_roundoff, 2.0**-24 if dtype is DType.FLOAT16 else 0.0)
    beyond = dtype.rounded((held + side * step).astype(np.float32))
    is_short = held < values if side > 0 else held > values
    return np.maximum(np.where(is_short, beyond, held), 0.0).astype(np.float32)
