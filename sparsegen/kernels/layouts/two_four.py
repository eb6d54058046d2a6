"""The 2:4 format: of every four columns two codes, and metadata as sparse tensor-core products read them.

A *unit* is 32 rows by 128 columns of A, as a warp multiplies it by eight products of mma.sp.m16n8k32, two tiles of 16
rows by four steps of 32 columns. Units of a strip of 32 rows follow one another, and strip after strip; each is a few
vectors of 16 bytes for each of a warp's 32 lanes:

- *codes*, or values of 16 bits: those of tile 0, then those of tile 1, step by step; of a step each lane has eight, as
  `_in_words` says.
- *metadata*, one vector: a word for each step, which serves both tiles, as lanes 2 and 3 of a quad hold what the second
  one reads.

Any matrix is the sum of two such ones, its *layers*: where some four columns hold more than two nonzeros, a strip has
two units for each 128 columns, one behind the other. A code of zero fills fours with fewer.

Where four of every 8 or 16 columns are *chosen* for each strip (V:N:M, `pack_chosen`), a unit has the chosen ones of
256 or 512 columns, and a list says which these are: a word for each lane, for each step a byte. Any matrix is the sum
of such ones too, where a strip needs more columns with more choices.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from sparsegen.kernels.packed import Memory
from sparsegen.matrix.chosen_columns import CHOSEN, used_columns
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.two_four import is_two_four
from sparsegen.operators import DType, ValueType
from sparsegen.system.device_memory import Buffer, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

M = TypeVar("M", bound=Memory)
STRIP, UNIT_COLUMNS = 32, 128
LANES, VECTOR = 32, 16  # bytes of a vector
THREADS = min(4, os.cpu_count() or 1)
WEIGHTS_AT_ONCE = 1 << 22  # that a thread lays out at a time, about 6 bytes each


def code_vectors(bits: int) -> int:
    """Returns the vectors that a lane's 64 codes of a unit take."""
    return 64 * bits // 8 // VECTOR


