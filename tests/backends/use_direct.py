"""Uses a CUDA device through the driver alone; `test_direct` runs it with a made-up driver, and on a GPU."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from sparsegen.backends.cuda import direct, runtime
from sparsegen.backends.cuda.driver import libcuda
from sparsegen.backends.executor import Buffer, CompiledKernel
from sparsegen.errors import DeviceMemoryError, LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.operators import DType


def copy_beside(executor: runtime.CudaExecutor, buffer: Buffer) -> None:
    """Pinned memory, copies on a stream of their own, and what orders them and kernels."""
    assert executor.free_bytes() > 0
    memory, stream = executor.pinned(4000), executor.copy_stream()
    numbers = memory.array[:4000].view(np.int32)
    numbers[:] = np.arange(1000)
    stream.wait_for_kernels()
    stream.send(numbers, buffer)
    sent = stream.moment()
    stream.hold_kernels(sent)
    sent.wait()
    assert sent.has_passed()
    numbers[:] = 0
    stream.fetch(buffer, numbers)
    stream.moment().wait()
    assert (numbers == np.arange(1000)).all()
    for wrong in (np.zeros(1001, np.int32), np.zeros((20, 20), np.int32)[:, :5]):
        try:
            stream.send(wrong, buffer)
            raise AssertionError("an array that does not fit")
        except LaunchError as error:
            assert "does not fit 4000 bytes" in str(error), error
    try:
        executor.pinned(1 << 50)
        raise AssertionError("no host has so much memory")
    except DeviceMemoryError as error:
        assert "cannot pin" in str(error), error


def open_launches(executor: runtime.CudaExecutor, kernel: Any, buffer: Buffer, found: Any) -> None:
    """Launches whose address comes with each call: as a number, in a tensor map, of a kernel that starts early."""
    other = executor.upload(np.zeros(1000, np.int32))
    mapped = TensorMap("array", DType.FLOAT32, (64, 8), (256,), (32, 8))
    for argument, early in ((None, False), (None, True), (mapped, False)):
        bound = executor.bind(kernel, Launch((1, 1, 1), (32, 1, 1), starts_early=early), [1000, 5, argument])
        for place in (buffer, other, buffer):
            before = found.copy()
            executor.download(place, before)
            bound(0, place.address)
            executor.download(place, found)
            assert (found == before + 5).all()
    empty = executor.bind(kernel, Launch((0, 1, 1), (32, 1, 1)), [1000, 5, None])
    empty(0, buffer.address)
    executor.download(buffer, before)
    assert (before == found).all()


def free_elsewhere(executor: runtime.CudaExecutor) -> None:
    """Memory that a thread drops which is in no context; the made-up driver counts what is allocated."""
    blocks = libcuda().fake_blocks
    before, held = blocks(), [executor.allocate(1000)]
    assert blocks() == before + 1
    thread = Thread(target=held.clear)
    thread.start()
    thread.join()
    assert blocks() == before


def take_and_free_beside_a_capture(executor: runtime.CudaExecutor) -> None:
    """Memory that comes and goes while a graph is captured ends no capture; without leave it would."""
    libcuda().fake_begin_capture()
    executor.allocate(1000)
    executor.pinned(1000)
    assert not libcuda().fake_end_capture()
    libcuda().fake_begin_capture()
    with executor.entered():
        direct.mem_alloc(1000)
    assert libcuda().fake_end_capture()


def main(folder: Path, *, launches: bool) -> None:
    assert runtime.driver() is direct and "pycuda" not in sys.modules
    device = runtime.devices()[0]
    print(device)
    executor = runtime.CudaExecutor(device)
    numbers = np.arange(1000, dtype=np.int32)
    buffer = executor.upload(numbers)
    found = np.empty_like(numbers)
    executor.download(buffer, found)
    assert (found == numbers).all()
    executor.overwrite(buffer, numbers[::-1])
    executor.download(buffer, found)
    assert (found == numbers[::-1]).all()
    executor.fill(buffer, 0xFF)
    executor.synchronize()
    executor.download(buffer, found)
    assert (found == -1).all()
    start, end = executor.event(), executor.event()
    start.record()
    executor.overwrite_l2()
    end.record()
    executor.synchronize()
    assert end.has_passed() and 0 <= end.us_since(start) < 1e6
    try:
        executor.allocate(1 << 50)
        raise AssertionError("no device has so much memory")
    except LaunchError as error:
        assert "cannot allocate" in str(error), error
    if launches:
        image = folder / "binary"
        image.write_bytes(b"binary")
        digest = hashlib.sha256(b"binary").hexdigest()
        kernel = executor.load(CompiledKernel("add", image, image, digest))
        executor.launch(kernel, Launch((1, 1, 1), (32, 1, 1)), [1000, 5, buffer])
        executor.download(buffer, found)
        assert (found == 4).all()
        open_launches(executor, kernel, buffer, found)
        free_elsewhere(executor)
        take_and_free_beside_a_capture(executor)
    copy_beside(executor, buffer)
    with executor.entered():
        executor.synchronize()
    executor.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), launches=sys.argv[2:] == ["launches"])
