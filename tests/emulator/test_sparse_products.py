"""The emulator's mma.sp beside a plain product, with fragments and metadata laid out as PTX's manual says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.system.numpy_types import Array

SOURCE = Path(__file__).with_name("sparse_products.cu").read_text()


def fragments(places: Array, values: Array, b: Array) -> Array:
    """Words of 32 lanes: A's registers, B's, and metadata.

    Args:
        places: [2 selectors, 16 rows, 8 fours, 2], where the elements are in their fours.
        values: [16, 8, 2], elements of both products.
        b: [32, 8].
    """
    words = np.zeros((32, 9), dtype=np.uint32)
    halves = values.astype(np.float16).view(np.uint16).astype(np.uint32)
    right = b.astype(np.float16).view(np.uint16).astype(np.uint32)
    for lane in range(32):
        group, thread = divmod(lane, 4)
        for register in range(4):
            row, four = group + register % 2 * 8, thread + register // 2 * 4
            words[lane, register] = halves[row, four, 0] | halves[row, four, 1] << 16
            k = register * 8 + thread * 2
            words[lane, 4 + register] = right[k, group] | right[k + 1, group] << 16
        selector, part = divmod(thread, 2)
        for half in range(2):
            for four in range(4):
                first, second = places[selector, group + 8 * half, part * 4 + four].astype(int)
                words[lane, 8] |= np.uint32((first | second << 2) << (16 * half + 4 * four))
    return words


def multiplied(words: Array, toolchain: EmulatorToolchain) -> Array:
    """The two products' sums, [2, 16, 8]."""
    executor = EmulatorExecutor()
    kernel = executor.load(toolchain.compile("sparse_products", "sparse_products", SOURCE))
    out = np.zeros((32, 2, 4), dtype=np.float32)
    buffers = [executor.upload(words), executor.upload(out)]
    executor.launch(kernel, Launch((1, 1, 1), (32, 1, 1)), buffers)
    executor.download(buffers[1], out)
    sums = np.empty((2, 16, 8), dtype=np.float32)
    for lane in range(32):
        for i in range(4):
            sums[:, lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = out[lane, :, i]
    return sums


def test_elements_are_multiplied_by_the_rows_that_metadata_say(emulator_toolchain: EmulatorToolchain) -> None:
    rng = np.random.default_rng(0)
    places = np.sort(rng.permuted(np.tile(np.arange(4), (2, 16, 8, 1)), axis=-1)[..., :2], axis=-1)
    values, b = rng.integers(-8, 8, (16, 8, 2)), rng.integers(-8, 8, (32, 8))
    sums = multiplied(fragments(places, values, b), emulator_toolchain)
    for selector in range(2):
        dense = np.zeros((16, 8, 4))
        np.put_along_axis(dense, places[selector], values, axis=-1)
        np.testing.assert_array_equal(sums[selector], dense.reshape(16, 32) @ b + (1 - selector))


def test_metadata_that_do_not_rise_are_a_fault(emulator_toolchain: EmulatorToolchain) -> None:
    places = np.tile(np.array([1, 3]), (2, 16, 8, 1))
    places[1, 9, 6] = 2, 2
    words = fragments(places, np.ones((16, 8, 2)), np.ones((32, 8)))
    with pytest.raises(LaunchError, match=r"mma\.sp: the metadata of four columns do not rise"):
        multiplied(words, emulator_toolchain)
