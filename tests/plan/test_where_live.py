"""Live blocks are copied and scaled; dead ones are not read, and become zeros or stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor
from sparsegen.backends.plain import plain_source
from sparsegen.errors import MatrixError
from sparsegen.matrix.block_mask import BlockMask, grid
from sparsegen.operators import DType
from sparsegen.plan.where_live import Dead, WhereLive, bind_where_live
from sparsegen.system.numpy_types import Array

SIZES = [
    ((64, 96), (16, 32)),
    ((50, 72), (32, 16)),  # ragged rows and columns
    ((7, 33), (3, 5)),  # blocks that cut vectors and groups of rows
    ((3, 200), (16, 64)),
    ((1, 1), (16, 16)),
    ((20, 44), (16, 32)),  # rows that narrower vectors divide
    ((20, 42), (16, 32)),
    ((130, 2100), (1, 4)),  # more columns than a thread block takes, more blocks than a word has bits
]
SCALE = 1.25


def drawn(what: WhereLive, share: float = 0.4) -> tuple[Array, Array]:
    """Words of a mask for each matrix, and which of all elements are live."""
    layout, rng = grid(what.shape, what.block), np.random.default_rng(3)
    masks = [
        BlockMask.from_blocks(rng.random((layout.rows, layout.columns)) < share, what.block, what.shape)
        for _ in range(what.batch)
    ]
    return np.stack([mask.words for mask in masks]), np.stack([mask.expand() for mask in masks])


def rows_of(what: WhereLive, of: int, fill: float) -> Array:
    """The memory of X (0) or Y (1), with what lies between rows, as real numbers."""
    step = (what.strides or (what.shape[1],) * 2)[of]
    return np.full((what.batch, what.shape[0], step), fill, np.float32)


def expected_of(what: WhereLive, live: Array, x: Array, y: Array) -> Array:
    """Y afterwards."""
    columns, scaled = what.shape[1], what.dtype.from_storage(x) * np.float32(what.scale)
    dead = np.float32(0) if what.dead is Dead.ZERO else what.dtype.from_storage(y)[..., :columns]
    wanted = what.dtype.from_storage(y).copy()
    wanted[..., :columns] = np.where(live, scaled[..., :columns], dead)
    return what.dtype.to_storage(wanted)


def check(executor: Executor, what: WhereLive) -> None:
    words, live = drawn(what)
    x = rows_of(what, 0, np.nan)
    x[..., : what.shape[1]][live] = np.random.default_rng(0).standard_normal(int(live.sum()))
    x, y = what.dtype.to_storage(x), what.dtype.to_storage(rows_of(what, 1, 7.0))
    mask, given, found = map(executor.upload, (words, x, y))
    bind_where_live(executor, what)(0, mask.address, given.address, found.address)
    expected = expected_of(what, live, x, y)
    executor.synchronize()
    executor.download(found, y)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize(("shape", "block"), SIZES)
def test_live_blocks_are_scaled(
    executor: Executor, shape: tuple[int, int], block: tuple[int, int], dtype: DType
) -> None:
    what = WhereLive(shape, block, dtype, scale=SCALE)
    check(executor, what)
    check(executor, replace(what, dead=Dead.KEPT, batch=3))
    check(executor, replace(what, strides=(shape[1] + 8, shape[1] + 16)))
    check(executor, replace(what, strides=(shape[1] + 1, shape[1])))


def test_vectors_where_nothing_cuts_them() -> None:
    for what, width in (
        (WhereLive((16, 64), (16, 32), DType.FLOAT16), 8),
        (WhereLive((16, 64), (16, 32), DType.FLOAT32), 4),
        (WhereLive((16, 64), (16, 4), DType.FLOAT32), 4),
        (WhereLive((16, 64), (16, 4), DType.FLOAT16), 4),
        (WhereLive((16, 66), (16, 32), DType.FLOAT16), 2),
        (WhereLive((16, 2500), (16, 32), DType.BFLOAT16), 4),
        (WhereLive((16, 66), (16, 32), DType.FLOAT32), 2),
        (WhereLive((16, 64), (16, 32), DType.FLOAT16, strides=(72, 65)), 1),
        (WhereLive((16, 64), (16, 32), DType.FLOAT16, aligned=8), 4),
        (WhereLive((16, 64), (16, 32), DType.FLOAT16, aligned=2), 1),
    ):
        assert what.width == width, what


@pytest.mark.parametrize(("shape", "block"), SIZES)
def test_in_place(executor: Executor, shape: tuple[int, int], block: tuple[int, int]) -> None:
    """Without X the live blocks of Y stay bit for bit; with Y as X they are scaled where they lie."""
    words, live = drawn(WhereLive(shape, block, DType.FLOAT32))
    before = np.where(live[0], np.random.default_rng(0).standard_normal(shape), np.nan).astype(np.float32)
    for by_address, factor in ((False, np.float32(1)), (True, np.float32(SCALE))):
        mask, held, after = executor.upload(words), executor.upload(before), np.empty_like(before)
        bound = bind_where_live(executor, WhereLive(shape, block, DType.FLOAT32, scale=SCALE))
        bound(0, mask.address, held.address if by_address else 0, held.address)
        executor.synchronize()
        executor.download(held, after)
        np.testing.assert_array_equal(after, np.where(live[0], before * factor, 0))


def test_what_is_loaded(executor: Executor) -> None:
    """A capture may bind what was loaded before, and nothing else."""
    what = WhereLive((64, 64), (16, 16), DType.FLOAT16)
    fresh = backends.open_executor(executor.device)
    with fresh.entered():
        assert not what.is_loaded(fresh)
        bind_where_live(fresh, what)
        assert what.is_loaded(fresh)
        assert not replace(what, dtype=DType.BFLOAT16).is_loaded(fresh)
    fresh.close()


def test_too_many_matrices(executor: Executor) -> None:
    with pytest.raises(MatrixError, match="at most 65535 matrices"):
        bind_where_live(executor, WhereLive((1, 1), (16, 16), DType.FLOAT32, batch=65536))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("shape", "block"), [((37, 72), (16, 32)), ((37, 71), (16, 32)), ((9, 30), (3, 5)), ((70, 64), (64, 64))]
)
def test_nothing_out_of_bounds(
    emulator_toolchain: EmulatorToolchain, shape: tuple[int, int], block: tuple[int, int]
) -> None:
    what = WhereLive(shape, block, DType.FLOAT32, scale=2.0, batch=2)
    compiled = emulator_toolchain.compile_sanitized("plain", what.entry, plain_source("where_live.cu"))
    words, live = drawn(what)
    x = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    across, _, batch = what.launch.grid
    launch = replace(what.launch, grid=(across, 2, batch))  # fewer blocks than groups of rows
    *_, found = run_sanitized(compiled.binary, launch, [*what.sizes, words, x, np.full_like(x, np.nan)])
    np.testing.assert_array_equal(found, np.where(live, 2 * x, 0))
