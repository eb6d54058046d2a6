"""Calls of an operator with arrays of each library: zero-copy for PyTorch and CuPy, copied for NumPy.

A caller is a closure over everything that is known when the operator is prepared, so that a call costs a few
comparisons beside the launch. None of these modules is imported here before an array of theirs arrives.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from sparsegen.backends.executor import Buffer, Executor
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.operators import DType, Float8, TensorSpec
from sparsegen.operators.base.dtype import ElementType, WordType
from sparsegen.operators.base.overflow import require_values
from sparsegen.system.numpy_types import Array

Call = Callable[[tuple[Any, ...], Any, Any], Any]  # (operands in call order, out, stream) -> out


class Launchable(Protocol):
    """One launch, or several that are started together: a `BoundVariant`, an `AttentionOperator`."""

    @property
    def operands(self) -> tuple[TensorSpec, ...]:
        """Operands, in call order."""

    @property
    def result(self) -> TensorSpec:
        """The result's specification."""

    @property
    def executor(self) -> Executor:
        """The executor that it runs on."""

    @property
    def launching(self) -> AbstractContextManager[Any]:
        """Held while a launch is queued: what a launch reads is replaced between two of them."""

    def bound(self) -> Callable[..., None]:
        """The calling thread's own: ``bound(stream, *addresses of the operands, address of the result)``."""


@dataclass(frozen=True, slots=True)
class Target:
    """The launch behind a caller.

    Attributes:
        fixed: operands given beforehand, by name: used if a call has None in their place.
    """

    variant: Launchable
    device: Device
    fixed: Mapping[str, Buffer]


def caller(kind: type, target: Target) -> Call:
    """Returns the caller for arrays of this type.

    Raises:
        OperandError: arrays of this type, or on this device, cannot be taken.
    """
    if issubclass(kind, np.ndarray):
        return numpy_caller(target)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    is_torch = torch is not None and issubclass(kind, torch.Tensor)
    is_cupy = cupy is not None and issubclass(kind, cupy.ndarray)
    if not (is_torch or is_cupy):
        library = "torch" if target.device.backend == "cuda" else "numpy"
        advice = (
            f"; {library}.from_dlpack(array) is one over the same memory"
            if hasattr(kind, "__dlpack__")
            else ""
        )
        raise OperandError(
            f"expected a NumPy, PyTorch or CuPy array, got {kind.__module__}.{kind.__qualname__}{advice}"
        )
    if target.device.backend != "cuda":
        raise OperandError(
            f"this operator was prepared for {target.device.name}, which takes NumPy arrays; "
            "prepare it with device='cuda' for PyTorch and CuPy"
        )
    return torch_caller(torch, target) if is_torch else cupy_caller(cupy, target)


def alignment_of(spec: TensorSpec) -> int:
    """Bytes that divide an array's address: vector loads are as wide as its rows allow, at most 16."""
    if spec.alignment or len(spec.shape) == 1:
        return spec.alignment or spec.dtype.itemsize
    return math.gcd(16, spec.shape[-1] * spec.dtype.itemsize)


def stream_handle(stream: object) -> int:
    """The raw handle of a stream: an integer, or an object of PyTorch, CuPy or the CUDA stream protocol.

    Raises:
        OperandError: it is none of these.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    raise OperandError(f"expected a CUDA stream (a handle, or __cuda_stream__), got {type(stream).__name__}")


def require_aligned(spec: TensorSpec, address: int, remedy: str) -> None:
    """Raises OperandError for an array on a device at an address that vector loads cannot read.

    Args:
        remedy: code that makes a copy of such an array, which is aligned.
    """
    wanted = alignment_of(spec)
    if address % wanted:
        raise mismatch(spec, "an address aligned to", f"{wanted} bytes", f"{address:#x}; pass a {remedy}")


def mismatch(spec: TensorSpec, what: str, expected: object, got: object) -> OperandError:
    """The error for an array that is not as the problem says."""
    return OperandError(f"{spec.name}: expected {what} {expected}, got {got}")


def missing(spec: TensorSpec) -> OperandError:
    """The error for an operand that neither the call nor its preparation gave."""
    return OperandError(f"{spec.name}: expected an array of shape {spec.shape}, got none")


# --- PyTorch -----------------------------------------------------------------------------------------------


def current_stream_of(torch: Any) -> Callable[[int], int]:
    """Returns the function that gives the handle of PyTorch's current stream of a GPU."""
    # The raw accessor builds no Stream object and saves about 2 µs a call; Triton uses it too.
    found: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return found or (lambda index: int(torch.cuda.current_stream(index).cuda_stream))


