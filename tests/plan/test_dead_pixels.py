"""Pixels of dead blocks become zeros, where they lie or in a copy; the others keep their bits."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import ImageLayout
from sparsegen.plan.dead_pixels import DeadPixels, bind_dead_pixels
from sparsegen.system.numpy_types import Array

SHAPES = [(2, 13, 37, 8), (1, 9, 300, 5), (3, 4, 5, 33), (1, 1, 1, 1), (2, 20, 21, 40)]
by_mask = pytest.mark.parametrize("is_packed", [False, True], ids=["bools", "words"])


def drawn(what: DeadPixels, share: float = 0.4) -> tuple[Array, Array, Array]:
    """The mask as it is given, Y before, and as it should be."""
    rng, (images, rows, columns, _) = np.random.default_rng(0), what.shape
    sides = -(-rows // what.block[0]), -(-columns // what.block[1])
    mask = rng.random((images, *sides)) < share
    live = mask.repeat(what.block[0], 1).repeat(what.block[1], 2)[:, :rows, :columns, None]
    before = rng.integers(1, 1 << 16, what.shape, {2: np.uint16, 4: np.uint32}[what.itemsize])
    both = before, np.where(live, before, 0).astype(before.dtype)
    y, after = (np.ascontiguousarray(a.transpose(0, 3, 1, 2) if what.order.has_planes else a) for a in both)
    return words_of(mask) if what.is_packed else mask, y, after


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("order", ImageLayout)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@by_mask
def test_dead_pixels_are_zeros(
    is_packed: bool,
    shape: tuple[int, int, int, int],
    order: ImageLayout,
    itemsize: int,
    executor: Executor,
) -> None:
    for block in ((8, 16), (5, 3), (1, 1), (64, 64)):
        for share in (0.0, 0.4, 1.0):
            what = DeadPixels(shape, order, itemsize, block, is_packed)
            mask, x, expected = drawn(what, share)
            bound, given, found = bind_dead_pixels(executor, what), executor.upload(mask), executor.upload(x)
            copied = executor.upload(np.full_like(x, 7))
            bound(0, given.address, found.address, copied.address)
            bound(0, given.address, 0, found.address)
            executor.synchronize()
            for buffer in (found, copied):
                executor.download(buffer, x)
                np.testing.assert_array_equal(x, expected)


def test_vectors_where_channels_are_whole_ones() -> None:
    for what, access in (
        (DeadPixels((1, 8, 8, 8), ImageLayout.NHWC, 2, (8, 8)), 16),
        (DeadPixels((1, 8, 8, 12), ImageLayout.NHWC, 4, (8, 8)), 16),
        (DeadPixels((1, 8, 8, 12), ImageLayout.NHWC, 2, (8, 8)), 2),
        (DeadPixels((1, 8, 8, 8), ImageLayout.NCHW, 2, (8, 8)), 2),
    ):
        assert what.access_bytes == access, what


@pytest.mark.sanitizer
@pytest.mark.parametrize("order", ImageLayout)
@by_mask
def test_no_other_memory_is_touched(
    is_packed: bool, order: ImageLayout, emulator_toolchain: EmulatorToolchain
) -> None:
    for channels in (7, 8):
        what = DeadPixels((2, 9, 21, channels), order, 2, (4, 5), is_packed)
        mask, x, expected = drawn(what)
        text = plain_source("dead_pixels.cu")
        compiled = emulator_toolchain.compile_sanitized("plain", what.entry, text)
        *_, found = run_sanitized(compiled.binary, what.launch, [*what.sizes, mask, x, np.full_like(x, 7)])
        np.testing.assert_array_equal(found, expected)
