"""Kernels and their launches through the driver's C interface.

PyCUDA cannot wrap a stream of PyTorch or CuPy; the raw call takes its handle, is cheaper, and is captured by CUDA
graphs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sparsegen.backends.cuda.driver import check, error_text, libcuda
from sparsegen.backends.cuda.tensor_maps import EncodedMap
from sparsegen.backends.executor import Buffer, CompiledKernel
from sparsegen.errors import LaunchError
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap

STATIC_SHARED_LIMIT = 48 * 1024
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6  # CUlaunchAttributeID


class CudaKernel:
    """A function of a loaded module.

    PyCUDA gives no access to a function's handle, which a raw launch needs, so the module is loaded through the
    driver's C interface too. It stays loaded as long as the process: a launch may be under way at any time.
    """

    def __init__(self, compiled: CompiledKernel) -> None:
        library = libcuda()
        self._module = ctypes.c_void_p()
        self.handle = ctypes.c_void_p()
        image = compiled.read()
        check(library.cuModuleLoadData(ctypes.byref(self._module), image), f"cannot load {compiled.binary}")
        try:
            check(
                library.cuModuleGetFunction(ctypes.byref(self.handle), self._module, compiled.entry.encode()),
                f"{compiled.binary} has no kernel {compiled.entry!r}",
            )
        except LaunchError:
            library.cuModuleUnload(self._module)
            raise
        # Static and dynamic memory share what needs no leave; where the compiler told no size, leave is always taken.
        static = compiled.static_shared_bytes
        self._dynamic_limit = 0 if static is None else max(0, STATIC_SHARED_LIMIT - static)

    def allow_shared_memory(self, nbytes: int) -> None:
        """Raise the limit of dynamic shared memory; 48 KiB, less what is static, need no leave."""
        if nbytes > self._dynamic_limit:
            status = libcuda().cuFuncSetAttribute(self.handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)
            check(status, f"cannot allow {nbytes} bytes of shared memory per block")
            self._dynamic_limit = nbytes


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a number, and a union of 64 bytes aligned to 8."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint64 * 8))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class BoundLaunch:
    """One launch with everything fixed but the stream and the addresses that come with each call.

    Not thread-safe by itself: the parameter block is reused, and the driver copies it during the launch. Calls
    into ctypes release the interpreter lock, so concurrent callers need a bound launch each or a lock.
    """

    __slots__ = ("_arguments", "_cells", "_launch", "_slots", "_storage")

    def __init__(
        self, kernel: CudaKernel, launch: Launch, arguments: Sequence[Buffer | int | TensorMap | None]
    ) -> None:
        """Fix a launch of a kernel; None and tensor maps stand for what each call brings an address for."""
        kernel.allow_shared_memory(launch.shared_memory_bytes)
        cells: list[Any] = []
        slots: list[Any] = []
        for argument in arguments:
            if isinstance(argument, TensorMap):
                cell: Any = EncodedMap(argument)
                slots.append(cell)
            elif argument is None:
                cell = ctypes.c_uint64()
                slots.append(cell)
            elif isinstance(argument, int):
                cell = ctypes.c_int32(argument)
            else:
                cell = ctypes.c_uint64(argument.address)
            cells.append(cell)
        self._cells = cells
        self._slots = tuple(slots)
        places = (c.address if isinstance(c, EncodedMap) else ctypes.addressof(c) for c in cells)
        self._arguments = (ctypes.c_void_p * len(cells))(*places)
        self._storage = (
            kernel,
            [a for a in arguments if a is not None and not isinstance(a, int | TensorMap)],
        )
        self._launch = _launching(kernel, resident(kernel, launch))

    def __call__(self, stream: int, *addresses: int) -> None:
        """Launch on a stream (its handle), with the addresses for the open slots in order.

        Raises:
            LaunchError: the driver refused.
        """
        for slot, address in zip(self._slots, addresses, strict=True):
            slot.value = address
        status = self._launch(stream, self._arguments)
        if status:
            raise LaunchError(f"cuLaunchKernel failed: {error_text(status)}")


def resident(kernel: CudaKernel, launch: Launch) -> Launch:
    """The launch with no more clusters than are resident at once, if it wants that.

    Raises:
        LaunchError: none is, or the driver refused.
    """
    cluster = launch.persistent_cluster
    if not cluster or launch.is_empty:
        return launch
    found = ctypes.c_int()
    attribute = _Attribute(id=CLUSTER_DIMENSION)
    attribute.value[0], attribute.value[1] = cluster | 1 << 32, 1  # x, y and z
    configuration = _Configuration(
        (ctypes.c_uint * 3)(*launch.grid),
        (ctypes.c_uint * 3)(*launch.block),
        launch.shared_memory_bytes,
        None,
        ctypes.pointer(attribute),
        1,
    )
    status = libcuda().cuOccupancyMaxActiveClusters(
        ctypes.byref(found), kernel.handle, ctypes.byref(configuration)
    )
    check(status, f"cannot tell how many clusters of {cluster} blocks are resident")
    if found.value < 1:
        raise LaunchError(f"no cluster of {cluster} blocks fits on this device; smaller clusters may")
    x, y, z = launch.grid
    return replace(launch, grid=(min(x, cluster * found.value), y, z))


def _launching(kernel: CudaKernel, launch: Launch) -> Callable[[int, Any], int]:
    """A call that launches on a stream with a block of parameters, and returns a CUresult."""
    if launch.is_empty:
        return lambda stream, parameters: 0
    if launch.starts_early:
        return _launching_early(kernel, launch)
    sizes = tuple(ctypes.c_uint(size) for size in (*launch.grid, *launch.block, launch.shared_memory_bytes))
    handle, launch_kernel = kernel.handle, libcuda().cuLaunchKernel
    return lambda stream, parameters: launch_kernel(handle, *sizes, stream, parameters, None)


def _launching_early(kernel: CudaKernel, launch: Launch) -> Callable[[int, Any], int]:
    """The same of a kernel that may begin while the one before it still ends."""
    attribute = _Attribute(id=PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    configuration = _Configuration(
        (ctypes.c_uint * 3)(*launch.grid),
        (ctypes.c_uint * 3)(*launch.block),
        launch.shared_memory_bytes,
        None,
        ctypes.pointer(attribute),
        1,
    )
    handle, launch_kernel, where = kernel.handle, libcuda().cuLaunchKernelEx, ctypes.addressof(configuration)

    def call(stream: int, parameters: Any) -> int:
        configuration.stream = stream
        return launch_kernel(where, handle, parameters, None)  # type: ignore[no-any-return]

    return call