def empty_tensors(
    torch: Any, shape: Sequence[int], dtype: Any, device: Any, order: Any = None
) -> Callable[[], Any]:
    """Returns a maker of new tensors in a memory order, by default contiguous, in half the time of ``torch.empty``.

    They are made like one that has this shape by strides of 0 and stores nothing: a maker may outlive a call whose
    memory belongs to a graph to be, which refuses what stays there (torch._inductor.cudagraph_trees).
    """
    with torch.inference_mode(False):
        one = torch.empty(1, dtype=dtype, device=device)
        like = one.expand(tuple(shape))
        one.untyped_storage().resize_(0)
    return partial(torch.empty_like, like, memory_format=order or torch.contiguous_format)


def torch_caller(torch: Any, target: Target) -> Call:
    """Tensors on the operator's GPU, on PyTorch's current stream unless another is given.

    Tensors in pinned memory of the host are read and written where they lie, across the bus; a result there is complete
    when the stream has come so far.
    """
    bound_here, index, written = target.variant.bound, target.device.index, target.variant.result
    launching, tensor, current = target.variant.launching, torch.Tensor, current_stream_of(torch)
    out_shape, out_dtype = written.shape, getattr(torch, str(written.dtype))
    out_mask = alignment_of(written) - 1
    empty = empty_tensors(torch, out_shape, out_dtype, torch.device("cuda", index))
    expected = [
        (
            spec,
            spec.shape,
            getattr(torch, str(spec.dtype)),
            alignment_of(spec) - 1,
            target.fixed.get(spec.name),
        )
        for spec in target.variant.operands
    ]
    check = partial(_tensor_address, torch, index)

    def call(arrays: tuple[object, ...], out: Any, stream: object) -> Any:
        addresses = []
        for array, (spec, shape, dtype, mask, fixed) in zip(arrays, expected, strict=True):
            if array is None:
                if fixed is None:
                    raise missing(spec)
                addresses.append(fixed.address)
                continue
            if (
                not isinstance(array, tensor)
                or array.shape != shape
                or array.dtype is not dtype
                or array.get_device() != index
                or not array.is_contiguous()
                or (address := array.data_ptr()) & mask
            ):
                address = check(array, spec)
            addresses.append(address)
        handle = current(index) if stream is None else stream_handle(stream)
        if out is None:
            out = empty() if stream is None else _on_stream(torch, handle, index, empty)
            out_address = out.data_ptr()
        elif (
            not isinstance(out, tensor)
            or out.shape != out_shape
            or out.dtype is not out_dtype
            or out.get_device() != index
            or not out.is_contiguous()
            or (out_address := out.data_ptr()) & out_mask
        ):
            out_address = check(out, written)
        launch = bound_here()
        with launching:
            launch(handle, *addresses, out_address)
        return out

    return call


