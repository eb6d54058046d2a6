"""The emulator's executor: buffers, launches and their errors, timing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsegen.backends import emulator
from sparsegen.backends.cache import file_digest
from sparsegen.backends.emulator.executor import ALIGNMENT, EmulatorExecutor, EmulatorKernel
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import CacheEntryError, KernelFault, LaunchError
from sparsegen.kernels.launch import Launch

SOURCE = """#include "sparsegen_emulator.h"
// out[i] = a * i + b over a grid of blocks
extern "C" __global__ void line(int a, int b, int n, int* __restrict__ out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * i + b;
}

"""
BLOCK = (64, 1, 1)


@pytest.fixture(scope="module")
def executor() -> EmulatorExecutor:
    return EmulatorExecutor(threads=2)


@pytest.fixture(scope="module")
def kernel(executor: EmulatorExecutor, emulator_toolchain: EmulatorToolchain) -> EmulatorKernel:
    return executor.load(emulator_toolchain.compile("line", "line", SOURCE))


def test_a_grid_is_run_whole(executor: EmulatorExecutor, kernel: EmulatorKernel) -> None:
    n = 1000
    out = executor.allocate(4 * n)
    executor.fill(out, 0xFF)
    executor.launch(kernel, Launch((16, 1, 1), BLOCK), [-3, 2**31 - 1 - 3000, n, out])
    executor.synchronize()
    result = np.empty(n, dtype=np.int32)
    executor.download(out, result)
    np.testing.assert_array_equal(result, -3 * np.arange(n) + 2**31 - 1 - 3000)


def test_buffers_are_exact_and_aligned(executor: EmulatorExecutor) -> None:
    for array in (np.arange(7, dtype=np.int16), np.zeros((0, 3), dtype=np.float32), np.eye(3)[:, 1:]):
        buffer = executor.upload(array)
        assert buffer.nbytes == array.nbytes
        assert buffer.address % ALIGNMENT == 0
        back = np.empty(array.shape, dtype=array.dtype)
        executor.download(buffer, back)
        np.testing.assert_array_equal(back, array)


def test_a_download_must_fit(executor: EmulatorExecutor) -> None:
    buffer = executor.allocate(16)
    with pytest.raises(LaunchError, match="16 bytes does not fit an array of 12"):
        executor.download(buffer, np.empty(3, dtype=np.float32))


def test_bound_launches_fill_their_open_places_in_order(
    executor: EmulatorExecutor, kernel: EmulatorKernel
) -> None:
    out = executor.allocate(4 * 8)
    bound = executor.bind(kernel, Launch((1, 1, 1), BLOCK), [2, 1, 8, None])
    bound(0, out.address)
    np.testing.assert_array_equal(out.bytes.view(np.int32), 2 * np.arange(8) + 1)
    executor.overwrite(out, np.zeros(8, dtype=np.int32))
    assert not out.bytes.any()


def test_an_empty_grid_does_nothing(executor: EmulatorExecutor, kernel: EmulatorKernel) -> None:
    out = executor.upload(np.full(4, 5, dtype=np.int32))
    executor.launch(kernel, Launch((0, 1, 1), BLOCK), [1, 1, 4, out])
    assert (out.bytes.view(np.int32) == 5).all()


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        (Launch((1, 1, 1), (1025, 1, 1)), "a block of 1025 threads"),
        (Launch((1, 1, 1), (0, 1, 1)), "a block of 0 threads"),
        (Launch((1, 65536, 1), (1, 1, 1)), "the grid is over"),
        (Launch((1, 1, 1), BLOCK, 300_000), "300000 bytes of dynamic shared memory"),
    ],
)
def test_impossible_launches_are_refused(
    executor: EmulatorExecutor, kernel: EmulatorKernel, launch: Launch, reason: str
) -> None:
    with pytest.raises(LaunchError, match=reason) as caught:
        executor.launch(kernel, launch, [1, 1, 0, executor.allocate(4)])
    assert not isinstance(caught.value, KernelFault)


def test_integers_must_fit_32_bits(executor: EmulatorExecutor, kernel: EmulatorKernel) -> None:
    with pytest.raises(LaunchError, match="2147483648 does not fit 32 bits"):
        executor.launch(kernel, Launch((1, 1, 1), BLOCK), [2**31, 0, 0, executor.allocate(4)])


def test_only_its_own_kernels_can_be_launched(executor: EmulatorExecutor) -> None:
    with pytest.raises(LaunchError, match="not loaded by the emulator"):
        executor.launch(object(), Launch((1, 1, 1), BLOCK), [])


def test_a_binary_that_cannot_be_loaded(executor: EmulatorExecutor, tmp_path: Path) -> None:
    broken = tmp_path / "kernel.so"
    broken.write_bytes(b"not an object")
    with pytest.raises(LaunchError, match="cannot be loaded"):
        executor.load(CompiledKernel("line", tmp_path / "kernel.cu", broken, file_digest(broken)))


def test_a_binary_that_was_changed_is_not_loaded(executor: EmulatorExecutor, tmp_path: Path) -> None:
    """A truncated one would end the process by SIGBUS."""
    binary = tmp_path / "kernel.so"
    binary.write_bytes(b"as compiled")
    compiled = CompiledKernel("line", tmp_path / "kernel.cu", binary, file_digest(binary))
    binary.write_bytes(b"as c")
    with pytest.raises(CacheEntryError, match="not what was compiled"):
        executor.load(compiled)
    binary.unlink()
    with pytest.raises(CacheEntryError, match="No such file"):
        executor.load(compiled)


def test_events_are_moments_of_the_host(executor: EmulatorExecutor) -> None:
    start, stop = executor.event(), executor.event()
    start.record()
    stop.record()
    assert stop.us_since(start) >= 0
    assert not start.has_passed(), "nobody waits for the host"
    assert executor.clocks() == (None, None)


def test_the_device_is_its_own(executor: EmulatorExecutor) -> None:
    assert executor.device == emulator.device()
    assert (executor.device.key, executor.device.backend) == ("emulator", "emulator")


@pytest.mark.sanitizer
def test_a_child_process_gives_the_same(emulator_toolchain: EmulatorToolchain) -> None:
    compiled = emulator_toolchain.compile_sanitized("line", "line", SOURCE)
    given = np.full((10, 10), -1, dtype=np.int32)
    (result,) = run_sanitized(compiled.binary, Launch((2, 1, 1), BLOCK), [2, 1, 100, given])
    np.testing.assert_array_equal(result, 2 * np.arange(100).reshape(10, 10) + 1)
    assert (given == -1).all(), "the arrays passed in are left alone"
    (untouched,) = run_sanitized(compiled.binary, Launch((0, 1, 1), BLOCK), [2, 1, 100, given])
    np.testing.assert_array_equal(untouched, given)
    with pytest.raises(KernelFault, match="a block of 2048 threads"):
        run_sanitized(compiled.binary, Launch((1, 1, 1), (2048, 1, 1)), [2, 1, 100, given])
