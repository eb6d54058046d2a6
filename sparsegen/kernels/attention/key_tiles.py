"""A mask as lists of the tiles of keys that tiles of queries see, with bits where not every query sees every key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.system.integers import ceil_div
from sparsegen.system.threads import in_threads

WORD = 32  # keys whose bits are a word
CHUNK = 1 << 23  # nonzeros, or tiles that might be listed, worked on at a time: bounds memory
FULL = -1  # stands for the number of a tile's bits where every query sees every key


@dataclass(frozen=True, slots=True, eq=False)
class KeyTiles:
    """The nonzero tiles of ``height`` queries × ``width`` keys of a mask, and the nonzero places within each.

    Attributes:
        counts: listed tiles of each tile of queries (int64).
        keys: for each listed tile its number among the tiles of keys, in rising order for each tile of queries (int32).
        bits: for each listed tile the number of its bits, or `FULL` (int32). Queries after the last are taken to see
            the same keys as the others; keys after the last are hidden.
        words: different bits, tiles × height × width / 32 (uint32): bit i of a query's word w stands for the key
            32 w + i. Equal tiles share theirs, as those along a diagonal or an edge of a band do.
    """

    counts: Array
    keys: Array
    bits: Array
    words: Array

    @classmethod
    def of(cls, mask: CsrMatrix, height: int, width: int) -> KeyTiles:
        """List them. ``width`` is a multiple of 32; rows hold rising columns, as those of a `CsrMatrix` do."""
        tiles = ceil_div(mask.shape[0], height)
        counts = np.zeros(tiles, dtype=np.int64)
        keys, bits = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
        words = [np.zeros((0, height, width // WORD), np.uint32)]
        known = 0
        for start, stop in _chunks(mask, height, width):
            tile, column, partial = _of_rows(mask, start, stop, height, width)
            counts[start:stop] = np.bincount(tile, minlength=stop - start)
            of_tile = np.full(tile.size, FULL, dtype=np.int32)
            different, number = _different(partial.words)
            of_tile[partial.listed] = known + number
            known += len(different)
            keys.append(column)
            bits.append(of_tile)
            words.append(different)
        different, number = _different(np.concatenate(words))
        numbers = np.append(number, FULL).astype(np.int32)  # FULL is the last
        return cls(counts, np.concatenate(keys), numbers[np.concatenate(bits)], different)


def tile_counts(mask: CsrMatrix, height: int, width: int) -> Array:
    """Returns how many tiles of ``width`` keys each tile of ``height`` queries sees (int64): `KeyTiles.counts` without
    the rest.
    """
    across = max(1, ceil_div(mask.shape[1], width))

    def counted(tiles: tuple[int, int]) -> Array:
        start, stop = tiles
        offsets = mask.row_offsets[start * height : min(stop * height, mask.shape[0]) + 1]
        begins = np.arange(offsets.size - 1) // height * across
        held = np.zeros((stop - start) * across, dtype=bool)
        columns = mask.column_indices[offsets[0] : offsets[-1]]
        held[np.repeat(begins, np.diff(offsets)) + columns // width] = True
        found: Array = held.reshape(-1, across).sum(axis=1)
        return found

    return np.concatenate([np.zeros(0, np.int64), *in_threads(counted, _chunks(mask, height, width))])


@dataclass(frozen=True, slots=True, eq=False)
class _Partial:
    """Listed tiles with places that are not seen: which of those of some rows they are, and their words."""

    listed: Array
    words: Array


def _chunks(mask: CsrMatrix, height: int, width: int) -> Iterator[tuple[int, int]]:
    """Ranges of tiles of queries with about `CHUNK` nonzeros, and tiles at most, or one tile each."""
    tiles = ceil_div(mask.shape[0], height)
    ends = mask.row_offsets[np.minimum(np.arange(1, tiles + 1) * height, mask.shape[0])].astype(np.int64)
    most = max(1, CHUNK // max(1, ceil_div(mask.shape[1], width)))
    start = 0
    while start < tiles:
        begin = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, begin + CHUNK, side="right"))
        stop = min(max(stop, start + 1), start + most, tiles)
        yield start, stop
        start = stop


def _of_rows(
    mask: CsrMatrix, start: int, stop: int, height: int, width: int
) -> tuple[Array, Array, _Partial]:
    """Some tiles of queries: of each listed tile that of queries (from ``start``) and of keys, and those with bits."""
    m, n = mask.shape
    across = max(1, ceil_div(n, width))
    first, last = start * height, min(stop * height, m)
    offsets = mask.row_offsets[first : last + 1].astype(np.int64)
    columns = mask.column_indices[offsets[0] : offsets[-1]]
    # Columns rise, so that the bits of a word follow each other.
    word = columns // WORD
    is_first = np.ones(columns.size, dtype=bool)
    is_first[1:] = word[1:] != word[:-1]
    starts = offsets[:-1] - offsets[0]
    is_first[starts[np.diff(offsets) > 0]] = True
    begins = np.flatnonzero(is_first)
    seen = np.diff(np.append(begins, columns.size))
    row = np.searchsorted(starts, begins, side="right") - 1
    word = word[begins].astype(np.int64)
    if begins.size:
        values = np.bitwise_or.reduceat(np.uint32(1) << (columns % WORD).astype(np.uint32), begins)
    else:
        values = np.zeros(0, dtype=np.uint32)
    place = row // height * across + word * WORD // width
    in_tile = np.bincount(place, weights=seen, minlength=(stop - start) * across)
    listed = np.flatnonzero(in_tile)
    tile, column = np.divmod(listed, across)
    rows = np.minimum(height, m - (start + tile) * height)
    is_partial = in_tile[listed] != rows * width
    number = np.full(in_tile.size, FULL, dtype=np.int64)
    number[listed[is_partial]] = np.arange(np.count_nonzero(is_partial))
    own = number[place]
    kept = own >= 0
    words = np.zeros((np.count_nonzero(is_partial), height, width // WORD), dtype=np.uint32)
    words[own[kept], row[kept] % height, word[kept] % (width // WORD)] = values[kept]
    return tile, column.astype(np.int32), _Partial(np.flatnonzero(is_partial), words)


def _different(words: Array) -> tuple[Array, Array]:
    """The different tiles of words, and of each tile the number of its own among them."""
    if not len(words):
        return words, np.zeros(0, dtype=np.int32)
    whole = np.ascontiguousarray(words).reshape(len(words), -1)
    as_bytes = whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize)))[:, 0]
    _, first, number = np.unique(as_bytes, return_index=True, return_inverse=True)
    return words[first], number.astype(np.int32)
