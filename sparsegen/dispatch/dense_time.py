"""Time of a dense product by cuBLAS: a model of tiles, waves and bytes, corrected by measurements of similar shapes.

A product of m × k by k × n is cut into tiles of the result, and where these are few each into parts of k. Every
multiprocessor computes one tile at a time, so that the time goes up in waves; small tiles reach less of the device's
rate. Beside it all operands are read from memory and the result written. The constants go by an element's bytes, and
are the same for all devices: their rates make the difference. `benchmarks/dense_times.py` fits them to the seeds, and
says how far off the model is on shapes that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparsegen.kernels.base import Device
from sparsegen.operators import DType, Layout, Problem, SpmmProblem

TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (128, 256), (256, 128))
LARGEST_TILE = 128 * 256
SPLITS = (1, 2, 4, 8, 16)  # parts of k
STEP = 64  # columns of A that a block takes at a time
CHUNK_BYTES = 16  # that cuBLAS loads at once, by TMA or otherwise
# Fraction of a tile's rate that products of 16-bit elements reach, by the bytes that they load at once where rows are
# no whole chunks: fitted to 27 drawn products on an H200, which are then within 1.14 × (rms).
REACHED = {2: 0.16, 4: 0.3, 8: 0.3, CHUNK_BYTES: 1.0}
NEAR = 2.0  # octaves between two shapes up to which the errors of what one says of the other are those of neighbours
HALVING = 1.0  # octaves between two shapes at which what was measured of one says half as much of the other


class Constants(NamedTuple):
    """Fitted properties of cuBLAS.

    Attributes:
        start_us: microseconds of an empty product.
        memory_share: fraction of a large copy's rate at which operands are read; above 1 where reading hides behind
            sums.
        wave_us: microseconds of each wave, whatever its tiles.
        small_tiles: loss of a tile's rate with its area: the exponent of its fraction of the largest tile.
        split_us: microseconds added if k is split; ``split_bytes``, a factor of the bytes of the partial results.
    """

    start_us: float
    memory_share: float
    wave_us: float
    small_tiles: float
    split_us: float
    split_bytes: float


FITTED = {  # by the bytes of an element; made by `python -m benchmarks.dense_times`
    2: Constants(5.693, 0.898, 0.0, 0.115, 2.607, 0.831),
    4: Constants(6.581, 4.408, 0.0, 0.115, 2.857, 0.352),
}


class Known(NamedTuple):
    """A dense product that was measured."""

    problem: SpmmProblem
    time_us: float


def is_modelled(problem: Problem, device: Device) -> bool:
    """True if the model covers the problem's dense product."""
    return isinstance(problem, SpmmProblem) and problem.batch == 1 and device.backend == "cuda"


def known_products(times: Mapping[Problem, float]) -> list[Known]:
    """Selects the dense products of one batch element, from times in microseconds of any problems' dense products."""
    return [
        Known(problem, us)
        for problem, us in times.items()
        if isinstance(problem, SpmmProblem) and problem.batch == 1
    ]


def dense_time_us(problem: SpmmProblem, device: Device, known: Sequence[Known] = ()) -> float:
    """Predicts the time of the dense product with a cold L2, in microseconds.

    Args:
        known: products of the same dtype on the device: the nearest in shape corrects the model, one of equal
            sizes is the answer.
    """

    def modelled(one: SpmmProblem) -> float:
        return modelled_us(one, device, loaded_bytes=loaded_bytes(one))

    expected = modelled(problem)
    if not known:
        return expected
    nearest = min(known, key=lambda one: _octaves(one.problem, problem))
    trust = 0.5 ** (_octaves(nearest.problem, problem) / HALVING)
    return float(expected * (nearest.time_us / modelled(nearest.problem)) ** trust)


def is_near(problem: SpmmProblem, known: Sequence[Known]) -> bool:
    """True if a known product says more of a problem than the model does."""
    return any(_octaves(one.problem, problem) <= NEAR for one in known)


def loaded_bytes(problem: SpmmProblem) -> int:
    """Bytes of a matrix that cuBLAS loads at once: `chunk_of` the rows of all three, a whole chunk in float32.

    Beside a row-major B, A is as well stored by columns (`DenseWeight`).
    """
    if problem.dtype is DType.FLOAT32:
        return CHUNK_BYTES

    def chunk(*sizes: int) -> int:
        return chunk_of(size * problem.dtype.itemsize for size in sizes)

    if problem.layout is Layout.ROW:
        return min(chunk(problem.n), max(chunk(problem.k), chunk(problem.m)))
    return chunk(problem.k, problem.m)


def chunk_of(row_bytes: Iterable[int]) -> int:
    """Bytes that divide rows of these lengths, at most a whole chunk."""
    return math.gcd(CHUNK_BYTES, *row_bytes)


def modelled_us(
    problem: SpmmProblem,
    device: Device,
    constants: Constants | None = None,
    *,
    loaded_bytes: int = CHUNK_BYTES,
    in_tf32: bool = False,
) -> float:
    """The same by the model alone.

    Args:
        loaded_bytes: those that it loads at once.
        in_tf32: float32 is multiplied on the tensor cores, whose constants are those of 16 bits.
    """
    rates, itemsize = device.expected_rates, problem.dtype.itemsize
    c = constants or FITTED[2 if in_tf32 else itemsize]
    m, k, n = problem.m, problem.k, problem.n
    flop_per_us = {
        DType.FLOAT32: rates.tf32_flop_per_us if in_tf32 else rates.float32_flop_per_us,
        DType.FLOAT16: rates.float16_flop_per_us,
        DType.BFLOAT16: rates.bfloat16_flop_per_us,
    }[problem.dtype] / device.multiprocessors
    flop_per_us *= REACHED[loaded_bytes]
    best = math.inf
    for rows, columns in TILES:
        tiles = math.ceil(m / rows) * math.ceil(n / columns)
        reached = flop_per_us * (rows * columns / LARGEST_TILE) ** c.small_tiles
        for parts in SPLITS:
            if parts > 1 and k // parts < STEP:
                break
            waves = math.ceil(tiles * parts / device.multiprocessors)
            steps = math.ceil(k / parts / STEP)
            us = waves * (2 * rows * columns * steps * STEP / reached + c.wave_us)
            if parts > 1:
                us += c.split_us + c.split_bytes * 8 * parts * m * n / rates.copy_bytes_per_us
            best = min(best, us)
    moved = itemsize * (m * k + k * n + m * n) / (rates.copy_bytes_per_us * c.memory_share)
    return c.start_us + math.hypot(best, moved)


def _octaves(one: SpmmProblem, other: SpmmProblem) -> float:
    """Distance of two shapes in octaves; a different layout counts as one octave."""
    sizes = zip((one.m, one.k, one.n), (other.m, other.k, other.n), strict=True)
    apart = math.hypot(*(math.log2((a + 1) / (b + 1)) for a, b in sizes))
    return apart + (one.layout is not other.layout)
