"""Uses a CUDA device through the driver alone; `test_direct` runs it with a made-up driver, and on a GPU."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from sparsegen.backends.cuda import direct, runtime
from sparsegen.backends.executor import Buffer, CompiledKernel
from sparsegen.errors import DeviceMemoryError, LaunchError
from sparsegen.kernels.launch import Launch


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
    copy_beside(executor, buffer)
    with executor.entered():
        executor.synchronize()
    executor.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), launches=sys.argv[2:] == ["launches"])
