"""Tensor maps: boxes of arrays in shared memory and back, on the emulator and on a GPU, with the same kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sparsegen import backends
from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.backends.emulator.sanitized import Mapped, run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.backends.executor import Executor, LoadedKernel, Toolchain
from sparsegen.errors import KernelFault, LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.operators import DType
from sparsegen.render import environment
from sparsegen.settings import Settings
from sparsegen.system.numpy_types import Array

CLUSTER = 2
TEMPLATE = """
{% set p = {"dtype": "float16", "layout": "row"} %}
{% include "lib/emulation.cuh.j2" %}
{% set blocks = 2 %}
{% include "lib/cluster/cluster.cuh.j2" %}
{% include "lib/barrier/barrier.cuh.j2" %}
{% include "lib/barrier/bulk_barrier.cuh.j2" %}
{% set ranks, to_cluster, stores = [2, 3], true, true %}
{% include "lib/copy/tensor_map.cuh.j2" %}

// What: 0 a box of two dimensions to `seen` as it lies in shared memory, 1 of three, 2 one for the whole cluster,
// 3 a box of two dimensions to the map of the result, 4 the same without waiting until it was read.
extern "C" __global__ void __cluster_dims__(2, 1, 1)
boxes(const __grid_constant__ TensorMap given, const __grid_constant__ TensorMap result, int what, int x, int y,
      int bytes, const unsigned char* array, unsigned char* out, unsigned char* seen) {
  SPARSEGEN_DYNAMIC_SHARED(unsigned char, box);
  Barrier* const barrier = reinterpret_cast<Barrier*>(box + bytes);
  const bool leads = threadIdx.x == 0;
  if (leads) {
    prefetch_map(given);
    barrier_init(barrier, 1);
    barrier_init_fence();
  }
  cluster_sync();
  if (leads) {
    barrier_arrive_expecting(barrier, bytes);
    if (what == 2) {
      if (cluster_rank() == 0) copy_box_to_cluster(box, given, box_at(x, y), barrier, 3);
    } else if (what == 1) {
      copy_box(box, given, box_at(x, y, 1), barrier);
    } else {
      copy_box(box, given, box_at(x, y), barrier);
    }
  }
  barrier_wait(barrier, 0);
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) seen[blockIdx.x * bytes + i] = box[i];
  __syncthreads();
  if (what >= 3 && leads && blockIdx.x == 0) {
    store_box(result, box_at(x, y), box);
    store_box_commit();
    if (what == 3) store_box_wait<0>();
  }
  cluster_sync();
}
"""
ROWS, COLUMNS = 21, 40
BOX = (16, 8)  # columns and rows
START = (32, 17)  # leaves the array on two sides


def array() -> Array:
    return np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS).astype(np.float16)


def two_dimensions(name: str, swizzle: Swizzle, box: tuple[int, int] = BOX) -> TensorMap:
    return TensorMap(name, DType.FLOAT16, (COLUMNS, ROWS), (2 * COLUMNS,), box, swizzle)


def box_of(whole: Array, start: tuple[int, int], box: tuple[int, int] = BOX) -> Array:
    padded = np.pad(whole, ((8, 300), (8, 300)))  # with the zeros around
    x, y = start[0] + 8, start[1] + 8
    return padded[y : y + box[1], x : x + box[0]]


def swizzled(box: Array, swizzle: Swizzle) -> Array:
    """Lays out a box as TMA swizzles it: 16-byte chunks exchanged by the bits of the address above 128."""
    chunks = box.reshape(-1).view(np.uint8).reshape(-1, 16)
    place = np.arange(len(chunks))
    return chunks[place ^ (place >> 3 & max(0, swizzle // 16 - 1))]


@pytest.fixture(scope="module", params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def loaded(
    request: pytest.FixtureRequest, emulator_settings: Settings
) -> Iterator[tuple[Executor, LoadedKernel]]:
    device = backends.find_device(request.param)
    toolchain: Toolchain
    toolchain = (
        EmulatorToolchain(emulator_settings) if device.backend == "emulator" else backends.toolchain(device)
    )
    executor = backends.open_executor(device)
    source = environment().from_string(TEMPLATE).render()
    yield executor, executor.load(toolchain.compile("boxes", "boxes", source))
    executor.close()


def run(
    loaded: tuple[Executor, LoadedKernel],
    what: int,
    given: TensorMap,
    start: tuple[int, int] = START,
    whole: Array | None = None,
) -> tuple[Array, Array]:
    """Returns the contents of the two blocks' shared memory, and the result."""
    executor, kernel = loaded
    nbytes = int(np.prod(given.box)) * 2
    seen, out = np.zeros((CLUSTER, nbytes), np.uint8), np.full((ROWS, COLUMNS), -1, np.float16)
    buffers = [executor.upload(a) for a in (array() if whole is None else whole, out, seen)]
    launch = Launch((CLUSTER, 1, 1), (64, 1, 1), nbytes + 64)
    result = two_dimensions("out", given.swizzle) if given.rank == 2 else given
    bound = executor.bind(kernel, launch, [given, result, what, *start, nbytes, *buffers])
    for _ in range(2):  # the second launch finds its maps encoded
        bound(0, buffers[0].address, buffers[1].address)
    executor.synchronize()
    executor.download(buffers[1], out)
    executor.download(buffers[2], seen)
    return seen, out


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.BYTES_32, Swizzle.BYTES_64, Swizzle.BYTES_128])
def test_a_box_is_swizzled_and_zero_outside(loaded: tuple[Executor, LoadedKernel], swizzle: Swizzle) -> None:
    box = (swizzle // 2 or BOX[0], BOX[1])
    seen, _ = run(loaded, 0, two_dimensions("given", swizzle, box))
    expected = swizzled(np.ascontiguousarray(box_of(array(), START, box)), swizzle)
    for block in seen:
        np.testing.assert_array_equal(block.reshape(-1, 16), expected)


@pytest.mark.parametrize("start", [(-8, -3), (0, 0), (24, 20), (64, 2)])
def test_coordinates_may_be_anywhere(loaded: tuple[Executor, LoadedKernel], start: tuple[int, int]) -> None:
    seen, _ = run(loaded, 0, two_dimensions("given", Swizzle.NONE), start)
    np.testing.assert_array_equal(seen[0].view(np.float16).reshape(8, 16), box_of(array(), start))


def test_three_dimensions_with_steps(loaded: tuple[Executor, LoadedKernel]) -> None:
    whole = np.arange(6 * 5 * 24).astype(np.float16).reshape(6, 5, 24)
    given = TensorMap("given", DType.FLOAT16, (24, 5, 6), (48, 240), (8, 2, 2), steps=(1, 2, 3))
    seen, _ = run(loaded, 1, given, (8, 2), whole)
    np.testing.assert_array_equal(seen[0].view(np.float16).reshape(2, 2, 8), whole[1:6:3, 2:5:2, 8:16])


def test_one_copy_fills_the_whole_cluster(loaded: tuple[Executor, LoadedKernel]) -> None:
    seen, _ = run(loaded, 2, two_dimensions("given", Swizzle.NONE), (8, 4))
    for block in seen:
        np.testing.assert_array_equal(block.view(np.float16).reshape(8, 16), array()[4:12, 8:24])


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.BYTES_32])
def test_a_stored_box_is_cut_where_the_array_ends(
    loaded: tuple[Executor, LoadedKernel], swizzle: Swizzle
) -> None:
    _, out = run(loaded, 3, two_dimensions("given", swizzle))
    expected = np.full((ROWS, COLUMNS), -1, np.float16)
    expected[17:, 32:] = array()[17:, 32:]
    np.testing.assert_array_equal(out, expected)


