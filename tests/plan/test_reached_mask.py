"""Masks behind layers in one launch, against those that NumPy makes."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.matrix.axis_reach import AxisReach
from sparsegen.matrix.spatial_mask import Reach, dilate, resize, words_of
from sparsegen.plan.reached_mask import ENTRY, FILE, ReachedMask, bind_reached_mask
from sparsegen.system.numpy_types import Array

SIZES = [((21, 37), (4, 4)), ((64, 700), (8, 5)), ((1, 1), (3, 2)), ((130, 9), (1, 1))]
REACHES = [
    Reach((3, 3), padding=(1, 1)),
    Reach((1, 1)),
    Reach((5, 2), (2, 1), (2, 1)),
    Reach((1, 3), (1, 2), (3, 4), (1, 2)),
    Reach((2, 2), (2, 2), (1, 1)),
]


def made(what: ReachedMask, mask: Array, executor: Executor) -> tuple[Array, Array]:
    """The bools and words that a launch writes over others."""
    blocks, words = np.full(what.shape, 7, np.uint8), np.full(what.word_shape, 99, np.uint64)
    given, *found = (executor.upload(array) for array in (mask, blocks, words))
    bind_reached_mask(executor, what)(0, given.address, *(one.address for one in found))
    executor.synchronize()
    for buffer, array in zip(found, (blocks, words), strict=True):
        executor.download(buffer, array)
    return blocks, words


def drawn(size: tuple[int, int], block: tuple[int, int], share: float) -> Array:
    sides = (-(-size[i] // block[i]) for i in range(2))
    return np.random.default_rng(0).random((2, *sides)) < share


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(("size", "block"), SIZES, ids=str)
def test_windows(size: tuple[int, int], block: tuple[int, int], share: float, executor: Executor) -> None:
    mask = drawn(size, block, share)
    for reach in REACHES:
        if (
            min(size[i] + 2 * reach.padding[i] - reach.dilation[i] * (reach.kernel[i] - 1) for i in range(2))
            < 1
        ):
            continue  # the window does not fit
        axes = [AxisReach.of_window(i, size, block, reach) for i in range(2)]
        if None in axes:
            continue
        expected = dilate(mask, size, block, reach)
        found, words = made(ReachedMask(2, *axes), mask, executor)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(words, words_of(expected))


@pytest.mark.parametrize(("size", "block"), SIZES, ids=str)
def test_other_sizes(size: tuple[int, int], block: tuple[int, int], executor: Executor) -> None:
    mask = drawn(size, block, 0.1)
    for out in ((1, 1), (10, 18), (42, 74), (300, 1)):
        axes = [AxisReach.of_scene(size[i], block[i], out[i]) for i in range(2)]
        expected = resize(mask, size, block, out)
        found, words = made(ReachedMask(2, *axes), mask, executor)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(words, words_of(expected))


def test_windows_that_step_over_blocks_are_no_intervals() -> None:
    for reach in (Reach((3, 1), dilation=(5, 1)), Reach((1, 1), (5, 1)), Reach((2, 1), (6, 1))):
        assert AxisReach.of_window(0, (40, 40), (4, 4), reach) is None
        assert AxisReach.of_window(1, (40, 40), (4, 4), reach) is not None
    assert (
        AxisReach.of_window(0, (41, 41), (4, 4), Reach((1, 1), (2, 2))) is None
    )  # over the last block, of one pixel


@pytest.mark.sanitizer
def test_no_other_memory_is_touched(emulator_toolchain: EmulatorToolchain) -> None:
    reach, size, block = Reach((3, 3), padding=(1, 1)), (21, 300), (4, 4)
    down, across = (AxisReach.of_window(i, size, block, reach) for i in range(2))
    assert down is not None and across is not None
    what, mask = ReachedMask(2, down, across), drawn(size, block, 0.1)
    compiled = emulator_toolchain.compile_sanitized("plain", ENTRY, plain_source(FILE))
    outputs = [np.zeros(what.shape, bool), np.zeros(what.word_shape, np.uint64)]
    *_, found, _ = run_sanitized(compiled.binary, what.launch, [*what.sizes, mask, *outputs])
    np.testing.assert_array_equal(found, dilate(mask, size, block, reach))
