"""CUDA devices, buffers and timing: the only user of PyCUDA, or of `direct` in its place. `launches` has launches."""

from __future__ import annotations

import atexit
import ctypes
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen.backends.cuda import early_init
from sparsegen.backends.cuda.copies import CudaCopyStream, CudaPinnedMemory, free_bytes
from sparsegen.backends.cuda.driver import beside_captures, check, device_uuid, libcuda
from sparsegen.backends.cuda.launches import BoundLaunch, CudaKernel
from sparsegen.backends.executor import Buffer, CompiledKernel, Event, LoadedKernel
from sparsegen.errors import DeviceMemoryError, DeviceUnavailableError, LaunchError
from sparsegen.kernels.base import Device, cuda_key
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.settings import Settings
from sparsegen.system.extras import install_command
from sparsegen.system.numpy_types import Array

logger = logging.getLogger(__name__)

PYCUDA, DIRECT = "pycuda", "direct"  # SPARSEGEN_DRIVER
MODULE_VERSION = Path("/sys/module/nvidia/version")
FLUSHES = 4  # sizes of the L2 to write until nothing of before is left in it


@cache
def driver() -> Any:
    """PyCUDA's driver module, initialised; with ``SPARSEGEN_DRIVER=direct`` the module `direct` in its place.

    Raises:
        DeviceUnavailableError: PyCUDA or the NVIDIA driver is missing, or the setting is another word.
    """
    setting = Settings.from_environment().driver
    if setting not in (PYCUDA, DIRECT):
        raise DeviceUnavailableError(f"SPARSEGEN_DRIVER={setting} is neither {PYCUDA} nor {DIRECT}")
    early_init.identity_at_start()
    if setting == DIRECT:
        from sparsegen.backends.cuda import direct

        direct.init()
        return direct
    try:
        import pycuda.driver as cuda
    except ImportError as error:
        raise DeviceUnavailableError(
            f"PyCUDA cannot be used ({error}): {install_command('cuda')} on a machine with an NVIDIA driver, "
            "set SPARSEGEN_DRIVER=direct to do without, or use --device emulator"
        ) from None
    try:
        cuda.init()
    except cuda.Error as error:
        raise DeviceUnavailableError(f"no CUDA device can be used: {error}") from None
    return cuda


def devices() -> list[Device]:
    """The GPUs that PyCUDA sees."""
    cuda = driver()
    return [describe(cuda.Device(i), i) for i in range(cuda.Device.count())]


