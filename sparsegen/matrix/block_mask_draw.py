"""Random masks of blocks, which a seed and a step name: the same on every device.

Block (r, c) has the random word number c % 4 of Philox4x32-10 with the counter (c / 4, r, the step's two halves) and
the seed's halves as key. So each block's word is known without the others'.

Philox: Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.block_mask import BlockMaskLayout
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

ROUNDS = 10
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
INCREMENTS = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_HIGHEST = 2**32 - 1
_MOST_STEPS = 2**64


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


class Drawn(StrEnum):
    """Distribution of the number of blocks that a mask drops."""

    BERNOULLI = "bernoulli"  # each is dropped with probability p, independently of the others
    EXACT_ROWS = "exact_rows"  # the same number in each row, every set of them equally likely
    EXACT_WHOLE = "exact_whole"  # a fixed number over the whole mask, likewise


@dataclass(frozen=True, slots=True)
class MaskDraw:
    """Distribution of block masks.

    Attributes:
        p: the share of blocks to drop, in [0, 1); exact counts round it to whole blocks.
        drawn: distribution of their number.
    """

    p: float
    drawn: Drawn = Drawn.BERNOULLI

    def __post_init__(self) -> None:
        p = arguments.number(self.p, "p", MatrixError)
        if not 0 <= p < 1:
            raise MatrixError(f"p = {p} is outside [0, 1): it is the share of blocks to drop")
        drawn = arguments.word(Drawn, self.drawn, "drawn", MatrixError)
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "drawn", drawn)

    def amount(self, layout: BlockMaskLayout) -> int:
        """The random word from which an independent block is live; else the live blocks of a row, or of all.

        Exact counts keep at least one block.
        """
        if self.drawn == Drawn.BERNOULLI:
            return min(round(self.p * 2.0**32), _HIGHEST)
        among = layout.columns if self.drawn == Drawn.EXACT_ROWS else layout.rows * layout.columns
        return max(1, among - round(self.p * among))

    def density(self, layout: BlockMaskLayout) -> float:
        """The expected share of live blocks, which exact counts have exactly."""
        if self.drawn == Drawn.BERNOULLI:
            return 1 - self.amount(layout) / 2.0**32
        among = layout.columns if self.drawn == Drawn.EXACT_ROWS else layout.rows * layout.columns
        return self.amount(layout) / among


def draw_blocks(layout: BlockMaskLayout, draw: MaskDraw, seed: int, step: int) -> Array:
    """bool, rows × columns of blocks: the mask of a seed and a step.

    Args:
        seed, step: whole numbers from 0 below 2⁶⁴.

    Raises:
        MatrixError: one of them is out of range.
    """
    words, amount = random_words(layout, seed, step), draw.amount(layout)
    match draw.drawn:
        case Drawn.BERNOULLI:
            return np.asarray(words >= amount)
        case Drawn.EXACT_ROWS:
            return smallest(words, amount)
        case Drawn.EXACT_WHOLE:
            return smallest(words.reshape(1, -1), amount).reshape(words.shape)


def smallest(words: Array, count: int) -> Array:
    """True for the ``count`` smallest words of each row, bool; of equal ones the first."""
    order = np.argsort(words, axis=1, kind="stable")
    live = np.zeros(words.shape, dtype=np.bool_)
    np.put_along_axis(live, order[:, :count], True, axis=1)
    return live


def random_words(layout: BlockMaskLayout, seed: int, step: int) -> Array:
    """uint32, rows × columns: each block's random word; see `draw_blocks`."""
    check_state(seed, step)
    quads = np.arange(ceil_div(layout.columns, 4), dtype=np.uint64)
    rows = np.arange(layout.rows, dtype=np.uint64)[:, None]
    words = philox((quads, rows, *_halves(step)), _halves(seed))
    found: Array = words.reshape(layout.rows, -1)[:, : layout.columns]
    return found


def check_state(seed: int, step: int) -> None:
    """Refuses what does not fit two 64-bit words.

    Raises:
        MatrixError: one of them is no whole number in [0, 2⁶⁴).
    """
    for value, name in ((seed, "seed"), (step, "step")):
        if not 0 <= arguments.whole(value, name, MatrixError) < _MOST_STEPS:
            raise MatrixError(f"{name} = {value} is outside [0, 2⁶⁴)")


def _halves(number: int) -> tuple[int, int]:
    return int(number) & _HIGHEST, int(number) >> 32
