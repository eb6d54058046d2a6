"""Philox4x32-10: random words that a counter and a key name, the same in any order and on every device.

Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011, section 3.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsegen.system.numpy_types import Array

ROUNDS = 10
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
INCREMENTS = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: tuple[npt.ArrayLike, ...], key: tuple[int, int]) -> Array:
    """uint32, ... × 4: the four words of each counter.

    Args:
        counter: its four words, integers from 0 below 2³², of shapes that broadcast.
        key: two words, likewise.
    """
    words: list[Array] = [np.asarray(word, dtype=np.uint64) for word in counter]
    keys = list(key)
    for _ in range(ROUNDS):
        first, second = words[0] * MULTIPLIERS[0], words[2] * MULTIPLIERS[1]
        words = [
            (second >> _HALF) ^ words[1] ^ np.uint64(keys[0]),
            second & _LOW,
            (first >> _HALF) ^ words[3] ^ np.uint64(keys[1]),
            first & _LOW,
        ]
        keys = [(word + step) & 0xFFFFFFFF for word, step in zip(keys, INCREMENTS, strict=True)]
    return np.stack(np.broadcast_arrays(*words), axis=-1).astype(np.uint32)
