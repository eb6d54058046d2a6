"""Masks of small blocks as masks of larger ones and the bits of these: the same places live."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparsegen.integrations.torch import BlockMaskTensor  # noqa: E402
from sparsegen.integrations.torch.attention.attention_options import AttentionOptions, Beside  # noqa: E402
from sparsegen.integrations.torch.attention.united_blocks import UnitedBlocks  # noqa: E402
from sparsegen.matrix.partial_blocks import FULL, expanded  # noqa: E402

OPTIONS = AttentionOptions(1.0, 0.0, False, False, 0, 0, 0, 0, 0.25, False)
SHAPE = (200, 330)


def united_of(small: tuple[int, int], more: Beside) -> UnitedBlocks | None:
    return UnitedBlocks.of(OPTIONS._replace(block_rows=small[0], block_columns=small[1]), SHAPE, more)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(
    ("small", "large"),
    [
        ((32, 32), (64, 64)),
        ((16, 64), (64, 64)),
        ((64, 32), (64, 64)),
        ((32, 128), (64, 128)),
        ((16, 16), (64, 64)),
    ],
)
def test_the_same_places_live(small: tuple[int, int], large: tuple[int, int], share: float) -> None:
    rows, columns = (-(-size // side) for size, side in zip(SHAPE, small, strict=True))
    live = torch.from_numpy(np.random.default_rng(1).random((2, 3, rows, columns)) < share)
    mask = BlockMaskTensor.from_blocks(live, small, SHAPE)
    united = united_of(small, Beside(mask.words))
    assert united is not None and united.large == large
    made = united.beside(Beside(mask.words))
    assert made.words is not None and made.numbers is not None and made.bits is not None
    of_large = BlockMaskTensor(SHAPE, large, made.words).expand()
    for place in np.ndindex(2, 3):
        bits = expanded(made.numbers[place].numpy(), made.bits.numpy(), large, SHAPE)
        np.testing.assert_array_equal(of_large[place].numpy() & bits, mask.expand()[place].numpy())
    described = united.described(Beside(mask.words)).bits
    assert described is not None and described.shape[0] == made.bits.shape[0]
    if share == 1.0:
        inner = made.numbers[..., : SHAPE[0] // large[0], : SHAPE[1] // large[1]]
        assert (inner == FULL).all(), "blocks that are whole need no bits"


def test_large_blocks_and_those_with_bits_stay() -> None:
    words = torch.zeros(1, 1, 8, dtype=torch.uint64)
    assert united_of((32, 32), Beside()) is None
    assert united_of((64, 128), Beside(words)) is None
    assert united_of((32, 64), Beside(words, bits=words)) is None


def test_large_blocks_live_more_often() -> None:
    united = united_of((32, 32), Beside(torch.zeros(1, 1, 8, dtype=torch.uint64)))
    assert united is not None
    options = united.options(OPTIONS)
    assert options.block == (64, 64) and options.density == pytest.approx(1 - 0.75**4)