def units_across(k: int, of: int = CHOSEN) -> int:
    """Units that k columns take in one layer, at least 1; two of every four are stored, or of four chosen ones."""
    return max(1, ceil_div(k, UNIT_COLUMNS // CHOSEN * of))


def is_paired(kind: ValueType, dtype: DType) -> bool:
    """True if the two codes of a four lie together, as the instruction that converts to halves takes two neighbours."""
    return kind is ValueType.E4M3 and dtype is DType.FLOAT16


@dataclass(frozen=True, slots=True, eq=False)
class Units(Generic[M]):
    """A packed matrix.

    Attributes:
        codes: on the host [strips, units of a strip, what `_in_words` says], in the codes' type.
        metadata: uint8 [strips, units of a strip, lanes, 16].
        layers: 1 or 2.
    """

    codes: M
    metadata: M
    layers: int


def pack(
    matrix: CsrMatrix, codes: Array, zero: int, *, bits: int, paired: bool, layers: int | None = None
) -> Units[Array]:
    """Lay out a matrix.

    Args:
        layers: by default as few as it takes.
        codes: of each nonzero, in CSR order; uint8 for 4 or 8 bits, any type for 16.
        zero: the code of zero.
        bits: of a code.
        paired: the two codes of a four lie together; else those of rows g and g + 8 do (8 bits).
    """
    layers, across = layers or (1 if is_two_four(matrix) else 2), units_across(matrix.shape[1])
    strips = ceil_div(matrix.shape[0], STRIP)
    in_unit = STRIP * UNIT_COLUMNS // 2 // (2 if bits == 4 else 1)  # two codes of 4 bits in a byte
    found = np.empty((strips, across * layers, in_unit), dtype=codes.dtype)
    metadata = np.empty((strips, across * layers, LANES, VECTOR), dtype=np.uint8)
    at_once = max(1, WEIGHTS_AT_ONCE // (across * STRIP * UNIT_COLUMNS))

    def lay_out(first: int) -> None:
        count = min(at_once, strips - first)
        kept, places = _fours(matrix, codes, zero, first * STRIP, count * STRIP, layers, across)
        part = slice(first, first + count)
        found[part] = _in_words(kept, bits, paired).reshape(found[part].shape)
        metadata[part] = _metadata(places).reshape(metadata[part].shape)

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(lay_out, range(0, strips, at_once)):
            pass
    return Units(found, metadata, layers)


def pack_chosen(
    matrix: CsrMatrix, codes: Array, zero: int, of: int, *, bits: int, paired: bool
) -> Units[Array]:
    """Lay out a matrix with four chosen of ``of`` columns; see `pack`.

    Choices are layers too, whose number is a power of two. Metadata are uint8 [strips, units of a strip, bytes]: a
    unit's list follows them.
    """
    m, k = matrix.shape
    groups, across = ceil_div(k, of), units_across(k, of)
    used = used_columns(matrix, of, m)
    rank = np.cumsum(used, axis=2) - 1
    needed = ceil_div(max(1, int(used.sum(axis=2).max(initial=0))), CHOSEN)
    choices = 1 << (needed - 1).bit_length()
    row = np.repeat(np.arange(m, dtype=np.int64), np.diff(matrix.row_offsets))
    column = matrix.column_indices.astype(np.int64)
    own = rank[row // STRIP, column // of, column % of]
    parts = []
    for choice in range(choices):
        taken = own // CHOSEN == choice
        offsets = np.r_[0, np.cumsum(taken)][matrix.row_offsets]
        places = (column // of * CHOSEN + own % CHOSEN)[taken].astype(matrix.column_indices.dtype)
        numbers = np.ones(places.size, dtype=np.float32)
        parts.append((CsrMatrix((m, groups * CHOSEN), offsets, places, numbers), codes[taken]))
    layers = 1 if all(is_two_four(part) for part, _ in parts) else 2
    count, strips = across * choices * layers, ceil_div(m, STRIP)
    packed = [pack(part, own, zero, bits=bits, paired=paired, layers=layers) for part, own in parts]

    def together(arrays: list[Array]) -> Array:
        by_unit = [array.reshape(strips, across, layers, *array.shape[2:]) for array in arrays]
        return np.stack(by_unit, axis=2).reshape(strips, count, *arrays[0].shape[2:])

    order = np.argsort(~used, axis=2, kind="stable")  # those that are used, then others
    order = np.pad(order, ((0, 0), (0, across * UNIT_COLUMNS // CHOSEN - groups), (0, 0)))
    at = np.minimum(np.arange(choices * CHOSEN), of - 1)  # of a choice that no strip needs, any
    lists = _places_of(order[:, :, at], of).reshape(strips, across, 4, LANES // CHOSEN, choices, CHOSEN)
    lists = lists.transpose(0, 1, 4, 3, 5, 2).reshape(strips, across, choices, 1, LANES, 4)
    lists = np.broadcast_to(lists, (*lists.shape[:3], layers, LANES, 4))
    metadata = together([units.metadata for units in packed]).reshape(strips, count, LANES * VECTOR)
    metadata = np.concatenate((metadata, lists.reshape(strips, count, LANES * 4)), axis=2)
    return Units(together([units.codes for units in packed]), metadata, choices * layers)


def _places_of(inside: Array, of: int) -> Array:
    """Places at which a kernel has columns of groups in shared memory: those of eight neighbours are turned by twice
    their number, so that a column of four neighbouring eights lies in as many banks.
    """
    column = np.arange(inside.shape[1])[:, None] * of + inside
    eight = column // 8
    found: Array = (eight * 8 + (column + 2 * eight) % 8 - column // of * of).astype(np.uint8)
    return found


def pack_there(
    device: PlainDevice, matrix: CsrMatrix, codes: Array, zero: int, *, bits: int, paired: bool
) -> Units[Buffer]:
    """Send a matrix with codes of 4 or 8 bits and lay it out; see `pack`."""
    layers, across = 1 if is_two_four(matrix) else 2, units_across(matrix.shape[1])
    m, strips = matrix.shape[0], ceil_div(matrix.shape[0], STRIP)
    vectors = strips * across * layers * LANES * VECTOR
    found = device.filled(vectors * code_vectors(bits), zero * (0x11 if bits == 4 else 1) if vectors else 0)
    metadata = device.filled(vectors)
    pattern = device.upload(matrix.row_offsets), device.upload(matrix.column_indices)
    sizes = (m, strips, across, layers, bits, int(paired), zero)
    there = device.upload(codes)
    device.run("two_four.cu:two_four_units", strips * across, *sizes, *pattern, there, found, metadata)
    return Units(found, metadata, layers)


def _fours(
    matrix: CsrMatrix, codes: Array, zero: int, first: int, rows: int, layers: int, across: int
) -> tuple[Array, Array]:
    """Codes of some rows and where they are in their fours.

    Returns:
        Two arrays [strips, tile, half, row of 8, units across, layers, step, 2, 2, 2, place of 2]: the 2, 2, 2
        are of a step's eight fours, in order.
    """
    offsets = matrix.row_offsets[first : first + rows + 1].astype(np.int64)
    part = slice(offsets[0], offsets[-1])
    columns = matrix.column_indices[part]
    row = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
    width = across * UNIT_COLUMNS // 4
    four = row * width + columns // 4
    # Of nonzeros in one four, which stand next to each other, the number of those before.
    rank = np.zeros(four.size, dtype=np.int64)
    for back in (1, 2, 3):
        rank[back:] += four[back:] == four[:-back]
    inside = columns % 4
    second = (rank % 2 == 1) | (inside == 3)  # the last of four columns follows any other one
    place = (rank // 2 * rows * width + four) * 2 + second
    kept = np.full((layers, rows, width, 2), zero, dtype=codes.dtype)
    places = np.broadcast_to(np.array([0, 3], dtype=np.uint8), kept.shape).copy()
    kept.reshape(-1)[place] = codes[part]
    places.reshape(-1)[place] = inside
    shape = (layers, rows // STRIP, 2, 2, 8, across, 4, 2, 2, 2, 2)
    order = (1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10)
    return kept.reshape(shape).transpose(order), places.reshape(shape).transpose(order)


# Axes of `_fours`: strip, tile, half, row of 8, unit, layer, step, and a four's three bits, the highest one first: the
# half of the step's columns, and two of the lane that has it; then the place in the four.
_STRIP, _TILE, _HALF, _G, _UNIT, _LAYER, _STEP, _K_HALF, _T1, _T0, _PLACE = range(11)
_LANE = (_G, _T1, _T0)


def _in_words(kept: Array, bits: int, paired: bool) -> Array:
    """A lane's codes of a step as they lie in its words; register 2 · k half + half of a fragment has both of a four.

    Four bits: a word, in which code 4 · place + register is in the bits from four times its number on. Eight bits: a
    word for each k half, in the order of half and place (``paired``), or of place and half. 16 bits: the registers.
    """
    outer = (_STRIP, _UNIT, _LAYER, _TILE)
    if bits == 4:
        low, high = np.moveaxis(kept.transpose(*outer, *_LANE, _STEP, _PLACE, _K_HALF, _HALF), -1, 0)
        found: Array = low | high << 4
        return found
    if bits == 16:
        return kept.transpose(*outer, _STEP, *_LANE, _K_HALF, _HALF, _PLACE)
    inner = (_HALF, _PLACE) if paired else (_PLACE, _HALF)
    shape = (*kept.shape[:_STEP], 2, 2, *kept.shape[_K_HALF:])
    # Steps in twos: a vector has two of them.
    later = {axis: axis + (axis > _STEP) for axis in range(11)}
    axes = [later[a] for a in outer] + [_STEP] + [later[a] for a in _LANE] + [_STEP + 1]
    return kept.reshape(shape).transpose(*axes, later[_K_HALF], *(later[a] for a in inner))


def _metadata(places: Array) -> Array:
    """A lane's metadata words: lane 4 g + 2 · tile + k half has those of rows g (low half) and g + 8, of four fours."""
    axes = (_STRIP, _UNIT, _LAYER, _G, _TILE, _K_HALF, _STEP, _HALF, _T1, _T0, _PLACE)
    ordered = places.transpose(axes)
    found: Array = (
        ordered[..., 0, 0] | ordered[..., 0, 1] << 2 | ordered[..., 1, 0] << 4 | ordered[..., 1, 1] << 6
    )
    return found
