"""The layers of a network as slices of neurons, dealt to the warps that compute them: NumPy only."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.kernels.layouts.ell import interleave_classes
from sparsegen.kernels.network.bank_order import balanced_teams, steps_apart
from sparsegen.kernels.network.staged_slices import NONE, PARTS, bias_sources
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix
from sparsegen.operators.sparse_network import SparseNetworkProblem
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

SLICE_CHUNKS = 2  # what a slice costs beside its weights, in chunks
SHARED_ROUNDS = 2  # rounds of all groups from which on a long row is worth the sum of their parts


@dataclass(frozen=True, slots=True)
class Shape:
    """The way in which a kernel takes a layer.

    Attributes:
        groups: neurons that a warp has at a time.
        steps: weights of a neuron that are loaded at once, a chunk.
        warps: warps of a block.
        classes: classes of neurons, by their numbers modulo this, that lie in different banks, and groups that read at
            the same time; 1: one group reads all banks.
        rotated: weights stand as lanes need them for diagonal products (`_rotated`), and not group by group.
    """

    groups: int
    steps: int
    warps: int
    classes: int
    rotated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ResidentSlices:
    """All layers, or one of them, in the kernel's format.

    A slice is a neuron for each group of a warp, or one neuron whose weights all groups share, if it has many. Slices
    of a layer are dealt such that all warps have as many chunks, and those of a warp follow one another.

    Attributes:
        slices: int64, layers × warps: the number of slices of each warp.
        chunks: int64, of each slice its chunks; they are as many as the neuron with most weights has.
        is_shared: bool, of each slice.
        rows: int32, slices × groups: the neuron in its layer, or -1.
        index: uint16, chunks × (groups · steps): the neuron of the layer before; 0 in padding.
        source: int32, likewise, in an order of its own where it is rotated: the nonzero's number, or -1 for padding.
        biases: int32, slices × groups × 4: of each part of a bias the nonzero's number, or -1.
    """

    slices: Array
    chunks: Array
    is_shared: Array
    rows: Array
    index: Array
    source: Array
    biases: Array = field(repr=False)


def resident_slices(problem: SparseNetworkProblem, matrix: CsrMatrix, shape: Shape) -> ResidentSlices:
    """All layers of a network. A chunk of padding follows the last one.

    Raises:
        MatrixError: with padding there are more weights than 32-bit numbers reach.
    """
    biases = bias_sources(problem, matrix)
    # Threads would wait for each other: each call of NumPy takes microseconds.
    parts = [_of_layer(problem, matrix, biases, layer, shape) for layer in range(problem.layers)]
    chunk = shape.groups * shape.steps
    places = chunk * sum(int(part.chunks.sum()) for part in parts)
    if places > MAX_INDEX:
        raise MatrixError(
            f"slices with {places} places for {matrix.nnz} nonzeros are more than 32-bit numbers reach ({MAX_INDEX}); "
            "split the network"
        )
    return ResidentSlices(
        np.concatenate([np.zeros(0, np.int64), *(part.slices for part in parts)]),
        np.concatenate([np.zeros(0, np.int64), *(part.chunks for part in parts)]),
        np.concatenate([np.zeros(0, bool), *(part.is_shared for part in parts)]),
        np.concatenate([np.zeros((0, shape.groups), np.int32), *(part.rows for part in parts)]),
        np.concatenate([*(part.index for part in parts), np.zeros(chunk, np.uint16)]),
        np.concatenate([*(part.source for part in parts), np.full(chunk, NONE, np.int32)]),
        np.concatenate([np.zeros((0, shape.groups, PARTS), np.int32), *(part.biases for part in parts)]),
    )


def longest_unshared(weights: float, shape: Shape) -> float:
    """The weights that a neuron has at most in a slice with others: a warp's share of a layer, or some rounds."""
    return max(weights / (shape.groups * shape.warps), SHARED_ROUNDS * shape.groups)


