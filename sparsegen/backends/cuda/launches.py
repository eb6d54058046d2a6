"""Kernels and their launches through the driver's C interface.

PyCUDA cannot wrap a stream of PyTorch or CuPy; the raw call takes its handle, is cheaper, and is captured by CUDA
graphs.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sparsegen.backends.cuda.driver import check, error_text, libcuda
from sparsegen.backends.cuda.tensor_maps import EncodedMap
from sparsegen.backends.executor import Buffer, CompiledKernel
from sparsegen.errors import LaunchError
from sparsegen.kernels.launch import PORTABLE_CLUSTER, Launch
from sparsegen.kernels.tensor_map import TensorMap

STATIC_SHARED_LIMIT = 48 * 1024
MAX_DYNAMIC_SHARED_SIZE_BYTES, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 8, 14  # CUfunction_attribute
COOPERATIVE, CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 2, 4, 6  # CUlaunchAttributeID


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

    def allow_cluster(self, blocks: int) -> None:
        """Take leave for clusters that are larger than portable ones."""
        if blocks > PORTABLE_CLUSTER:
            status = libcuda().cuFuncSetAttribute(self.handle, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
            check(status, f"cannot allow clusters of {blocks} blocks")


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

    __slots__ = ("_configuration", "_start", "_storage", "_write")

    def __init__(
        self, kernel: CudaKernel, launch: Launch, arguments: Sequence[Buffer | int | TensorMap | None]
    ) -> None:
        """Fix a launch of a kernel; None and tensor maps stand for what each call brings an address for."""
        kernel.allow_shared_memory(launch.shared_memory_bytes)
        kernel.allow_cluster(launch.persistent_cluster)
        opened = (ctypes.c_uint64 * max(1, sum(argument is None for argument in arguments)))()
        free = iter(range(ctypes.addressof(opened), ctypes.addressof(opened) + ctypes.sizeof(opened), 8))
        cells = [_cell(argument, next(free) if argument is None else 0) for argument in arguments]
        places = (c.address if isinstance(c, EncodedMap) else ctypes.addressof(c) for c in cells)
        self._configuration = _configuration(resident(kernel, launch), *_attributes(launch))
        # Without a signature, ctypes takes objects of its own as they are, which costs least.
        where = ctypes.c_void_p(ctypes.addressof(self._configuration))
        parameters = (ctypes.c_void_p * len(cells))(*places)
        call = partial(libcuda()["cuLaunchKernelEx"], where, kernel.handle, parameters, None)
        self._start: Callable[[], int] = _nothing if launch.is_empty else call
        slots = [c for c, a in zip(cells, arguments, strict=True) if a is None or isinstance(a, TensorMap)]
        if any(isinstance(slot, EncodedMap) for slot in slots):
            self._write: Callable[..., None] = partial(_assign, slots)
        else:
            self._write = partial(struct.Struct(f"{len(slots)}Q").pack_into, opened, 0)
        self._storage = (kernel, opened, cells, arguments)

    def launch(self, stream: int, *addresses: int) -> None:
        """Launch on a stream (its handle), with the addresses for the open slots in order.

        Raises:
            LaunchError: the driver refused.
        """
        self._write(*addresses)
        self._configuration.stream = stream
        status = self._start()
        if status:
            raise LaunchError(f"cuLaunchKernelEx failed: {error_text(status)}")


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
    configuration = _configuration(launch, attribute)
    status = libcuda().cuOccupancyMaxActiveClusters(
        ctypes.byref(found), kernel.handle, ctypes.byref(configuration)
    )
    check(status, f"cannot tell how many clusters of {cluster} blocks are resident")
    if found.value < 1:
        raise LaunchError(f"no cluster of {cluster} blocks fits on this device; smaller clusters may")
    x, y, z = launch.grid
    return replace(launch, grid=(min(x, cluster * found.value), y, z))


def _nothing() -> int:
    """A launch without blocks."""
    return 0


def _cell(argument: Buffer | int | TensorMap | None, place: int) -> Any:
    """Memory that holds a parameter; of an open one at a place that is given."""
    if isinstance(argument, TensorMap):
        return EncodedMap(argument)
    if argument is None:
        return ctypes.c_uint64.from_address(place)
    return ctypes.c_int32(argument) if isinstance(argument, int) else ctypes.c_uint64(argument.address)


def _assign(slots: Sequence[Any], *addresses: int) -> None:
    for slot, address in zip(slots, addresses, strict=True):
        slot.value = address


def _attributes(launch: Launch) -> Iterator[_Attribute]:
    """Yields the launch attributes: early start while the previous kernel still ends, and cooperative launch."""
    for is_wanted, number in (
        (launch.starts_early, PROGRAMMATIC_STREAM_SERIALIZATION),
        (launch.together, COOPERATIVE),
    ):
        if is_wanted:
            attribute = _Attribute(id=number)
            attribute.value[0] = 1
            yield attribute


def _configuration(launch: Launch, *attributes: _Attribute) -> _Configuration:
    """Grid, block, shared memory and attributes."""
    return _Configuration(
        (ctypes.c_uint * 3)(*launch.grid),
        (ctypes.c_uint * 3)(*launch.block),
        launch.shared_memory_bytes,
        None,
        (_Attribute * len(attributes))(*attributes) if attributes else None,
        len(attributes),
    )
