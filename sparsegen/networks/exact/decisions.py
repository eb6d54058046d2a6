"""Levels of neurons from which on it is certain that an input lives, or that it dies, behind each layer of a network.

Where no weight is negative, an input whose neurons are all at least a number goes on at least as well as one whose
neurons are all that number. So one number a layer is enough to tell that an input lives, without what follows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.networks.model.network import Network
from sparsegen.operators.sparse_network import Activation
from sparsegen.system.numpy_types import Array

ROUNDOFF = 2.0**-53  # unit roundoff of float64
OTHER_ROUNDINGS = 6  # beside one for each weight: of the levels themselves
IS_EXTENDED = bool(np.finfo(np.longdouble).eps < 2.0**-60)
ABOVE_ZERO = 2.0**-200


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Two numbers behind each layer, float64, in which sums of float64 in any order are allowed for.

    Attributes:
        enough: an input whose neurons are all at least this lives; infinite where nothing is enough.
        little: an input whose neurons are all at most this dies; below 0 where nothing is so little.
    """

    enough: Array
    little: Array

    @classmethod
    def of(cls, network: Network, activation: Activation) -> Levels:
        """Computes the levels of a network without negative weights, whose activation is ReLU."""
        count, clip = len(network.layers), network.clip
        enough, little = np.empty(count), np.empty(count)
        with ThreadPoolExecutor() as pool:
            sums = list(pool.map(_sums_of_rows, network.layers))
        enough[-1], little[-1] = np.inf, 0.0
        for number in range(count - 1, 0, -1):
            layer, bias = network.layers[number], network.biases[number].astype(np.float64)
            if activation is Activation.DYING_RELU:
                bias = np.minimum(bias, 0.0)
            roundings = np.diff(layer.row_offsets) * (1 if IS_EXTENDED else 2)
            off = (roundings + OTHER_ROUNDINGS) * ROUNDOFF
            before = enough[number], little[number]
            if number == count - 1:  # any neuron above 0 is enough
                enough[number - 1] = _least(ABOVE_ZERO, sums[number], bias, off).min(initial=np.inf)
            elif before[0] > clip:
                enough[number - 1] = np.inf
            else:
                enough[number - 1] = _least(before[0], sums[number], bias, off).max(initial=0.0)
            little[number - 1] = _most(before[1], sums[number], bias, off, clip)
        return cls(enough, little)

    def pairs(self) -> Array:
        """float64, layers × 2."""
        return np.stack((self.enough, self.little), axis=1)


def _least(wanted: float, sums: Array, bias: Array, off: Array) -> Array:
    """Lower bound on each neuron's inputs that guarantees the wanted output.

    The relative error of its sum of products is at most ``off``. The bias is added to that by rounding, which is
    monotone, so that a sum that is large enough stays so.
    """
    if wanted <= 0:
        return np.zeros(sums.size)
    above = np.nextafter(wanted - bias, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = above / sums * (1.0 + off)
    needed = np.where(sums > 0, needed, np.where(above <= 0, 0.0, np.inf))
    found: Array = np.maximum(needed, 0.0)
    return found


def _most(allowed: float, sums: Array, bias: Array, off: Array, clip: float) -> float:
    """Upper bound on the neurons before that keeps all outputs at or below the allowed one; -1 if none does."""
    if allowed >= clip:
        return np.inf
    if allowed < 0:
        return -1.0
    below = np.nextafter(allowed - bias, -np.inf)
    below[allowed == bias] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        possible = below / sums * (1.0 - off)
    possible = np.where(sums > 0, possible, np.where(below >= 0, np.inf, -1.0))
    least = float(possible.min(initial=np.inf))
    return least if least >= 0 else -1.0


def _sums_of_rows(layer: CsrMatrix) -> Array:
    """Sums of rows, rounded once if the machine adds in more digits than float64 has."""
    lengths = np.diff(layer.row_offsets)
    found = np.zeros(lengths.size)
    filled = np.flatnonzero(lengths)
    if filled.size:
        found[filled] = np.add.reduceat(layer.values.astype(np.longdouble), layer.row_offsets[filled])
    return found
