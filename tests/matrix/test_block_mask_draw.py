"""Random masks: the generator against its authors' own answers, and what the masks' statistics must be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparsegen.errors import MatrixError
from sparsegen.matrix.block_mask import BlockMaskLayout
from sparsegen.matrix.block_mask_draw import Drawn, MaskDraw, draw_blocks, philox, random_words, smallest
from sparsegen.system.numpy_types import Array

LAYOUT = BlockMaskLayout(70, 130)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [  # Random123's known answers for philox4x32, 10 rounds
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: str) -> None:
    found = philox(counter, key)
    assert " ".join(f"{int(word):08x}" for word in found) == words


def test_a_block_has_its_own_word_whatever_the_others_are() -> None:
    words = random_words(LAYOUT, 7, 2**40 + 3)
    assert np.array_equal(random_words(BlockMaskLayout(3, 5), 7, 2**40 + 3), words[:3, :5])
    lone = philox((129 // 4, 42, 3, 256), (7, 0))
    assert words[42, 129] == lone[129 % 4]
    for other in (
        random_words(LAYOUT, 8, 2**40 + 3),
        random_words(LAYOUT, 7, 3),
        random_words(LAYOUT, 7, 2**40),
    ):
        assert not np.array_equal(words, other)


@pytest.mark.parametrize("p", [0, 0.1, 0.5, 0.77, 0.999])
def test_exact_counts(p: float) -> None:
    by_row = draw_blocks(LAYOUT, MaskDraw(p, Drawn.EXACT_ROWS), 1, 2)
    live = max(1, 130 - round(130 * p))
    assert (by_row.sum(axis=1) == live).all() and by_row.shape == (70, 130)
    whole = draw_blocks(LAYOUT, MaskDraw(p, Drawn.EXACT_WHOLE), 1, 2)
    assert whole.sum() == max(1, 70 * 130 - round(70 * 130 * p))
    assert MaskDraw(p, Drawn.EXACT_ROWS).density(LAYOUT) == live / 130


def test_nothing_dropped_at_p_0() -> None:
    for drawn in Drawn:
        draw = MaskDraw(0, drawn)
        assert draw_blocks(LAYOUT, draw, 5, 6).all() and draw.density(LAYOUT) == 1


def test_of_equal_words_the_first_are_live() -> None:
    words = np.array([[3, 1, 3, 3, 0], [2, 2, 2, 2, 2]], dtype=np.uint32)
    assert smallest(words, 3).tolist() == [[True, True, False, False, True], [True, True, True, False, False]]


STEPS = 400


@pytest.fixture(scope="module", params=Drawn)
def masks(request: pytest.FixtureRequest) -> Array:
    """Draws masks of one seed at many steps: 24 × 20 blocks, 30 % dropped."""
    draw = MaskDraw(0.3, request.param)
    return np.stack([draw_blocks(BlockMaskLayout(24, 20), draw, 11, step) for step in range(STEPS)])


def test_every_block_is_as_likely(masks: Array) -> None:
    """Pearson's statistic of how often each block is live, 480 of them."""
    counts = masks.sum(axis=0)
    statistic = float(((counts - 0.7 * STEPS) ** 2).sum() / (STEPS * 0.7 * 0.3))
    assert abs(statistic - counts.size) < 5 * math.sqrt(2 * counts.size)


def test_blocks_know_nothing_of_each_other(masks: Array) -> None:
    """Correlations of neighbours by row, in time and by column; where a row's number is fixed, the others share it."""
    z = (masks - 0.7) / math.sqrt(0.21)
    in_a_row = -1 / 19 if (masks.sum(axis=2) == 14).all() else 0.0
    for expected, product in (
        (0.0, z[:, 1:] * z[:, :-1]),
        (0.0, z[1:] * z[:-1]),
        (in_a_row, z[:, :, 1:] * z[:, :, :-1]),
        (in_a_row, z[:, :, 4:] * z[:, :, :-4]),
    ):
        # A fixed number over the whole gives all pairs -1/479.
        assert abs(float(product.mean()) - expected) < 5 / math.sqrt(product.size) + 1 / 479


def test_how_many_blocks_are_live() -> None:
    draw, layout = MaskDraw(0.3), BlockMaskLayout(24, 20)
    counts = np.array([draw_blocks(layout, draw, 11, step).sum() for step in range(STEPS)])
    assert abs(counts.mean() - 336) < 5 * math.sqrt(480 * 0.21 / STEPS)
    assert abs(counts.var() / (480 * 0.21) - 1) < 5 * math.sqrt(2 / STEPS)


def test_bad_draws() -> None:
    for p in (-0.1, 1, 1.5, math.nan):
        with pytest.raises(MatrixError, match=r"outside \[0, 1\): it is the share of blocks to drop"):
            MaskDraw(p)
    with pytest.raises(MatrixError, match="none of bernoulli, exact_rows, exact_whole"):
        MaskDraw(0.5, "rows")  # type: ignore[arg-type]
    for seed, step in ((-1, 0), (0, 2**64)):
        with pytest.raises(MatrixError, match=r"is outside \[0, 2⁶⁴\)"):
            draw_blocks(LAYOUT, MaskDraw(0.5), seed, step)