def _of_layer(
    problem: SparseNetworkProblem, matrix: CsrMatrix, biases: Array, layer: int, shape: Shape
) -> ResidentSlices:
    here, groups, steps = problem.layer_rows(layer), shape.groups, shape.steps
    offsets = matrix.row_offsets[here.start : here.stop + 1].astype(np.int64)
    count = offsets.size - 1
    columns = matrix.column_indices[offsets[0] : offsets[-1]]
    row = np.repeat(np.arange(count), np.diff(offsets))
    numbers = np.flatnonzero(columns < problem.neurons)
    columns, row = columns[numbers], row[numbers]
    lengths = np.bincount(row, minlength=count)

    # Neurons with about as many weights are in a slice; those with so many that a warp had more than its share of the
    # layer have one for themselves.
    is_long = (
        lengths > longest_unshared(float(lengths.sum()), shape) if groups > 1 else np.zeros(count, dtype=bool)
    )
    order = np.concatenate((np.flatnonzero(is_long), _in_teams(row, columns, lengths, ~is_long, shape)))
    shared = int(is_long.sum())
    slices = shared + ceil_div(count - shared, groups)
    slot_of = np.empty(count, np.int64)  # slice and group of each neuron
    slot_of[order[:shared]] = np.arange(shared) * groups
    slot_of[order[shared:]] = shared * groups + np.arange(count - shared)
    longest = np.zeros(slices * groups, np.int64)
    longest[slot_of] = lengths
    most = longest.reshape(slices, groups).max(axis=1)
    most[:shared] = ceil_div(most[:shared], groups)
    chunks = ceil_div(most, steps)

    turn = _dealt(chunks, shape.warps)
    to = np.argsort(turn, kind="stable")  # slices in their new order
    new = np.empty(slices, np.int64)
    new[to] = np.arange(slices)
    slot = new[slot_of // groups] * groups + slot_of % groups
    is_shared = (np.arange(slices) < shared)[to]
    chunks = chunks[to]

    slice_of, group = slot[row] // groups, slot[row] % groups
    kind = columns % shape.classes
    in_shared = is_shared[slice_of]
    step = np.empty(row.size, np.int64)
    team, of_team = np.divmod(slot[row[~in_shared]], shape.classes)
    of_teams = np.repeat(chunks * steps * ~is_shared, groups // shape.classes)
    apart = steps_apart(team, of_team, kind[~in_shared], of_teams.size, of_teams, shape.classes)
    step[~in_shared] = apart.step
    own = np.searchsorted(row[in_shared], np.arange(count + 1))
    turn_in_row = interleave_classes(own, kind[in_shared], shape.classes, np.zeros(count, np.int64))
    step[in_shared], group[in_shared] = turn_in_row // groups, turn_in_row % groups

    first_chunk = np.cumsum(chunks) - chunks
    places = _rotated if shape.rotated else _group_by_group
    index = np.zeros(int(chunks.sum()) * groups * steps, np.uint16)
    source = np.full(index.size, NONE, np.int32)
    filled = apart.team * shape.classes + apart.row  # padding has an index too, which meets no other bank
    of_index, _ = places(
        first_chunk[filled // groups] + apart.left // steps, filled % groups, apart.left % steps, shape
    )
    index[of_index] = np.minimum(apart.kind, problem.neurons - 1)
    of_index, of_weight = places(first_chunk[slice_of] + step // steps, group, step % steps, shape)
    index[of_index] = columns
    source[of_weight] = numbers + offsets[0]
    rows = np.full((slices, groups), NONE, np.int32)
    rows.reshape(-1)[slot] = np.arange(count)
    own = np.full((slices, groups, PARTS), NONE, np.int32)
    own.reshape(-1, PARTS)[slot] = biases[here]
    return ResidentSlices(
        np.bincount(turn, minlength=shape.warps), chunks, is_shared, rows, index, source, own
    )


def _in_teams(row: Array, columns: Array, lengths: Array, chosen: Array, shape: Shape) -> Array:
    """The chosen neurons, those with most chunks first, in teams that read and write different banks at a time.

    Args:
        row, columns: of each weight.
        lengths, chosen: of each neuron its weights, and whether it is chosen.
    """
    classes, neurons = shape.classes, np.flatnonzero(chosen)
    chunks, kind = ceil_div(lengths[neurons], shape.steps), neurons % classes
    # A neuron of each class in turn: a team writes to different banks.
    order = np.lexsort((kind, chunks))
    alike = np.flatnonzero(np.diff(chunks[order] * classes + kind[order], prepend=-1))
    turn = np.empty(order.size, np.int64)
    turn[order] = np.arange(order.size) - np.repeat(alike, np.diff(alike, append=order.size))
    order = np.lexsort((kind, turn, -chunks))
    neurons, chunks = neurons[order], chunks[order]
    counts = np.bincount(row * classes + columns % classes, minlength=lengths.size * classes)
    whole = neurons.size // classes * classes
    of_neurons = counts.reshape(-1, classes)[neurons[:whole]]
    neurons[:whole] = neurons[balanced_teams(of_neurons, chunks[:whole] * shape.steps, classes)]
    return neurons


def _group_by_group(chunk: Array, group: Array, step: Array, shape: Shape) -> tuple[Array, Array]:
    """Places of indices and of weights: in a chunk those of a group follow one another."""
    place = (chunk * shape.groups + group) * shape.steps + step
    return place, place


def _rotated(chunk: Array, group: Array, step: Array, shape: Shape) -> tuple[Array, Array]:
    """Places of indices and of weights for products with a diagonal of 16 weights, 8 steps of a chunk.

    In a step the group has the place (group + 2 step) mod 8 of its half of the diagonal, so that of its 8 weights each
    of the four lanes that may hold it holds two: those of a step and of the fourth one behind it. The lane that gives
    the address of a place has the indices of every other step.
    """
    half, row = group // 8, group % 8
    place = (row + 2 * step) % 8
    of_index = (chunk * 32 + step % 2 * 16 + half * 8 + place) * 4 + step // 2
    of_weight = ((chunk * 2 + half) * 32 + row * 4 + place // 2) * 2 + step // 4
    return of_index, of_weight


def _dealt(chunks: Array, warps: int) -> Array:
    """int64: of each slice the warp that takes it, the longest first, each to the warp that has least."""
    turn = np.empty(chunks.size, np.int64)
    busy = [(0, warp) for warp in range(warps)]
    for number in np.argsort(-chunks, kind="stable").tolist():
        taken, warp = busy[0]
        turn[number] = warp
        heapq.heapreplace(busy, (taken + int(chunks[number]) + SLICE_CHUNKS, warp))
    return turn