def test_the_emulator_sees_what_is_forbidden(emulator_settings: Settings) -> None:
    executor = EmulatorExecutor(threads=1)
    source = environment().from_string(TEMPLATE).render()
    toolchain = EmulatorToolchain(emulator_settings)
    loaded = executor, executor.load(toolchain.compile("boxes", "boxes", source))
    with pytest.raises(KernelFault, match="may still read shared memory"):
        run(loaded, 4, two_dimensions("given", Swizzle.NONE))
    with pytest.raises(KernelFault, match="a multiple of 16"):
        _misaligned(executor, loaded[1])


def _misaligned(executor: Executor, kernel: LoadedKernel) -> None:
    buffers = [executor.upload(np.zeros(4096, np.uint8)) for _ in range(3)]
    given = two_dimensions("given", Swizzle.NONE)
    bound = executor.bind(
        kernel, Launch((CLUSTER, 1, 1), (64, 1, 1), 320), [given, given, 0, 0, 0, 256, *buffers]
    )
    bound(0, buffers[0].address + 4, buffers[1].address)


@pytest.mark.gpu
def test_the_driver_refuses_what_it_cannot_encode() -> None:
    device = backends.find_device("cuda")
    executor, source = backends.open_executor(device), environment().from_string(TEMPLATE).render()
    kernel = executor.load(backends.toolchain(device).compile("boxes", "boxes", source))
    with pytest.raises(LaunchError, match="cannot encode a tensor map"):
        _misaligned(executor, kernel)


