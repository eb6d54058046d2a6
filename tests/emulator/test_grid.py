"""Grids whose blocks all wait for one another, in rounds through device memory."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import KernelFault, LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.system.numpy_types import Array

SOURCE = """
#define SPARSEGEN_GRID_TOGETHER
#include "sparsegen_emulator.h"
using sparsegen::emulator::cluster_sync;
using sparsegen::emulator::grid_arrive;
using sparsegen::emulator::grid_wait;

// Each round every block adds up what all blocks had in the round before.
extern "C" __global__ void rounds(int what, float* values) {
  for (int round = 0; round < 3; ++round) {
    float sum = 0.0f;
    for (unsigned block = 0; block < gridDim.x; ++block) sum += values[block];
    if (what == 1 && blockIdx.x == 0) return;
    cluster_sync();
    if (threadIdx.x == 0) values[blockIdx.x] = sum;
    cluster_sync();
  }
}
"""


SPLIT = (
    SOURCE
    + """
// Each round block 0 writes, and the others read what it wrote; with `what` 1 it never comes.
extern "C" __global__ void split(int what, float* values) {
  unsigned* const counter = reinterpret_cast<unsigned*>(values + gridDim.x);
  for (unsigned round = 1; round <= 3; ++round) {
    if (threadIdx.x != 0) continue;
    if (blockIdx.x == 0) {
      values[0] = round;
      if (what == 0) grid_arrive(counter);
      grid_wait(counter, round * gridDim.x);
    } else {
      grid_wait(counter, (round - 1) * gridDim.x + 1);
      values[blockIdx.x] += values[0];
      grid_arrive(counter);
    }
  }
}
"""
)


def run(what: int, grid: tuple[int, int, int] = (5, 1, 1), threads: int = 40) -> Array:
    executor = EmulatorExecutor(threads=2)
    kernel = executor.load(EmulatorToolchain().compile("grid", "rounds", SOURCE))
    values = np.arange(grid[0], dtype=np.float32)
    buffer = executor.upload(values)
    executor.launch(kernel, Launch(grid, (threads, 1, 1), together=True), [what, buffer])
    executor.download(buffer, values)
    return values


def test_all_blocks_meet_between_rounds() -> None:
    np.testing.assert_array_equal(run(0), np.full(5, 10 * 5 * 5))


def test_a_block_that_has_ended_is_not_waited_for() -> None:
    np.testing.assert_array_equal(run(1)[1:], np.full(4, 10 * 4 * 4))


@pytest.mark.parametrize(
    ("grid", "threads", "words"),
    [
        ((2, 2, 1), 32, "lie along x, and in no clusters"),
        ((17, 1, 1), 1024, "have 17408 threads; at most 16384 are possible"),
    ],
)
def test_what_cannot_be_side_by_side_is_refused(grid: tuple[int, int, int], threads: int, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        run(0, grid, threads)


def test_blocks_arrive_and_wait_apart() -> None:
    executor = EmulatorExecutor(threads=2)
    kernel = executor.load(EmulatorToolchain().compile("grid", "split", SPLIT))
    values = np.zeros(6, dtype=np.float32)
    launch = Launch((5, 1, 1), (40, 1, 1), together=True)
    buffer = executor.upload(values)
    executor.launch(kernel, launch, [0, buffer])
    executor.download(buffer, values)
    assert values[:5].tolist() == [3, 6, 6, 6, 6] and values.view(np.uint32)[5] == 15
    with pytest.raises(KernelFault, match="no thread can go on"):
        executor.launch(kernel, launch, [1, executor.upload(np.zeros(6, dtype=np.float32))])