def _tensor_address(torch: Any, index: int, array: Any, spec: TensorSpec) -> int:
    """The address of a tensor on a GPU, or an OperandError that says what is wrong."""
    if not isinstance(array, torch.Tensor):
        raise mismatch(spec, "a", "torch.Tensor", type(array).__name__)
    if not spec.takes(tuple(array.shape)):
        raise mismatch(spec, "shape", spec.shape, tuple(array.shape))
    if array.dtype is not (dtype := getattr(torch, str(spec.dtype))):
        raise mismatch(spec, "dtype", dtype, array.dtype)
    if array.get_device() != index and not (array.device.type == "cpu" and array.is_pinned()):
        raise mismatch(spec, "device", torch.device("cuda", index), array.device)
    if not array.is_contiguous():
        raise mismatch(spec, "a", "contiguous (row-major) tensor", f"strides {tuple(array.stride())}")
    address = int(array.data_ptr())
    require_aligned(spec, address, "clone()")
    return address


def _on_stream(torch: Any, handle: int, index: int, empty: Callable[[], Any]) -> Any:
    """A tensor allocated for the stream that writes it, or the allocator might reuse it too early."""
    with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=torch.device("cuda", index))):
        return empty()


# --- CuPy --------------------------------------------------------------------------------------------------


def cupy_caller(cupy: Any, target: Target) -> Call:
    """Arrays on the operator's GPU, on CuPy's current stream unless another is given.

    CuPy has no bfloat16: ``uint16`` arrays hold the bits.
    """
    bound_here, index, written = target.variant.bound, target.device.index, target.variant.result
    launching = target.variant.launching
    expected = [(spec, target.fixed.get(spec.name)) for spec in target.variant.operands]
    ndarray, empty, current = cupy.ndarray, cupy.empty, cupy.cuda.get_current_stream

    def address(array: object, spec: TensorSpec) -> int:
        if not isinstance(array, ndarray):
            raise mismatch(spec, "a", "cupy.ndarray", type(array).__name__)
        if not spec.takes(array.shape):
            raise mismatch(spec, "shape", spec.shape, array.shape)
        if array.dtype != (dtype := spec.dtype.storage):
            raise mismatch(spec, "dtype", dtype, array.dtype)
        if array.data.device_id != index:
            raise mismatch(spec, "device", f"cuda:{index}", f"cuda:{array.data.device_id}")
        if not array._c_contiguous:
            raise mismatch(spec, "a", "contiguous (row-major) array", f"strides {array.strides}")
        pointer = int(array.data.ptr)
        require_aligned(spec, pointer, "copy()")
        return pointer

    def call(arrays: tuple[Any, ...], out: Any, stream: Any) -> Any:
        addresses = []
        for array, (spec, fixed) in zip(arrays, expected, strict=True):
            if array is not None:
                addresses.append(address(array, spec))
            elif fixed is not None:
                addresses.append(fixed.address)
            else:
                raise missing(spec)
        handle = current().ptr if stream is None else stream_handle(stream)
        if out is None:
            if stream is None:
                out = empty(written.shape, written.dtype.storage)
            else:
                with cupy.cuda.ExternalStream(handle, index):
                    out = empty(written.shape, written.dtype.storage)
        launch, out_address = bound_here(), address(out, written)
        with launching:
            launch(handle, *addresses, out_address)
        return out

    return call


# --- NumPy -------------------------------------------------------------------------------------------------


def numpy_type(dtype: ElementType) -> np.dtype[Any]:
    """The NumPy dtype of inputs and outputs: float32, to be rounded, for types that NumPy has not, as bfloat16."""
    is_missing = dtype is DType.BFLOAT16 or isinstance(dtype, Float8)
    return np.dtype(np.float32) if is_missing else dtype.storage


def check_numpy(array: object, spec: TensorSpec, *, writes: bool = False) -> Array:
    """The array itself when it is as the problem says.

    Raises:
        OperandError: wrong type, shape, dtype or memory order, or read-only although the call ``writes`` to it.
    """
    expected = numpy_type(spec.dtype)
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise mismatch(spec, "a", "numpy.ndarray", type(array).__name__)
    if not spec.takes(array.shape):
        raise mismatch(spec, "shape", spec.shape, array.shape)
    if array.dtype != expected:
        raise mismatch(spec, "dtype", expected, array.dtype)
    if not array.flags.c_contiguous:
        raise mismatch(spec, "a", "contiguous (row-major) array", f"strides {array.strides}")
    if writes and not array.flags.writeable:
        raise mismatch(spec, "a", "writeable array", "a read-only one")
    return array