@pytest.mark.sanitizer
def test_maps_run_under_the_sanitizers(emulator_toolchain: EmulatorToolchain) -> None:
    source = environment().from_string(TEMPLATE).render()
    compiled = emulator_toolchain.compile_sanitized("boxes", "boxes", source)
    given, out, seen = array(), np.full((ROWS, COLUMNS), -1, np.float16), np.zeros((2, 256), np.uint8)
    maps = [
        Mapped(two_dimensions("given", Swizzle.NONE), given),
        Mapped(two_dimensions("out", Swizzle.NONE), out),
    ]
    launch = Launch((CLUSTER, 1, 1), (64, 1, 1), 320)
    _, stored, _ = run_sanitized(compiled.binary, launch, [*maps, 3, *START, 256, given, out, seen])
    np.testing.assert_array_equal(stored[17:, 32:], given[17:, 32:])


def test_the_copy_engine_has_no_such_maps() -> None:
    with pytest.raises(ValueError, match="strides are multiples of 16 bytes"):
        TensorMap("x", DType.FLOAT16, (7, 7), (14,), (8, 1))
    with pytest.raises(ValueError, match="at most those of the swizzle"):
        TensorMap("x", DType.FLOAT16, (256, 2), (512,), (128, 1), Swizzle.BYTES_128)
    with pytest.raises(ValueError, match="over 1 to 256 elements a side"):
        TensorMap("x", DType.FLOAT16, (512, 2), (1024,), (512, 1))
    with pytest.raises(ValueError, match="sizes are 1"):
        TensorMap("x", DType.FLOAT16, (0, 2), (16,), (8, 1))
    with pytest.raises(ValueError, match="one to 5 dimensions"):
        TensorMap("x", DType.FLOAT16, (8, 2), (), (8, 1))
    with pytest.raises(ValueError, match="steps are 1 to 8"):
        TensorMap("x", DType.FLOAT16, (8,), (), (8,), steps=(9,))
    with pytest.raises(ValueError, match="the innermost dimension has no steps"):
        TensorMap("x", DType.FLOAT16, (64,), (), (8,), steps=(2,))
    with pytest.raises(ValueError, match="over 1 to 256 elements a side"):
        TensorMap("x", DType.FLOAT16, (8, 512), (16,), (8, 200), steps=(1, 2))
    with pytest.raises(ValueError, match="L2 fetches 128 or 256 bytes"):
        TensorMap("x", DType.FLOAT16, (64,), (), (8,), l2_bytes=64)