def describe(device: Any, index: int) -> Device:
    attribute = driver().device_attribute
    name = device.name()
    major, minor = device.compute_capability()
    return Device(
        key=cuda_key(name, (major, minor)),
        name=name,
        backend="cuda",
        compute_capability=(major, minor),
        multiprocessors=device.get_attribute(attribute.MULTIPROCESSOR_COUNT),
        shared_memory_per_block=device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        shared_memory_per_multiprocessor=device.get_attribute(attribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        l2_bytes=device.get_attribute(attribute.L2_CACHE_SIZE),
        index=index,
        uuid=device_uuid(index),
        clock_mhz=device.get_attribute(attribute.CLOCK_RATE) / 1000 or None,
        memory_bytes_per_us=_memory_bytes_per_us(device),
    )


def _memory_bytes_per_us(device: Any) -> float | None:
    """The memory's peak; None where the driver does not tell its clock, as on devices that share the host's."""
    attribute = driver().device_attribute
    transfers_per_us = 2 * device.get_attribute(attribute.MEMORY_CLOCK_RATE) / 1000  # kHz; on both edges
    bus_bytes = device.get_attribute(attribute.GLOBAL_MEMORY_BUS_WIDTH) / 8
    return transfers_per_us * bus_bytes or None


class _OfContext:
    """Object of the driver's that is released in the context in which it was made, whichever thread drops it.

    Threads of others may be in no context. PyCUDA would keep the memory there and say nothing, as the driver itself
    refuses to free it.
    """

    __slots__ = ("_context", "made")

    def __init__(self, context: Any, make: Callable[[], Any]) -> None:
        self._context = context
        with beside_captures():
            self.made = make()

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if ends():  # names of modules are gone, and the driver frees what a process leaves
            return
        try:
            self._context.push()
        except Exception:  # the driver has ended before, and all that it made
            return
        try:
            with beside_captures():
                self.made = None
        finally:
            self._context.pop()


class _Stay:
    """A context on the stack of the thread that made this, which takes it off when it ends: PyCUDA aborts the process
    if a thread ends in a context.
    """

    __slots__ = ("__weakref__", "_context", "_thread")

    def __init__(self, context: Any) -> None:
        context.push()
        self._context, self._thread = context, threading.get_ident()

    def leave(self) -> None:
        """Take the context off; once, and in its own thread alone."""
        if self._context is not None and threading.get_ident() == self._thread:
            context, self._context = self._context, None
            context.pop()

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ends():
            self.leave()


_here = threading.local()  # what a thread holds until it ends


class CudaBuffer:
    """Device memory of at least one byte, freed with the object."""

    def __init__(self, context: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        self._allocation = _OfContext(context, lambda: driver().mem_alloc(max(16, nbytes)))
        self.address = int(self._allocation.made)


class CudaEvent:
    """An event in the default stream."""

    __slots__ = ("_event",)

    def __init__(self, context: Any) -> None:
        self._event = _OfContext(context, driver().Event)

    def record(self) -> None:
        try:
            self._event.made.record()
        except driver().Error as error:
            raise LaunchError(str(error)) from error

    def has_passed(self) -> bool:
        try:
            return bool(self._event.made.query())
        except driver().Error as error:
            raise LaunchError(str(error)) from error

    def us_since(self, start: Event) -> float:
        assert isinstance(start, CudaEvent)
        try:
            return float(self._event.made.time_since(start._event.made)) * 1e3
        except driver().Error as error:
            raise LaunchError(str(error)) from error


class CudaExecutor:
    """Runs kernels in the device's primary context, which PyTorch and CuPy share.

    The thread that opens it stays in the context until it ends or the executor is closed; others enter it.
    """

    def __init__(self, device: Device) -> None:
        cuda = driver()
        self.device = device
        self._handle = cuda.Device(device.index)
        self._context = self._handle.retain_primary_context()
        stay = _Stay(self._context)
        self._stay = weakref.ref(stay)
        _here.__dict__.setdefault("stays", set()).add(stay)
        self._raw_context = ctypes.c_void_p()
        check(libcuda().cuCtxGetCurrent(ctypes.byref(self._raw_context)), "cannot read the current context")
        self._closed = False
        self._flush: Any = None
        atexit.register(self.close)  # the thread that opened it may go on until the process ends

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the calling thread use this executor inside the block, whichever thread opened it."""
        self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    def activate(self) -> None:
        """Make the primary context current in the calling thread for raw launches, if it has none."""
        current = ctypes.c_void_p()
        check(libcuda().cuCtxGetCurrent(ctypes.byref(current)), "cannot read the current context")
        if not current:
            check(libcuda().cuCtxSetCurrent(self._raw_context), "cannot make the context current")

    def load(self, compiled: CompiledKernel) -> CudaKernel:
        return CudaKernel(compiled)

    def upload(self, array: Array) -> CudaBuffer:
        contiguous = np.ascontiguousarray(array)
        buffer = self.allocate(contiguous.nbytes)
        if contiguous.nbytes:
            self._checked(driver().memcpy_htod, buffer.address, contiguous)
        return buffer

    def overwrite(self, buffer: Buffer, array: Array) -> None:
        """Copy an array over a buffer of the same size."""
        if array.nbytes:
            self._checked(driver().memcpy_htod, buffer.address, np.ascontiguousarray(array))

    def allocate(self, nbytes: int) -> CudaBuffer:
        try:
            return CudaBuffer(self._context, nbytes)
        except driver().MemoryError as error:
            raise DeviceMemoryError(
                f"cannot allocate {nbytes} bytes on {self.device.name}: {error}"
            ) from error

    def fill(self, buffer: Buffer, byte: int) -> None:
        if buffer.nbytes:
            self._checked(driver().memset_d8, buffer.address, byte, buffer.nbytes)

    def download(self, buffer: Buffer, array: Array) -> None:
        if array.nbytes:
            self._checked(driver().memcpy_dtoh, array, buffer.address)

    def bind(
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int | TensorMap | None]
    ) -> Callable[..., None]:
        """Fix a launch; None marks the addresses that each call brings, as a tensor map does."""
        if not isinstance(kernel, CudaKernel):
            raise LaunchError("this kernel was not loaded by the CUDA executor")
        return self._checked(BoundLaunch, kernel, launch, arguments).launch  # type: ignore[no-any-return]

    def launch(
        self, kernel: LoadedKernel, launch: Launch, arguments: Sequence[Buffer | int], stream: int = 0
    ) -> None:
        self.bind(kernel, launch, arguments)(stream)

    def synchronize(self) -> None:
        self._checked(driver().Context.synchronize)

    def pinned(self, nbytes: int) -> CudaPinnedMemory:
        """See `Executor.pinned`; the memory of one GPU's executor is pinned for all of them."""
        with self.entered():
            return CudaPinnedMemory(self._raw_context, nbytes)

    def copy_stream(self) -> CudaCopyStream:
        """See `Executor.copy_stream`; for threads that have entered the executor."""
        with self.entered():
            return CudaCopyStream(self._raw_context)

    def free_bytes(self) -> int:
        """See `Executor.free_bytes`."""
        with self.entered():
            return free_bytes()

    def event(self) -> CudaEvent:
        return CudaEvent(self._context)

    def overwrite_l2(self) -> None:
        """See `Executor.overwrite_l2`; four times its size."""
        nbytes = FLUSHES * self.device.l2_bytes
        if self._flush is None:
            self._flush = self.allocate(nbytes)
        self._checked(driver().memset_d8_async, self._flush.address, 0, nbytes, None)

    def clocks(self) -> tuple[int | None, int | None]:
        """See `Executor.clocks`; None without NVML."""
        nvml = _nvml_handle(self._handle.pci_bus_id())
        if nvml is None:
            return None, None
        module, handle = nvml
        clock = module.nvmlDeviceGetClockInfo(handle, module.NVML_CLOCK_SM)
        return int(clock), int(module.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    @staticmethod
    def _checked(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except driver().Error as error:
            raise LaunchError(str(error)) from error

    def close(self) -> None:
        """Give the context back; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._flush = None
            if (stay := self._stay()) is not None:
                stay.leave()
                _here.__dict__.get("stays", set()).discard(stay)


@cache
def _nvml_handle(pci_bus_id: str) -> tuple[Any, Any] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())
    except Exception as error:
        logger.info("clocks are not recorded, NVML cannot be used: %s", error)
        return None


@cache
def driver_version() -> str:
    """NVIDIA's driver, like ``580.159.03``, as NVML tells it or else Linux; empty where neither does."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception as error:
        logger.info("NVML cannot be asked for the driver's version: %s", error)
    try:
        return MODULE_VERSION.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
