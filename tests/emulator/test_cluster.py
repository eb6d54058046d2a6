"""Clusters: blocks that wait for one another and read each other's shared memory, and what goes wrong with it."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import KernelFault, LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.system.numpy_types import Array

THREADS = 48  # a warp and a half
SOURCE = """
#define SPARSEGEN_CLUSTER_BLOCKS 4
#include "sparsegen_emulator.h"
using sparsegen::emulator::cluster_rank;
using sparsegen::emulator::cluster_sync;
using sparsegen::emulator::map_shared;

__device__ float read(const float* shared, unsigned rank) {
  return *static_cast<const float*>(map_shared(shared, rank, sizeof(float)));
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) cluster(int what, float* out) {
  SPARSEGEN_DYNAMIC_SHARED(float, mine);
  const unsigned t = threadIdx.x, place = blockIdx.x * 48 + t;
  mine[t] = 1000.0f * blockIdx.x + t;
  if (what == 1 && t == 7) return;  // those that have ended are not waited for
  if (what != 2) cluster_sync();
  if (what == 3 && cluster_rank() == 1) return;
  if (what == 4) {
    if (cluster_rank() == 0) cluster_sync();
    return;
  }
  float sum = 0.0f;
  for (unsigned rank = 0; rank < 4; ++rank) sum += read(mine + (what == 5 ? 48 : t), rank);
  out[place] = sum;
  if (what != 3) cluster_sync();
}
"""


def run(what: int, blocks: int = 8) -> Array:
    executor = EmulatorExecutor(threads=2)
    kernel = executor.load(EmulatorToolchain().compile("cluster", "cluster", SOURCE))
    out = np.full(blocks * THREADS, -1, dtype=np.float32)
    buffer = executor.upload(out)
    executor.launch(kernel, Launch((blocks, 1, 1), (THREADS, 1, 1), 4 * THREADS), [what, buffer])
    executor.download(buffer, out)
    return out


def test_blocks_read_what_the_others_wrote() -> None:
    out = run(0).reshape(2, 4, THREADS)
    first = 4000.0 * np.arange(2)[:, None, None]
    expected = 4 * (first + np.arange(THREADS)) + 1000 * (0 + 1 + 2 + 3)
    np.testing.assert_array_equal(out, np.broadcast_to(expected, out.shape))


def test_threads_that_have_ended_are_not_waited_for() -> None:
    out = run(1).reshape(8, THREADS)
    assert (out[:, 7] == -1).all() and (np.delete(out, 7, axis=1) != -1).all()


def test_without_waiting_others_memory_is_nan() -> None:
    assert np.isnan(run(2)).any()


def test_blocks_that_have_ended_are_not_waited_for() -> None:
    assert (run(4) == -1).all()


@pytest.mark.parametrize(
    "what, message",
    [
        (3, r"line \d+: block \d of the cluster has ended, and its shared memory with it"),
        (
            5,
            r"line \d+: 4 bytes at .* of block 0 of a cluster of 4: that is not in its dynamic shared memory",
        ),
    ],
)
def test_faults(what: int, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        run(what)


COPIES = """
#define SPARSEGEN_CLUSTER_BLOCKS 2
#include "sparsegen_emulator.h"
using namespace sparsegen::emulator;

