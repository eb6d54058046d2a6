"""Layers of networks whose neurons are connected at random: scattered, in bands, by popularity, or in blocks."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from sparsegen.bench.patterns import generators
from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import CsrMatrix

EXPONENT = 2.5  # exponent of power-law degrees
BLOCK = 16


class Connections(StrEnum):
    """Pattern of the connections between a neuron and the layer before.

    ``RANDOM``: any, each as likely. ``BAND``: those that follow each other from some place on, which every layer has
    elsewhere. ``POWER_LAW``: few are read by many, and degrees differ. ``BLOCKS``: those of whole blocks of 16 × 16.
    """

    RANDOM = "random"
    BAND = "band"
    POWER_LAW = "power_law"
    BLOCKS = "blocks"


def random_layer(neurons: int, per_row: int, connections: str, seed: tuple[int, int]) -> CsrMatrix:
    """The pattern of a layer, neurons × neurons; equal seeds give equal ones.

    Args:
        per_row: neurons that a neuron reads, on average; exactly that many for ``random`` and ``band``.
        seed: the network's seed, and the layer's number.

    Raises:
        MatrixError: no such connections, or more than there are neurons.
    """
    if connections not in list(Connections):
        raise MatrixError(f"connections are {', '.join(Connections)}, not {connections!r}", source="layer")
    if not 1 <= per_row <= neurons:
        raise MatrixError(f"a neuron reads from 1 to {neurons} neurons, not {per_row}", source="layer")
    number = int(np.random.SeedSequence(seed).generate_state(1)[0])
    if connections == Connections.BAND:
        return _band(neurons, per_row, number % neurons)
    if connections == Connections.POWER_LAW:
        return generators.power_law(neurons, per_row, EXPONENT, number)
    if connections == Connections.BLOCKS:
        return generators.blocks(neurons, neurons, BLOCK, per_row / neurons, number)
    return generators.equal_rows(neurons, neurons, per_row / neurons, number)


def _band(neurons: int, per_row: int, shift: int) -> CsrMatrix:
    """Each neuron reads ``per_row`` neurons from ``shift`` behind its own place on, round the end to the first."""
    columns = (np.arange(neurons)[:, None] + shift + np.arange(per_row)) % neurons
    columns.sort(axis=1)
    offsets = np.arange(neurons + 1, dtype=np.int32) * np.int32(per_row)
    indices = columns.astype(np.int32).ravel()
    return CsrMatrix((neurons, neurons), offsets, indices, np.ones(indices.size, np.float32))
