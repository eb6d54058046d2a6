"""Partial blocks of masks: bits say which of their places are live.

Beside a mask of blocks lie a number for each block, `FULL` or that of its bits, and the bits of all partial blocks:
bit r · columns + c of a block's 64-bit words, little-endian, stands for its place (r, c). Blocks whose number is FULL
are live as a whole, if the mask lets them.
"""

from __future__ import annotations

import numpy as np

from sparsegen.matrix.bits import WORD
from sparsegen.system.numpy_types import Array

FULL = -1
SIDE_OF_BITS = 16  # blocks with bits have sides that are multiples of it


def words_of_block(block: tuple[int, int]) -> int:
    """Returns the number of 64-bit words that the bits of a block take; its sides are multiples of 16 or more."""
    return block[0] * block[1] // 64


def bits_of(places: Array) -> Array:
    """Returns the words (uint64, ... × words of a block) of blocks of bools, ... × rows × columns."""
    flat = places.reshape(*places.shape[:-2], -1)
    packed: Array = np.packbits(flat, axis=-1, bitorder="little").view(WORD)
    return packed


def places_of(words: Array, block: tuple[int, int]) -> Array:
    """Returns the bools (... × rows × columns) of blocks' words."""
    flat = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    return flat.reshape(*words.shape[:-1], *block).astype(np.bool_)


def expanded(numbers: Array, bits: Array, block: tuple[int, int], shape: tuple[int, int]) -> Array:
    """Returns a bool for each place of a mask: false where a partial block's bit is zero.

    Args:
        numbers: int32, rows × columns of blocks.
        bits: uint64, partial blocks × words of a block.
    """
    rows, columns = block
    found = np.ones((numbers.shape[0], rows, numbers.shape[1], columns), np.bool_)
    at = np.nonzero(numbers != FULL)
    found[at[0], :, at[1]] = places_of(bits[numbers[at]], block)
    whole: Array = found.reshape(numbers.shape[0] * rows, -1)[: shape[0], : shape[1]]
    return whole
