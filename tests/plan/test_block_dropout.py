"""Dropout of blocks on a device drops what the mask of the same seed and step drops, and reads none of it."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.errors import MatrixError
from sparsegen.kernels.launch import Launch
from sparsegen.matrix.block_mask import BlockMask, grid
from sparsegen.matrix.block_mask_draw import MaskDraw, draw_blocks
from sparsegen.operators import DType
from sparsegen.plan.block_dropout import bind_block_dropout, bind_store_state
from sparsegen.plan.block_masks import new_state
from sparsegen.system.numpy_types import Array

SHAPES = [
    ((64, 96), (16, 32)),
    ((50, 70), (32, 16)),
    ((3, 200), (16, 64)),
    ((1, 1), (16, 16)),
    ((40, 2100), (16, 16)),
]
SEED, STEP, P = 2**64 - 9, 2**35 + 1, 0.25


def live_elements(shape: tuple[int, int], block: tuple[int, int]) -> Array:
    blocks = draw_blocks(grid(shape, block), MaskDraw(P), SEED, STEP)
    return BlockMask.from_blocks(blocks, block, shape).expand()


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("shape", "block"), SHAPES)
def test_dropped_blocks(
    executor: Executor, shape: tuple[int, int], block: tuple[int, int], dtype: DType
) -> None:
    live = live_elements(shape, block)
    numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x = dtype.to_storage(np.where(live, numbers, np.nan))
    given, found = executor.upload(x), executor.allocate(x.nbytes)
    executor.fill(found, 0xFF)
    state = new_state(executor, SEED, STEP)
    bind_block_dropout(executor, shape, block, P, dtype)(
        0, state.address, 0, 0, 0, given.address, found.address
    )
    y = np.empty_like(x)
    executor.synchronize()
    executor.download(found, y)
    expected = dtype.to_storage(np.where(live, dtype.from_storage(x) * np.float32(1 / 0.75), np.float32(0)))
    np.testing.assert_array_equal(y, expected)
    after = np.empty(2, dtype=np.uint64)
    executor.download(state, after)
    assert after.tolist() == [SEED, STEP]


def test_ones_in_the_place_of_a_matrix(executor: Executor) -> None:
    """The result holds the factors by which a matrix's blocks are dropped; seed and step take a state's place."""
    for shape, dtype in (((37, 72), DType.FLOAT32), ((37, 72), DType.FLOAT16), ((20, 33), DType.BFLOAT16)):
        live = live_elements(shape, (16, 32))
        y = dtype.to_storage(np.zeros(shape, dtype=np.float32))
        found = executor.allocate(y.nbytes)
        executor.fill(found, 0xFF)
        bind_block_dropout(executor, shape, (16, 32), P, dtype)(0, 0, SEED, STEP, 0, 0, found.address)
        executor.synchronize()
        executor.download(found, y)
        np.testing.assert_array_equal(
            y, dtype.to_storage(np.where(live, np.float32(1 / 0.75), np.float32(0)))
        )


def test_several_results_of_steps_that_are_apart(executor: Executor) -> None:
    shape, block, apart, dtype = (37, 72), (16, 32), 12, DType.FLOAT16
    found, y = executor.allocate(3 * 37 * 72 * 2), np.empty((3, *shape), dtype=np.float16)
    bind_block_dropout(executor, shape, block, P, dtype, 3)(0, 0, SEED, STEP, apart, 0, found.address)
    executor.synchronize()
    executor.download(found, y)
    for number in range(3):
        blocks = draw_blocks(grid(shape, block), MaskDraw(P), SEED, STEP + number * apart)
        live = BlockMask.from_blocks(blocks, block, shape).expand()
        np.testing.assert_array_equal(y[number], np.where(live, np.float16(1 / 0.75), np.float16(0)))


def test_a_state_is_stored(executor: Executor) -> None:
    state, after = executor.allocate(16), np.empty(2, dtype=np.uint64)
    bind_store_state(executor)(0, SEED, STEP, state.address)
    executor.synchronize()
    executor.download(state, after)
    assert after.tolist() == [SEED, STEP]


def test_a_second_thread_loads_nothing(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a CUDA graph captures, autograd's thread binds what the first one has loaded."""
    what = ((64, 64), (16, 16), P, DType.FLOAT16)
    bind_block_dropout(executor, *what)

    def refuse(*_: object) -> None:
        raise AssertionError("a module is loaded in a capture")

    monkeypatch.setattr(executor, "load", refuse)
    found: list[object] = []

    def bind() -> None:
        with executor.entered():
            found.append(bind_block_dropout(executor, *what))

    thread = Thread(target=bind)
    thread.start()
    thread.join()
    assert len(found) == 1


def test_a_probability_out_of_range(executor: Executor) -> None:
    with pytest.raises(MatrixError, match="share of blocks to drop"):
        bind_block_dropout(executor, (4, 4), (16, 16), 1.0, DType.FLOAT16)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("entry", "shape"), [("drop_float32_4", (37, 72)), ("drop_float32_1", (37, 71))])
def test_nothing_out_of_bounds(
    emulator_toolchain: EmulatorToolchain, entry: str, shape: tuple[int, int]
) -> None:
    compiled = emulator_toolchain.compile_sanitized("plain", entry, plain_source("block_dropout.cu"))
    live = live_elements(shape, (16, 32))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    sizes = [*shape, 16, 32, 1 << 30, int(np.float32(2.0).view(np.int32))]
    state = np.array([SEED, STEP], dtype=np.uint64)
    launch = Launch((1, 5, 1), (128, 1, 1))  # fewer blocks than groups of rows
    unread = np.zeros(1, dtype=np.uint64)  # in the places of the seed, the step and what is apart
    given = [*sizes, state, unread, unread, unread, x, np.full_like(x, np.nan)]
    *_, found = run_sanitized(compiled.binary, launch, given)
    np.testing.assert_array_equal(found, np.where(live, 2 * x, 0))
