"""Every primitive gives what CUDA gives, with and without sanitizers, and on the portable fibers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels.launch import Launch
from sparsegen.operators import DType
from sparsegen.settings import Settings
from sparsegen.system.numpy_types import Array

SOURCE = Path(__file__).with_name("primitives.cu").read_text()
Run = Callable[[int, Launch, Array, Array], Array]


@pytest.fixture(
    scope="module", params=["plain", "sanitized", pytest.param("portable fibers", marks=pytest.mark.long)]
)
def run(request: pytest.FixtureRequest, emulator_settings: Settings) -> Run:
    """Runs one group of primitives: (number, launch, in, out before) -> out."""
    portable = ["-DSPARSEGEN_EMULATOR_UCONTEXT"] if request.param == "portable fibers" else []
    toolchain = EmulatorToolchain(emulator_settings, options=portable)
    if request.param == "sanitized":
        compiled = toolchain.compile_sanitized("primitives", "primitives", SOURCE)
        return lambda test, launch, before, out: run_sanitized(compiled.binary, launch, [test, before, out])[
            1
        ]
    executor = EmulatorExecutor(threads=2)
    kernel = executor.load(toolchain.compile("primitives", "primitives", SOURCE))

    def run_in_process(test: int, launch: Launch, before: Array, out: Array) -> Array:
        buffers = [executor.upload(before), executor.upload(out)]
        executor.launch(kernel, launch, [test, *buffers])
        result = np.empty_like(out)
        executor.download(buffers[1], result)
        return result

    return run_in_process


def one_block(threads: int, shared_memory_bytes: int = 0) -> Launch:
    return Launch((1, 1, 1), (threads, 1, 1), shared_memory_bytes)


def integers(*shape: int) -> Array:
    return np.full(shape, -1, dtype=np.int32)


NOTHING = integers(1)


def test_coordinates(run: Run) -> None:
    inputs = np.arange(24, dtype=np.int32) * 1000
    result = run(0, Launch((2, 3, 4), (2, 3, 4)), inputs, integers(24, 24))
    np.testing.assert_array_equal(result, inputs[None, :] + np.arange(24)[:, None])


def test_shuffles(run: Run) -> None:
    result = run(1, one_block(64), NOTHING, integers(6, 64))
    t = np.arange(64)
    warp, lane = t // 32 * 32, t % 32
    expected = [
        warp + 5,
        warp + lane // 8 * 8 + (lane + 1) % 8,
        t - np.where(lane % 16 >= 3, 3, 0),
        t + np.where(lane % 16 < 13, 3, 0),
        t ^ 6,
        np.where((lane ^ 12) < lane // 8 * 8 + 8, t ^ 12, t),
    ]
    np.testing.assert_array_equal(result, expected)


def test_a_shuffle_moves_16_bytes(run: Run) -> None:
    result = run(2, one_block(32), NOTHING, integers(32, 4))
    np.testing.assert_array_equal(result, (np.arange(32) ^ 1)[:, None] + np.arange(4))


def test_votes(run: Run) -> None:
    result = run(3, one_block(64), NOTHING, integers(2, 64)).view(np.uint32)
    for warp in range(2):
        values = np.arange(32) + 32 * warp
        lanes = slice(32 * warp, 32 * warp + 32)
        assert (result[0, lanes] == sum(1 << i for i in range(32) if values[i] % 3 == 0)).all()
        assert (result[1, lanes] == (7 in values) * 2 + (values < 32).all()).all()


def test_halves_of_a_warp_meet_apart(run: Run) -> None:
    result = run(4, one_block(32), NOTHING, integers(32))
    np.testing.assert_array_equal(result[:16], sum(range(16)))
    np.testing.assert_array_equal(result[16:], sum(range(16, 32)) * 16 * 16)


def test_shared_memory_and_barriers(run: Run) -> None:
    inputs = np.arange(128, dtype=np.int32)
    result = run(5, Launch((7, 1, 1), (128, 1, 1), 4 * 128), inputs, integers(7))
    np.testing.assert_array_equal(result, inputs.sum() + 128 * np.arange(7))


def test_threads_that_have_exited_do_not_count(run: Run) -> None:
    np.testing.assert_array_equal(run(6, one_block(64), NOTHING, integers(40)), 39)


def test_atomics(run: Run) -> None:
    result = run(7, Launch((8, 1, 1), (128, 1, 1)), NOTHING, np.zeros(8, dtype=np.int32))
    assert result[:4].tolist() == [8 * sum(range(128)), 8 * 128, 127, -127]
    assert result[4:5].view(np.float32)[0] == 8 * 128 * 0.5
    assert result[5:].tolist() == [1, 42, 31]


def test_half_and_bfloat16(run: Run) -> None:
    result = run(8, one_block(128), NOTHING, integers(8, 128)).view(np.float32)
    exact = np.arange(128, dtype=np.float32) * np.float32(0.1)

    def rounded(dtype: DType, x: Array) -> Array:
        return dtype.from_storage(dtype.to_storage(x)).astype(np.float64)

    h, b = (rounded(dtype, exact) for dtype in (DType.FLOAT16, DType.BFLOAT16))
    in_half = [h * h + h, h * 3 + 0.25, h * -2 + 0.25, h + h]
    in_bfloat16 = [b * b + b, b * 3 + 0.25, b * -2 + 0.25, b * b]
    np.testing.assert_array_equal(result[[0, 2, 3, 6]], [rounded(DType.FLOAT16, x) for x in in_half])
    np.testing.assert_array_equal(result[[1, 4, 5, 7]], [rounded(DType.BFLOAT16, x) for x in in_bfloat16])


def test_async_copies(run: Run) -> None:
    inputs = np.arange(128, dtype=np.int32) + 5
    result = run(9, one_block(32, 2 * 16 * 32), inputs, integers(3, 32))
    assert (result[0] == 1).all(), "a group lands when it is waited for, not before"
    np.testing.assert_array_equal(result[1], np.roll(inputs.reshape(32, 4)[:, 1], -1))
    assert (result[2] == 0).all(), "what is not valid is zero, and its source is not read"


def test_numbers(run: Run) -> None:
    result = run(10, one_block(128), NOTHING, integers(8, 128))
    t = np.arange(128)
    bits = [bin(x).count("1") for x in t]
    leading = [32 - int(x).bit_length() for x in t]
    first_set = [(int(x) & -int(x)).bit_length() for x in t]
    one_and_a_half = int(np.float32(1.5).view(np.int32))
    expected = [
        one_and_a_half + t, bits, leading, first_set, np.minimum(t, 5), np.maximum(t, 3), 2 * t + 1, t
    ]  # fmt: skip
    np.testing.assert_array_equal(result, expected)


def test_barriers_pass_tiles_from_warp_to_warp(run: Run) -> None:
    inputs = np.arange(7 * 64, dtype=np.int32) * 3
    result = run(11, one_block(64), inputs, integers(7, 64))
    tiles = inputs.reshape(7, 64)
    np.testing.assert_array_equal(result[:, :32], tiles[:, :32])
    np.testing.assert_array_equal(result[:, 32:], np.roll(tiles[:, 32:], -1, axis=1))


def test_bytes(run: Run) -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)
    result = run(12, one_block(64), words, integers(5, 64)).view(np.uint32)
    own, other = words.view(np.uint8).reshape(-1, 4), np.roll(words, -1).view(np.uint8).reshape(-1, 4)
    both = np.concatenate([own, other], axis=1)

    def joined(*parts: Array) -> Array:
        return np.stack(parts, axis=1).astype(np.uint8).view(np.uint32)[:, 0]

    sign = np.where(both & 0x80, 0xFF, 0)
    np.testing.assert_array_equal(result[0], joined(*(both[:, i] for i in (2, 3, 4, 5))))
    np.testing.assert_array_equal(result[1], joined(*(both[:, i] for i in (6, 0, 7, 0))))
    np.testing.assert_array_equal(result[2], joined(*(sign[:, i] for i in (0, 0, 4, 4))))
    np.testing.assert_array_equal(result[3], joined(both[:, 1], both[:, 3], sign[:, 7], sign[:, 7]))
    np.testing.assert_array_equal(result[4], (own.astype(np.int64) * other).sum(axis=1) + 7)


def test_reductions(run: Run) -> None:
    numbers = np.random.default_rng(0).integers(-1000, 1000, 64).astype(np.int32)
    result = run(13, one_block(64), numbers, integers(2, 64)).reshape(2, 2, 32)
    warps = numbers.reshape(2, 32)
    assert (result[0] == warps.max(axis=1)[:, None]).all()
    assert (result[1] == warps.min(axis=1)[:, None]).all()
