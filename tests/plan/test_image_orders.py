"""Images change their memory order: all of them, or the pixels that a convolution's live outputs read."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import ImageLayout
from sparsegen.plan.image_orders import Reading, Reordered, bind_reordered
from sparsegen.system.numpy_types import Array

PLANES, INNERMOST = ImageLayout.NCHW, ImageLayout.NHWC
SHAPES = [
    (2, 5, 70, 130),
    (1, 3, 4, 3),
    (3, 2, 64, 8),
    (1, 1, 1, 1),
    (2, 3, 129, 17),
    (1, 4, 67, 64),
    (2, 4, 8, 40),
]
OLD = 7  # what Y holds before


def drawn(what: Reordered, share: float) -> tuple[Array, Array]:
    """Words of a mask, and which pixels are needed: images × rows × columns."""
    images, rows, columns, _ = what.shape
    if what.needed is None:
        return np.zeros(1, np.uint64), np.ones((images, rows, columns), np.bool_)
    down, across = what.needed
    sides = -(-down.outputs // down.block), -(-across.outputs // across.block)
    blocks = np.random.default_rng(1).random((images, *sides)) < share
    live = blocks.repeat(down.block, 1).repeat(across.block, 2)[:, : down.outputs, : across.outputs]
    needed = np.zeros((images, rows, columns), np.bool_)
    for image, row, column in zip(*np.nonzero(live), strict=True):
        top, left = row * down.stride - down.padding, column * across.stride - across.padding
        needed[
            image,
            max(0, top) : max(0, top + down.reach + 1),
            max(0, left) : max(0, left + across.reach + 1),
        ] = True
    return words_of(blocks), needed


def made(what: Reordered, share: float = 0.2) -> tuple[Array, Array, Array]:
    """Words of a mask, X, and Y as it should be afterwards, in their memory orders."""
    channels = what.shape[3]
    words, needed = drawn(what, share)
    x = np.random.default_rng(0).integers(1, 1 << 16, (*what.shape[:3], channels + what.beyond), np.uint16)
    filled = needed[..., None] | what.fills | what.to.has_planes
    y = np.where(needed[..., None], x[..., :channels], np.where(filled, 0, OLD))
    beyond = np.where(filled, 0, OLD).repeat(what.written_channels - channels, 3)
    y = np.concatenate([y, beyond], 3).astype(np.uint16)
    orders = (what.source, x), (what.to, y)
    x, y = (np.ascontiguousarray(a.transpose(0, 3, 1, 2) if o.has_planes else a) for o, a in orders)
    return words, x, y


def check(executor: Executor, what: Reordered, share: float = 0.2) -> None:
    words, x, expected = made(what, share)
    y = np.full_like(expected, OLD)
    mask, given, found = map(executor.upload, (words, x, y))
    bind_reordered(executor, what)(0, mask.address if what.needed else 0, given.address, found.address)
    executor.synchronize()
    executor.download(found, y)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("source", "to"), [(PLANES, INNERMOST), (INNERMOST, INNERMOST), (INNERMOST, PLANES)], ids=str
)
def test_whole_images(
    source: ImageLayout, to: ImageLayout, shape: tuple[int, int, int, int], executor: Executor
) -> None:
    check(executor, Reordered(shape, source, to))


@pytest.mark.parametrize("fills", [False, True])
@pytest.mark.parametrize("channels", [3, 8, 12, 70])
@pytest.mark.parametrize(
    "needed",
    [
        (Reading(30, 8), Reading(75, 5)),  # the pixels themselves
        (Reading(30, 8, 2, 1), Reading(75, 16, 2, 1)),
        (Reading(28, 4, 2, 0), Reading(38, 3, 4, 2, 2)),
        (Reading(10, 5, 1, 0, 3), Reading(16, 16, 6, 0, 5)),  # pixels between windows
        (Reading(40, 8, 0, 5), Reading(85, 12, 0, 5)),  # outputs that read none
    ],
    ids=str,
)
def test_pixels_that_live_outputs_read(
    needed: tuple[Reading, Reading], channels: int, fills: bool, executor: Executor
) -> None:
    for source in ImageLayout:
        for columns in (75, 76):  # planes are whole vectors, or not
            check(executor, Reordered((2, 30, columns, channels), source, INNERMOST, needed, fills))


@pytest.mark.parametrize("source", ImageLayout)
def test_images_from_any_address(source: ImageLayout, executor: Executor) -> None:
    for channels in (3, 16, 37):
        what = Reordered((2, 4, 40, channels), source, INNERMOST)
        _, x, expected = made(what)
        given = executor.upload(np.concatenate([np.zeros(1, np.uint16), x.ravel()]))
        found = executor.upload(np.full_like(expected, OLD))
        bind_reordered(executor, what)(0, 0, given.address + x.itemsize, found.address)
        executor.synchronize()
        y = np.empty_like(expected)
        executor.download(found, y)
        np.testing.assert_array_equal(y, expected)


def test_results_have_zeros_where_nothing_lives(executor: Executor) -> None:
    needed = Reading(30, 8), Reading(75, 1)
    for channels, beyond in ((3, 0), (40, 0), (67, 5)):
        for share in (0.0, 0.3, 1.0):
            for columns in (75, 76):
                what = Reordered((2, 30, columns, channels), INNERMOST, PLANES, needed, beyond=beyond)
                check(executor, what, share)


@pytest.mark.sanitizer
@pytest.mark.parametrize("to", ImageLayout)
def test_no_other_memory_is_touched(to: ImageLayout, emulator_toolchain: EmulatorToolchain) -> None:
    needed = Reading(13, 5, 2, 1), Reading(70, 9, 2, 1)
    for channels in (3, 9):
        for source in (PLANES, INNERMOST)[to.has_planes :]:
            for columns in (70, 72):
                what = Reordered((1, 13, columns, channels), source, to, needed)
                words, x, expected = made(what)
                text = plain_source("image_orders.cu")
                compiled = emulator_toolchain.compile_sanitized("plain", what.entry, text)
                arguments = [*what.sizes, words, x, np.full_like(expected, OLD)]
                *_, found = run_sanitized(compiled.binary, what.launch, arguments)
                np.testing.assert_array_equal(found, expected)
