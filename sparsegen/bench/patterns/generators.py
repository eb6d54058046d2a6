"""Seeded patterns of nonzeros that are the same on every machine and every NumPy.

`sparsegen.matrix.generators` draws from NumPy's distributions, whose streams a release may change. Here everything is
made of the 64-bit words of PCG64, which NumPy promises to keep (NEP 19), so that a result file's fingerprints
mean the same matrices years later. The values are standard normal float32 without zeros; they may differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import CsrMatrix, check_shape
from sparsegen.matrix.generators import normal_values
from sparsegen.matrix.random_words import Words
from sparsegen.system.numpy_types import Array

_CHUNK = 1 << 20  # elements looked at together: bounds memory, and stays in the processor's cache
_FULL = 1 / 16  # rows fuller than this are drawn by ranking all their columns, the others by rejection


def independent(rows: int, columns: int, density: float, seed: int) -> CsrMatrix:
    """Every element is a nonzero with probability ``density``, independently of the others."""
    _check(rows, columns, density)
    words = Words(seed)
    highest = round(density * 2**32) - 1
    lengths, parts = np.zeros(rows, dtype=np.int64), [np.empty(0, dtype=np.int32)]
    for part in _chunks(rows if highest >= 0 else 0, columns):
        chosen = words.halves(part.stop - part.start, columns) <= np.uint32(highest)
        lengths[part] = np.count_nonzero(chosen, axis=1)
        parts.append(_columns_of(chosen))
    return _matrix((rows, columns), lengths, np.concatenate(parts), seed)


def equal_rows(rows: int, columns: int, density: float, seed: int) -> CsrMatrix:
    """The same number of nonzeros in every row, columns · density rounded; every set equally likely."""
    _check(rows, columns, density)
    lengths = np.full(rows, round(columns * density), dtype=np.int64)
    return _matrix((rows, columns), lengths, _choose(columns, lengths, Words(seed)), seed)


def varying_rows(rows: int, columns: int, density: float, row_cov: float, seed: int) -> CsrMatrix:
    """Row lengths with a coefficient of variation, columns uniform.

    The share of a row that is nonzero follows the beta distribution of mean ``density`` and CoV ``row_cov``,
    which never asks for more than the whole row. The rows take its quantiles in random order, so that small
    matrices too have the variation asked for.

    Raises:
        MatrixError: ``row_cov`` is negative, or more than shares between 0 and 1 with this mean can have.
    """
    _check(rows, columns, density)
    largest = ((1 - density) / density) ** 0.5 if density > 0 else 0.0
    if not (0 <= row_cov < largest or row_cov == 0):
        raise MatrixError(
            f"at density {density:g} the CoV of row lengths lies in [0, {largest:.3g}), got {row_cov:g}",
            source="random matrix",
        )
    words = Words(seed)
    shares = np.full(rows, density)
    if row_cov and rows:
        both = (1 - density) / (density * row_cov**2) - 1
        middles = (np.arange(rows) + 0.5) / rows
        import scipy.special  # its import takes as long as the rest of a baseline's process

        shares = scipy.special.betaincinv(density * both, (1 - density) * both, middles)
        # Scaled to the wanted mean, which the quantiles miss a little; by two at most if a few rows miss it a lot.
        shares = np.minimum(shares * min(density / max(shares.mean(), 1e-300), 2.0), 1.0)
    # Rounding the running sum keeps the number of nonzeros, and no length is off by 1 or more.
    ends = np.floor(np.cumsum(shares * columns) + 0.5).astype(np.int64)
    lengths = np.minimum(np.diff(ends, prepend=0), columns)[words.permutation(rows)]
    return _matrix((rows, columns), lengths, _choose(columns, lengths, words), seed)


def blocks(rows: int, columns: int, block: int, density: float, seed: int) -> CsrMatrix:
    """Dense blocks on an aligned grid: round(number of blocks · density) of them, every set equally likely.

    Raises:
        MatrixError: the block's side is below 1 or does not divide both sizes.
    """
    _check(rows, columns, density)
    if block < 1 or rows % block or columns % block:
        raise MatrixError(
            f"blocks of {block} x {block} do not tile {rows} x {columns}", source="random matrix"
        )
    across, down = columns // block, rows // block
    count = np.array([round(across * down * density)], dtype=np.int64)
    cells = _choose(across * down, count, Words(seed)).astype(np.int64)
    counts = np.bincount(cells // across, minlength=down)
    indices = ((cells % across)[:, None] * block + np.arange(block)).astype(np.int32)
    strips = [np.tile(strip.ravel(), block) for strip in np.split(indices, np.cumsum(counts)[:-1])]
    return _matrix((rows, columns), np.repeat(counts * block, block), np.concatenate(strips), seed)


def shared_rows(rows: int, columns: int, group: int, density: float, seed: int) -> CsrMatrix:
    """Rows in groups that share their columns, columns · density rounded, in random order: every set equally likely.

    Raises:
        MatrixError: the group's rows are below 1 or do not divide the rows.
    """
    _check(rows, columns, density)
    if group < 1 or rows % group:
        raise MatrixError(f"groups of {group} do not share out {rows} rows", source="random matrix")
    words = Words(seed)
    lengths = np.full(rows // group, round(columns * density), dtype=np.int64)
    sets = _choose(columns, lengths, words).reshape(rows // group, -1)
    indices = np.repeat(sets, group, axis=0)[words.permutation(rows)]
    return _matrix((rows, columns), np.repeat(lengths, group), indices.ravel(), seed)


def power_law(nodes: int, mean_degree: float, exponent: float, seed: int) -> CsrMatrix:
    """The adjacency matrix of a directed graph whose degrees follow a power law P(d) ∝ d^-exponent.

    A graph of the Chung-Lu kind (Chung, Lu: Connected Components in Random Graphs with Given Expected Degree
    Sequences, 2002): both ends of an edge are drawn with probability ∝ r^(-1 / (exponent - 1)) for the node of
    rank r, ranks in random order. Edges that are there already are drawn again, so there are exactly
    nodes · mean_degree of them, rounded.

    Raises:
        MatrixError: ``exponent`` is not above 2 (the mean degree would grow with the graph), or the graph
            would be fuller than 1/16.
    """
    check_shape((nodes, nodes), source="random graph")
    if not exponent > 2:
        raise MatrixError(f"the exponent must be above 2, got {exponent}", source="random graph")
    if not 0 <= mean_degree <= nodes * _FULL:
        raise MatrixError(
            f"a mean degree lies in [0, nodes / 16], got {mean_degree} at {nodes} nodes",
            source="random graph",
        )
    words, edges = Words(seed), round(nodes * mean_degree)
    weights = np.arange(1, nodes + 1, dtype=np.float64) ** (-1 / (exponent - 1))
    sums = np.cumsum(weights[words.permutation(nodes)])
    keys = np.empty(0, dtype=np.int64)
    while keys.size < edges:
        missing = edges - keys.size
        ends = np.searchsorted(sums, words.fractions(2 * missing) * sums[-1], side="right")
        ends = np.minimum(ends, nodes - 1)  # rounding may reach the last sum
        new = np.sort(ends[:missing] * nodes + ends[missing:])
        new = new[np.flatnonzero(np.diff(new, prepend=-1))]  # np.unique hashes, which takes ten times as long
        new = new[np.isin(new, keys, assume_unique=True, kind="sort", invert=True)]
        keys = np.sort(np.concatenate((keys, new)), kind="stable")  # two sorted runs: merged in linear time
    lengths = np.bincount(keys // nodes, minlength=nodes)
    return _matrix((nodes, nodes), lengths, (keys % nodes).astype(np.int32), seed)


def blobs(shape: tuple[int, int, int], spacing: int, density: float, seed: int) -> Array:
    """Draws masks, bool, images × rows × columns, with equally many true elements in each, in connected regions.

    They are the largest elements of random numbers that lie ``spacing`` apart, interpolated linearly in between.

    Raises:
        MatrixError: ``spacing`` is below 1, or ``density`` outside [0, 1].
    """
    images, *sides = shape
    _check(sides[0], sides[1], density)
    if spacing < 1:
        raise MatrixError(f"random numbers lie at least 1 apart, got {spacing}", source="random mask")
    coarse = [side // spacing + 2 for side in sides]
    noise = Words(seed).fractions(images * coarse[0] * coarse[1]).reshape(images, *coarse)
    down, across = (_interpolation(side, spacing) for side in sides)
    smooth = (down @ noise @ across.T).reshape(images, -1)
    found = np.zeros(smooth.shape, dtype=np.bool_)
    count = min(smooth.shape[1], max(1, round(density * smooth.shape[1])))
    places = np.argsort(smooth, axis=1, kind="stable")[:, smooth.shape[1] - count :]
    np.put_along_axis(found, places, True, axis=1)
    return found.reshape(shape)


def _interpolation(side: int, spacing: int) -> Array:
    """Weights that interpolate ``side`` places linearly between the two numbers beside each."""
    whole, part = np.divmod(np.arange(side), spacing)
    matrix = np.zeros((side, side // spacing + 2))
    matrix[np.arange(side), whole] = 1 - part / spacing
    matrix[np.arange(side), whole + 1] += part / spacing
    return matrix


def _check(rows: int, columns: int, density: float) -> None:
    check_shape((rows, columns), source="random matrix")
    if not 0 <= density <= 1:
        raise MatrixError(f"a density lies in [0, 1], got {density}", source="random matrix")


def _matrix(shape: tuple[int, int], lengths: Array, indices: Array, seed: int) -> CsrMatrix:
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return CsrMatrix(shape, offsets, indices, normal_values(indices.size, np.random.default_rng([seed, 1])))


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CHUNK // max(columns, 1))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _columns_of(chosen: Array) -> Array:
    """The column indices (int32) of the true elements, row after row."""
    rows, columns = chosen.shape
    return np.compress(chosen.ravel(), np.tile(np.arange(columns, dtype=np.int32), rows))


def _choose(columns: int, lengths: Array, words: Words) -> Array:
    """Sorted column indices (int32), row after row, of rows with these lengths (int64, each at most columns)."""
    full = lengths > columns * _FULL
    if full.all():
        return _lowest(columns, lengths, words)
    if not full.any():
        return _rejected(columns, lengths, words)
    indices = np.empty(lengths.sum(), dtype=np.int32)
    of_full_row = np.repeat(full, lengths)
    indices[of_full_row] = _lowest(columns, lengths[full], words)
    indices[~of_full_row] = _rejected(columns, lengths[~full], words)
    return indices


def _lowest(columns: int, lengths: Array, words: Words) -> Array:
    """The columns with the lowest of a row's random keys; no length may be 0."""
    parts = [np.empty(0, dtype=np.int32)]
    for part in _chunks(lengths.size, columns):
        keys = words.ranked(part.stop - part.start, columns)
        last = np.take_along_axis(np.sort(keys, axis=1), lengths[part, None] - 1, axis=1)
        parts.append(_columns_of(keys <= last))
    return np.concatenate(parts)


def _rejected(columns: int, lengths: Array, words: Words) -> Array:
    """Drawn with replacement; what is there already is drawn again until nothing is."""
    rows = np.repeat(np.arange(lengths.size, dtype=np.int64), lengths)
    keys = np.sort(rows * columns + words.below(columns, rows.size))
    while (repeats := np.flatnonzero(keys[1:] == keys[:-1]) + 1).size:
        keys[repeats] = rows[repeats] * columns + words.below(columns, repeats.size)
        keys.sort()
    return (keys % columns).astype(np.int32)