// Each block sends its half of 64 floats to both, waits for both halves, and gives both back before it ends.
extern "C" __global__ void __cluster_dims__(2, 1, 1) copies(int what, const float* in, float* out) {
  SPARSEGEN_DYNAMIC_SHARED(float, memory);
  void* const filled = memory + 64;
  void* const emptied = memory + 66;
  const unsigned t = threadIdx.x, half = cluster_rank() * 32;
  if (t == 0) {
    barrier_init(filled, 1);
    if (what != 2) barrier_init(emptied, 2);
  }
  cluster_sync();
  if (t == 0) {
    barrier_arrive(filled, what == 3 ? 384 : 256);
    copy_bulk_to_cluster(memory + half + (what == 1 ? 1 : 0), in + half, 128, filled, 2);
  }
  if (what != 4) barrier_wait(filled, 0);
  out[blockIdx.x * 64 + t] = memory[t];
  if (t < 2 && what != 5) barrier_arrive_at(emptied, t);
  if (t == 0) barrier_wait(emptied, 0);
  cluster_sync();
}
"""


def copied(what: int) -> Array:
    executor = EmulatorExecutor(threads=1)
    kernel = executor.load(EmulatorToolchain().compile("copies", "copies", COPIES))
    given, out = np.arange(64, dtype=np.float32), np.full(128, -1, dtype=np.float32)
    buffers = executor.upload(given), executor.upload(out)
    executor.launch(kernel, Launch((2, 1, 1), (64, 1, 1), 4 * 72), [what, *buffers])
    executor.download(buffers[1], out)
    return out


def test_copies_go_to_all_blocks_and_arrivals_to_the_one_named() -> None:
    np.testing.assert_array_equal(copied(0).reshape(2, 64), np.tile(np.arange(64), (2, 1)))


def test_what_has_not_been_waited_for_is_nan() -> None:
    assert np.isnan(copied(4)).any()


@pytest.mark.parametrize(
    "what, message",
    [
        (1, "a bulk copy of 128 bytes"),
        (2, r"the barrier at .* was not initialised"),
        (3, "no thread can go on"),  # fewer bytes than the phase waits for
        (5, "no thread can go on"),
    ],
)
def test_faults_of_copies(what: int, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        copied(what)


def test_a_grid_that_clusters_do_not_divide_is_refused() -> None:
    with pytest.raises(LaunchError, match="clusters of 4 blocks for 6 along x"):
        run(0, blocks=6)


MESSAGES = """
#define SPARSEGEN_CLUSTER_BLOCKS 2
#include "sparsegen_emulator.h"
using namespace sparsegen::emulator;

// The first block tells the second a word, whose two warps read it one after the other's barrier.
extern "C" __global__ void __cluster_dims__(2, 1, 1) messages(int what, unsigned* out) {
  SPARSEGEN_DYNAMIC_SHARED(unsigned, memory);
  void* const arrived = memory + 2;
  const unsigned t = threadIdx.x;
  if (t == 0) barrier_init(arrived, 1);
  cluster_sync();
  if (cluster_rank() == 0) {
    const unsigned four[4] = {77, 1, 2, 3};
    if (t == 0 && what < 5) store_word_at(memory, 77, arrived, 1);
    if (t == 0 && what >= 5) store_vector_at(memory + (what == 5 ? 4 : 6), four, arrived, 1);
  } else {
    if (t == 0 && what != 1) barrier_arrive(arrived, what == 5 ? 16 : 4);
    if (what != 2) barrier_wait(arrived, 0);
    if (t == 0) memory[1] = memory[what == 5 ? 4 : 0] + 1;
    named_barrier(what == 3 ? 16 : 1, what == 4 && t >= 32 ? 32 : 64);
    out[t] = memory[1];
    named_barrier(1, 64);
    if (t == 63) memory[1] = 5;
    named_barrier(1, 64);
    out[64 + t] = memory[1];
  }
  cluster_sync();
}
"""


def told(what: int) -> Array:
    executor = EmulatorExecutor(threads=1)
    kernel = executor.load(EmulatorToolchain().compile("messages", "messages", MESSAGES))
    out = np.zeros(128, dtype=np.uint32)
    buffer = executor.upload(out)
    executor.launch(kernel, Launch((2, 1, 1), (64, 1, 1), 4 * 8), [what, buffer])
    executor.download(buffer, out)
    return out


def test_words_arrive_at_other_blocks_and_named_barriers_hold_all_of_their_threads() -> None:
    np.testing.assert_array_equal(told(0), np.repeat([78, 5], 64))
    np.testing.assert_array_equal(told(5), np.repeat([78, 5], 64))


@pytest.mark.parametrize(
    "what, message",
    [
        (1, "no thread can go on"),  # nobody has said that a word is to come
        (3, "barrier 16 for 64 threads; there are 1 to 15, for whole warps"),
        (6, "which is no multiple of 16"),
        (4, r"barrier 1 for \d+ threads was one for \d+"),
    ],
)
def test_faults_of_words_and_named_barriers(what: int, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        told(what)


def test_a_word_that_was_not_waited_for_has_not_arrived() -> None:
    assert told(2)[0] != 78
