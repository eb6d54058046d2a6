"""A planted bug of each kind is caught, by a report or by NaN in the result."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import CompiledKernel
from sparsegen.errors import KernelFault
from sparsegen.kernels.launch import Launch
from sparsegen.system.numpy_types import Array

SOURCE = Path(__file__).with_name("bugs.cu").read_text()
BUGS = re.findall(r"^  (k\w+),", SOURCE, flags=re.MULTILINE)
THREADS = 64
# Two blocks, because every other block runs its threads backward.
LAUNCH = Launch((2, 1, 1), (THREADS, 1, 1), 4 * THREADS)

REPORTED = {
    "kReadOutOfBounds": "heap-buffer-overflow.*\nREAD of size 4",
    "kWriteOutOfBounds": "heap-buffer-overflow.*\nWRITE of size 4",
    "kStaticSharedOverflow": "heap-buffer-overflow.*\nWRITE of size 4",
    "kDynamicSharedOverflow": "heap-buffer-overflow.*\nWRITE of size 4",
    "kDivergentBarrier": r"block \(\d, 0, 0\).*divergent barrier.*__syncthreads on line \d+.* on line \d+",
    "kBarrierAgainstShuffle": r"divergent .* 16 threads wait at __syncthreads on line",
    "kShuffleFromExited": r"lane 3 of warp 0 is in the mask 0xffffffff and has exited",
    "kShuffleDiverged": r"divergent .* 32 threads wait at a warp operation on line \d+, 32 threads wait at",
    "kShuffleFromOutsideMask": r"shuffle from lane 20, which takes no part \(mask 0x0000ffff\)",
    "kProductWithoutALane": r"31 threads wait at a warp operation on line \d+, 33 have exited; lane 8 of warp 1",
    "kWarpgroupProductOverflow": "heap-buffer-overflow.*\nREAD of size 16",
    "kMatricesOverflow": "heap-buffer-overflow.*\nREAD of size 16",
    "kMisalignedMatrixRow": "misaligned address .* for type 'const struct Chunk'",
    "kMisalignedVector": "misaligned address .* for type 'const struct float4'",
    "kMisalignedCopy": "global address .* is not aligned to its 8 bytes",
    "kSignedOverflow": "signed integer overflow",
    "kBarrierWrongParity": r"no thread can go on: 64 threads wait at a phase of a barrier on line \d+",
    "kBarrierBytesMissing": r"no thread can go on: 64 threads wait at a phase of a barrier on line \d+",
    "kBarrierUninitialised": r"line \d+: the barrier at .* was not initialised",
    "kMisalignedBulkCopy": r"line \d+: a bulk copy of 256 bytes .* must be multiples of 16",
}
SEEN_AS_NAN = {
    "kUninitialisedShared": 0,
    "kMissingBarrier": 0,
    "kMissingBarrierBackward": 1,  # the block that runs backward
    "kMissingWait": 0,
    "kOverwrittenTooSoon": 0,
    "kBarrierNotAwaited": 0,
}
FAULTS_OF_THE_EMULATOR = [
    "kDivergentBarrier",
    "kBarrierAgainstShuffle",
    "kShuffleFromExited",
    "kShuffleDiverged",
    "kShuffleFromOutsideMask",
    "kProductWithoutALane",
    "kMisalignedCopy",
    "kBarrierWrongParity",
    "kBarrierBytesMissing",
    "kBarrierUninitialised",
    "kMisalignedBulkCopy",
]


@pytest.fixture(scope="module")
def sanitized(emulator_toolchain: EmulatorToolchain) -> CompiledKernel:
    return emulator_toolchain.compile_sanitized("bugs", "bugs", SOURCE)


def buffers() -> list[Array]:
    return [np.arange(THREADS, dtype=np.float32), np.full(THREADS, np.nan, dtype=np.float32)]


def run(kernel: CompiledKernel, bug: str, launch: Launch = LAUNCH, *, timeout: float = 30.0) -> Array:
    return run_sanitized(kernel.binary, launch, [BUGS.index(bug), *buffers()], timeout=timeout)[1]


def test_every_bug_has_a_test() -> None:
    assert set(BUGS) == {*REPORTED, *SEEN_AS_NAN, "kNone", "kEndlessLoop"}


@pytest.mark.sanitizer
def test_a_right_kernel_passes(sanitized: CompiledKernel) -> None:
    np.testing.assert_array_equal(run(sanitized, "kNone"), buffers()[0])


@pytest.mark.sanitizer
@pytest.mark.parametrize("bug", REPORTED)
def test_reported(sanitized: CompiledKernel, bug: str) -> None:
    with pytest.raises(KernelFault) as caught:
        run(sanitized, bug)
    assert re.search(REPORTED[bug], str(caught.value))
    assert re.search(r"kernel\.cu:\d+|line \d+", str(caught.value)), "the report says where"


@pytest.mark.sanitizer
@pytest.mark.parametrize(("bug", "block"), SEEN_AS_NAN.items())
def test_seen_in_the_result(sanitized: CompiledKernel, bug: str, block: int) -> None:
    result = run(sanitized, bug, Launch((block + 1, 1, 1), LAUNCH.block, LAUNCH.shared_memory_bytes))
    assert np.isnan(result).any()


@pytest.mark.sanitizer
def test_an_endless_loop_meets_the_time_limit(sanitized: CompiledKernel) -> None:
    with pytest.raises(KernelFault, match=r"not ended after 0\.5 s"):
        run(sanitized, "kEndlessLoop", timeout=0.5)


@pytest.mark.parametrize("bug", FAULTS_OF_THE_EMULATOR)
def test_faults_need_no_sanitizer(emulator_toolchain: EmulatorToolchain, bug: str) -> None:
    executor = EmulatorExecutor()
    kernel = executor.load(emulator_toolchain.compile("bugs", "bugs", SOURCE))
    arguments = [BUGS.index(bug), *map(executor.upload, buffers())]
    with pytest.raises(KernelFault, match=REPORTED[bug]):
        executor.launch(kernel, LAUNCH, arguments)
    # A fault leaves nothing behind: the next launch is right.
    executor.launch(kernel, LAUNCH, [BUGS.index("kNone"), *arguments[1:]])
    result = np.empty(THREADS, dtype=np.float32)
    executor.download(arguments[2], result)
    np.testing.assert_array_equal(result, buffers()[0])
