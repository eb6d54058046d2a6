"""The layers of a network as transposed sliced ELL whose columns are places in staged buffers: NumPy only.

Source: Hidayetoğlu et al., At-Scale Sparse Deep Neural Network Inference with Efficient GPU Implementation, HPEC 2020,
section III.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.kernels.layouts.ell import interleave_classes
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix
from sparsegen.operators.sparse_network import BIAS_COLUMNS, SparseNetworkProblem
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

PARTS = BIAS_COLUMNS + 1  # values of a neuron's bias, the last one is padding
NONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class StagedSlices:
    """All layers, or a part of them, in the kernel's format.

    A block of ``rows`` neurons of a layer stages the neurons of the layer before that any of them takes, in ascending
    order, a buffer at a time. For each buffer each of its warps has a slice: a lane is a row, a place is one weight of
    each row, and a slice has as many places as the lane with most weights.

    Attributes:
        buffers: int64, of each block of rows how many buffers it stages.
        staged: int64, of each buffer how many neurons it holds.
        neurons: int32, those of all buffers.
        places: int64, of each slice its places, buffer by buffer.
        index: uint16, places × 32: where in the buffer the neuron is; 0 in padding.
        source: int32, places × 32: the nonzero's number, or -1 for padding.
    """

    buffers: Array
    staged: Array
    neurons: Array
    places: Array
    index: Array
    source: Array

    @classmethod
    def joined(cls, parts: list[StagedSlices]) -> StagedSlices:
        """One after another."""

        def whole(name: str, dtype: type) -> Array:
            return np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in parts)])

        return cls(
            whole("buffers", np.int64),
            whole("staged", np.int64),
            whole("neurons", np.int32),
            whole("places", np.int64),
            whole("index", np.uint16),
            whole("source", np.int32),
        )


def staged_slices(
    problem: SparseNetworkProblem, matrix: CsrMatrix, rows: int, buffer: int, classes: int
) -> StagedSlices:
    """All layers of a network.

    Args:
        rows: rows of a block, whole warps.
        buffer: neurons that it stages at a time, at most 65536.
        classes: classes of places in a buffer, by their numbers modulo this, that lie in different banks: neighbouring
            lanes then read different ones, as far as their rows have such; 1: weights stay in the order of their
            columns.

    Raises:
        MatrixError: with padding there are more places than 32-bit numbers reach.
    """

    def of_layer(layer: int) -> StagedSlices:
        return _of_layer(problem, matrix, layer, rows, buffer, classes)

    with ThreadPoolExecutor() as pool:  # NumPy leaves the interpreter to others
        parts = list(pool.map(of_layer, range(problem.layers)))
    places = WARP * sum(int(part.places.sum()) for part in parts)
    if places > MAX_INDEX:
        raise MatrixError(
            f"sliced ELL with {places} places for {matrix.nnz} nonzeros is more than 32-bit numbers reach "
            f"({MAX_INDEX}); a larger buffer pads less, or split the network"
        )
    return StagedSlices.joined(parts)


def bias_sources(problem: SparseNetworkProblem, matrix: CsrMatrix) -> Array:
    """int32, neurons of all layers × 4: of each part of a bias the nonzero's number, or -1."""
    found = np.full((problem.m, PARTS), NONE, dtype=np.int32)
    numbers = np.flatnonzero(matrix.column_indices >= problem.neurons)
    row = np.searchsorted(matrix.row_offsets, numbers, side="right") - 1
    found[row, matrix.column_indices[numbers] - problem.neurons] = numbers
    return found


def _of_layer(
    problem: SparseNetworkProblem, matrix: CsrMatrix, layer: int, rows: int, buffer: int, classes: int
) -> StagedSlices:
    here = problem.layer_rows(layer)
    offsets = matrix.row_offsets[here.start : here.stop + 1].astype(np.int64)
    columns = matrix.column_indices[offsets[0] : offsets[-1]]
    row = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    numbers = np.flatnonzero(columns < problem.neurons)
    columns, row = columns[numbers], row[numbers]
    blocks = ceil_div(here.stop - here.start, rows)

    # The neurons that each block stages, in ascending order, with their places.
    block = row // rows
    key = block * problem.neurons + columns
    is_staged = np.zeros(blocks * problem.neurons, dtype=bool)
    is_staged[key] = True
    staged = np.flatnonzero(is_staged)
    place_of = np.empty(is_staged.size, dtype=np.int32)
    place_of[staged] = np.arange(staged.size, dtype=np.int32)
    ends = np.searchsorted(staged, np.arange(1, blocks + 1) * problem.neurons)
    counts = np.diff(ends, prepend=0)
    place = place_of[key] - (ends - counts).astype(np.int32)[block]
    buffers = ceil_div(counts, buffer)
    first_buffer = np.cumsum(buffers) - buffers
    held = np.full(int(buffers.sum()), buffer, dtype=np.int64)
    held[(first_buffer + buffers - 1)[buffers > 0]] = (counts - (buffers - 1) * buffer)[buffers > 0]

    # Runs of weights of one row and one buffer follow each other, as columns ascend.
    number = first_buffer[block] + place // buffer
    index = (place % buffer).astype(np.uint16)
    lane = number * rows + row % rows
    starts = np.flatnonzero(np.diff(lane, prepend=NONE))
    lengths = np.diff(starts, append=lane.size)
    longest = np.zeros(held.size * rows, dtype=np.int64)
    longest[lane[starts]] = lengths
    places = longest.reshape(-1, WARP).max(axis=1)
    if classes == 1:
        in_run = np.arange(lane.size) - np.repeat(starts, lengths)
    else:
        in_run = interleave_classes(np.append(starts, lane.size), index % classes, classes, lane[starts])
    first_place = np.cumsum(places) - places
    to = (first_place[lane // WARP] + in_run) * WARP + lane % WARP

    whole_index = np.zeros(WARP * int(places.sum()), dtype=np.uint16)
    whole_index[to] = index
    source = np.full(whole_index.size, NONE, dtype=np.int32)
    source[to] = numbers + offsets[0]
    return StagedSlices(
        buffers, held, (staged % max(1, problem.neurons)).astype(np.int32), places, whole_index, source
    )
