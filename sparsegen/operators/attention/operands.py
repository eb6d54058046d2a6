"""Random operands of attention by blocks beside Q, K and V: partial blocks, softcap, slopes, sinks."""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.partial_blocks import FULL, bits_of
from sparsegen.system.numpy_types import Array

SOFTCAP = 6.0  # below the largest scores of random operands, above most
SHARES = (0.0, 0.1, 0.5, 0.9)  # of live places in partial blocks


def random_partial_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], room: int, block: tuple[int, int]
) -> tuple[Array, Array]:
    """Numbers (int32) of blocks of this shape, some of them partial, and the bits (uint64) of as many as there is room
    for, among which some have no live place, and some rows without.
    """
    numbers = np.full(shape, FULL, np.int32)
    count = min(room, max(1, numbers.size // 2))
    numbers.flat[rng.choice(numbers.size, count, replace=False)] = rng.choice(room, count, replace=False)
    places = rng.random((room, *block)) < rng.choice(SHARES, (room, 1, 1))
    places &= rng.random((room, block[0], 1)) < 0.9
    return numbers, bits_of(places)


def random_slopes(heads: int) -> Array:
    """Slopes of ALiBi (float32), steeper than usual: short contexts are to feel them."""
    return np.array([0.5 ** (4 + head % 5) for head in range(heads)], np.float32)
