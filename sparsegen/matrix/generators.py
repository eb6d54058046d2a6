"""Random sparse matrices of known shape, density and structure, reproducible from a seed.

All values are standard normal float32, none of them zero. Densities are those of the pattern asked for; the
number of nonzeros varies around m · k · density where rows are drawn independently.
"""

from __future__ import annotations

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import CsrMatrix, check_shape
from sparsegen.matrix.foreign import Compressed
from sparsegen.matrix.formats import as_csr
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

# Rows fuller than this are drawn as a permutation of all columns, the others by rejection.
_FULL = 1 / 16
_CHUNK = 1 << 22  # elements of a permuted chunk of rows, to bound memory


def random_uniform(m: int, k: int, density: float, seed: int) -> CsrMatrix:
    """Every element is a nonzero with probability ``density``, independently: DLMC's random pruning."""
    _check(m, k, density)
    rng = np.random.default_rng(seed)
    return _from_lengths(k, rng.binomial(k, density, size=m), rng)


def uniform_rows(m: int, k: int, per_row: int, seed: int) -> CsrMatrix:
    """Every row has ``per_row`` nonzeros in columns drawn at random: uniform sparsity (Muralidharan, MLSys 2023).

    Raises:
        MatrixError: ``per_row`` is not in [0, k].
    """
    check_shape((m, k), source="uniform_rows")
    if not 0 <= per_row <= k:
        raise MatrixError(f"a row of {k} columns cannot have {per_row} nonzeros", source="uniform_rows")
    return _from_lengths(k, np.full(m, per_row, dtype=np.int64), np.random.default_rng(seed))


def random_rows(m: int, k: int, density: float, row_cov: float, seed: int) -> CsrMatrix:
    """Row lengths with a coefficient of variation, columns uniform: DLMC's magnitude pruning and the like.

    Lengths follow a gamma distribution of mean k · density and CoV ``row_cov`` (0: all equal, up to
    rounding), cut off at k, which lowers a high density. In DLMC the CoV is mostly 0.1 to 0.7; a tenth of the
    transformer's matrices pruned by variational dropout have 3 and more.
    """
    _check(m, k, density)
    if not row_cov >= 0:
        raise MatrixError(f"row_cov must be at least 0, got {row_cov}", source="random_rows")
    rng = np.random.default_rng(seed)
    mean = np.full(m, k * density)
    wanted = mean if row_cov == 0 else mean * rng.gamma(row_cov**-2, row_cov**2, size=m)
    return _from_lengths(k, _rounded(wanted, k, rng), rng)


def power_law(m: int, k: int, density: float, seed: int, *, exponent: float = 1.0) -> CsrMatrix:
    """Few long rows and many short ones: the r-th longest has length ∝ r^-exponent, cut off at k.

    The rows are in random order and the columns uniform. Graphs look like this, and so do the worst cases
    for kernels that give every row the same threads.
    """
    _check(m, k, density)
    rng = np.random.default_rng(seed)
    weights = np.arange(1, m + 1, dtype=np.float64) ** -exponent
    target = m * k * density
    # The sum of min(k, scale · weight) grows with the scale: bisect for the one that gives the target.
    low, high = 0.0, k / weights.min(initial=1.0)
    for _ in range(100):
        middle = (low + high) / 2
        if np.minimum(k, middle * weights).sum() < target:
            low = middle
        else:
            high = middle
    return _from_lengths(k, _rounded(rng.permutation(high * weights), k, rng), rng)


def random_blocks(m: int, k: int, block: int | tuple[int, int], density: float, seed: int) -> CsrMatrix:
    """Dense blocks on an aligned grid, each there with probability ``density``; cut off at the edges.

    Args:
        block: (rows, columns) of a block, or the side of a square one.
    """
    _check(m, k, density)
    height, width = (block, block) if isinstance(block, int) else block
    if height < 1 or width < 1:
        raise MatrixError(f"a block needs at least one row and column, got {block}", source="random_blocks")
    grid = random_uniform(ceil_div(m, height), ceil_div(k, width), density, seed)
    values = normal_values(grid.nnz * height * width, np.random.default_rng([seed, 1]))
    whole = as_csr(
        Compressed(
            "bsr",
            (grid.shape[0] * height, grid.shape[1] * width),
            grid.row_offsets,
            grid.column_indices,
            values.reshape(grid.nnz, height, width),
        )
    )
    return whole if whole.shape == (m, k) else as_csr(whole.to_scipy()[:m, :k])


def normal_values(count: int, rng: np.random.Generator) -> Array:
    """Standard normal float32 values without a zero."""
    values = rng.standard_normal(count, dtype=np.float32)
    values[values == 0] = 1.0
    return values


def _check(m: int, k: int, density: float) -> None:
    check_shape((m, k), source="random matrix")
    if not 0 <= density <= 1:
        raise MatrixError(f"a density lies in [0, 1], got {density}", source="random matrix")


def _rounded(lengths: Array, k: int, rng: np.random.Generator) -> Array:
    """Real lengths to integers in [0, k], up or down at random so that the mean stays."""
    return np.minimum(np.floor(lengths + rng.random(lengths.size)), k).astype(np.int64)


def _from_lengths(k: int, lengths: Array, rng: np.random.Generator) -> CsrMatrix:
    """A matrix with these row lengths (int64, each at most k), every set of columns equally likely."""
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    columns = np.empty(offsets[-1], dtype=np.int32)
    full = lengths > k * _FULL
    of_full_row = np.repeat(full, lengths)
    columns[of_full_row] = _permuted(k, lengths[full], rng)
    columns[~of_full_row] = _rejected(k, lengths[~full], rng)
    return CsrMatrix((lengths.size, k), offsets, columns, normal_values(columns.size, rng))


def _permuted(k: int, lengths: Array, rng: np.random.Generator) -> Array:
    """Sorted columns, row after row: where a random permutation of 0..k-1 is below the row's length."""
    step = max(1, _CHUNK // max(k, 1))
    parts = [np.empty(0, dtype=np.int64)]
    for start in range(0, lengths.size, step):
        chunk = lengths[start : start + step, None]
        ranks = rng.permuted(np.tile(np.arange(k, dtype=np.int32), (chunk.shape[0], 1)), axis=1)
        parts.append(np.nonzero(ranks < chunk)[1])
    return np.concatenate(parts)


def _rejected(k: int, lengths: Array, rng: np.random.Generator) -> Array:
    """Sorted columns, row after row: drawn with replacement, repeats drawn again until there are none."""
    rows = np.repeat(np.arange(lengths.size, dtype=np.int64), lengths)
    keys = np.sort(rows * k + rng.integers(k, size=rows.size)) if rows.size else rows
    while True:
        repeats = np.flatnonzero(keys[1:] == keys[:-1]) + 1
        if not repeats.size:
            return keys % k if rows.size else keys
        keys[repeats] = rows[repeats] * k + rng.integers(k, size=repeats.size)
        keys.sort()