def numpy_caller(target: Target) -> Call:
    """Arrays on the host: copied to the device and back, one call at a time."""
    executor, operands, written = target.variant.executor, target.variant.operands, target.variant.result
    buffers: dict[str, Buffer] = {}
    turn = threading.Lock()

    def buffer_of(spec: TensorSpec) -> Buffer:
        if spec.name not in buffers:
            buffers[spec.name] = executor.allocate(spec.nbytes)
        return buffers[spec.name]

    def sent(array: Any, spec: TensorSpec) -> Buffer:
        if array is None:
            return target.fixed[spec.name]
        executor.overwrite(buffer_of(spec), spec.dtype.to_storage(array))
        return buffers[spec.name]

    def fetched(buffer: Buffer, spec: TensorSpec) -> Array:
        stored = np.empty(spec.shape, spec.dtype.storage)
        executor.download(buffer, stored)
        return spec.dtype.from_storage(stored)

    def call(arrays: tuple[Any, ...], out: Any, stream: Any) -> Array:
        if stream is not None:
            raise OperandError(
                "stream= has no meaning for NumPy arrays: the call returns when the result is there"
            )
        given = list(zip(arrays, operands, strict=True))
        for array, spec in given:
            if array is not None:
                check_numpy(array, spec, writes=spec.is_written)
            elif spec.name not in target.fixed:
                raise missing(spec)
        if out is None:
            out = np.empty(written.shape, numpy_type(written.dtype))
        check_numpy(out, written, writes=True)
        with turn, executor.entered():
            addresses = [sent(array, spec).address for array, spec in given]
            result = sent(out, written) if written.is_updated else buffer_of(written)
            launch = target.variant.bound()
            with target.variant.launching:
                launch(0, *addresses, result.address)
            executor.synchronize()
            out[...] = fetched(result, written)
            for array, spec in given:
                if array is not None and spec.is_written:
                    array[...] = fetched(buffers[spec.name], spec)
        return out  # type: ignore[no-any-return]

    return call


# --- what is kept or sent ----------------------------------------------------------------------------------


def encoded(values: object, spec: TensorSpec) -> Array:
    """An array of any library in storage form; words (`WordType`) from the host alone.

    Raises:
        OperandError: it has another shape.
    """
    found = host_words(values) if isinstance(spec.dtype, WordType) else host_values(values)
    if found.shape != spec.shape:
        raise OperandError(f"{spec.name}: expected shape {spec.shape}, got {found.shape}")
    if isinstance(spec.dtype, DType | Float8):
        require_values(found, spec.dtype, spec.name)
    return spec.dtype.to_storage(found)


def host_words(array: Any) -> Array:
    """A NumPy, PyTorch or CuPy array of words on the host, as it is."""
    if hasattr(array, "detach"):
        return array.cpu().numpy()  # type: ignore[no-any-return]
    if hasattr(array, "get") and not isinstance(array, np.ndarray):
        array = array.get()
    return np.asarray(array)


def host_values(array: Any) -> Array:
    """A NumPy, PyTorch or CuPy array (or a sequence of numbers) as float32 or float64 on the host.

    Raises:
        OperandError: no real numbers (complex ones, text), or a masked array.
    """
    if hasattr(array, "detach"):
        array = array.detach()
        array = (array if array.is_complex() else array.float()).cpu().numpy()
    elif hasattr(array, "get") and not isinstance(array, np.ndarray):
        array = array.get()
    if isinstance(array, np.ma.MaskedArray):
        raise OperandError("a masked array may hold anything where it is masked; use .filled(0)")
    values = np.asarray(array)
    if values.dtype.kind not in "fiub":
        raise OperandError(f"expected real numbers, got {values.dtype}")
    return values if values.dtype in (np.float32, np.float64) else values.astype(np.float32)
