"""How an operator is called with each array library: zero-copy for PyTorch and CuPy, copied for NumPy.

A caller is a closure over everything that is known when the operator is prepared, so that a call costs a few
comparisons beside the launch. None of these modules is imported here before an array of theirs arrives.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.executor import Buffer
from sparsegen.family import Array, Device
from sparsegen.launching import PreparedVariant
from sparsegen.operators import DType, SpmmProblem, TensorSpec

Call = Callable[[Any, Any, Any, Any], Any]  # (b, out, stream, bias) -> out


@dataclass(frozen=True, slots=True)
class Target:
    """What a caller launches: the prepared variant, its problem and device, the bias fixed beforehand."""

    variant: PreparedVariant
    problem: SpmmProblem
    device: Device
    bias: Buffer | None


def caller(kind: type, target: Target) -> Call:
    """How to call the operator with arrays of this type.

    Raises:
        OperandError: arrays of this type, or on this device, cannot be taken.
    """
    if issubclass(kind, np.ndarray):
        return numpy_caller(target)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    is_torch = torch is not None and issubclass(kind, torch.Tensor)
    is_cupy = cupy is not None and issubclass(kind, cupy.ndarray)
    if not (is_torch or is_cupy):
        raise OperandError(
            f"expected a NumPy, PyTorch or CuPy array, got {kind.__module__}.{kind.__qualname__}"
        )
    if target.device.backend != "cuda":
        raise OperandError(
            f"this operator was prepared for {target.device.name}, which takes NumPy arrays; "
            "prepare it with device='cuda' for PyTorch and CuPy"
        )
    return torch_caller(torch, target) if is_torch else cupy_caller(cupy, target)


def alignment_of(spec: TensorSpec) -> int:
    """Bytes that divide an array's address: vector loads are as wide as its rows allow, at most 16."""
    return math.gcd(16, spec.shape[-1] * spec.dtype.itemsize) if len(spec.shape) > 1 else spec.dtype.itemsize


def stream_handle(stream: Any) -> int:
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


def mismatch(spec: TensorSpec, what: str, expected: Any, got: Any) -> OperandError:
    """The error for an array that is not as the problem says."""
    return OperandError(f"{spec.name}: expected {what} {expected}, got {got}")


def missing_bias(problem: SpmmProblem) -> OperandError:
    if problem.epilogue.has_bias:
        return OperandError(f"epilogue {problem.epilogue} needs bias= of shape ({problem.m},)")
    return OperandError(f"bias= was given, but the operator was prepared with epilogue={problem.epilogue}")


# --- PyTorch -----------------------------------------------------------------------------------------------


def torch_caller(torch: Any, target: Target) -> Call:
    """Tensors on the operator's GPU, on PyTorch's current stream unless another is given."""
    problem, bound_here, index = target.problem, target.variant.bound, target.device.index
    b_spec, c_spec = problem.operands[0], problem.result
    b_shape, c_shape = b_spec.shape, c_spec.shape
    dtype, device = getattr(torch, str(problem.dtype)), torch.device("cuda", index)
    tensor, empty = torch.Tensor, torch.empty
    b_mask, c_mask = alignment_of(b_spec) - 1, alignment_of(c_spec) - 1
    has_bias = problem.epilogue.has_bias
    fixed_bias = None if target.bias is None else target.bias.address
    # The raw accessor builds no Stream object and saves about 2 µs a call; Triton uses it too.
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if current is None:

        def current(index: int) -> int:
            return int(torch.cuda.current_stream(index).cuda_stream)

    def check(array: Any, spec: TensorSpec, mask: int) -> int:
        """The array's address, or an OperandError that says what is wrong."""
        if not isinstance(array, tensor):
            raise mismatch(spec, "a", "torch.Tensor", type(array).__name__)
        if tuple(array.shape) != spec.shape:
            raise mismatch(spec, "shape", spec.shape, tuple(array.shape))
        if array.dtype is not dtype:
            raise mismatch(spec, "dtype", dtype, array.dtype)
        if array.get_device() != index:
            raise mismatch(spec, "device", device, array.device)
        if not array.is_contiguous():
            raise mismatch(spec, "a", "contiguous (row-major) tensor", f"strides {tuple(array.stride())}")
        address = int(array.data_ptr())
        if address & mask:
            raise mismatch(
                spec, "an address aligned to", f"{mask + 1} bytes", f"{address:#x}; pass a clone()"
            )
        return address

    def call(b: Any, out: Any, stream: Any, bias: Any) -> Any:
        b_address = b.data_ptr()
        if (
            b.shape != b_shape
            or b.dtype is not dtype
            or b.get_device() != index
            or not b.is_contiguous()
            or b_address & b_mask
        ):
            check(b, b_spec, b_mask)
        handle = current(index) if stream is None else stream_handle(stream)
        if out is None:
            if stream is None:
                out = empty(c_shape, dtype=dtype, device=device)
            else:  # allocated for the stream that writes it, or the allocator might reuse it too early
                with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)):
                    out = empty(c_shape, dtype=dtype, device=device)
            c_address = out.data_ptr()
        else:
            c_address = check(out, c_spec, c_mask)
        if not has_bias:
            if bias is not None:
                raise missing_bias(problem)
            bound_here()(handle, b_address, c_address)
            return out
        if bias is not None:
            bias_address = check(bias, problem.operands[1], problem.dtype.itemsize - 1)
        elif fixed_bias is not None:
            bias_address = fixed_bias
        else:
            raise missing_bias(problem)
        bound_here()(handle, b_address, bias_address, c_address)
        return out

    return call


# --- CuPy --------------------------------------------------------------------------------------------------


def cupy_caller(cupy: Any, target: Target) -> Call:
    """Arrays on the operator's GPU, on CuPy's current stream unless another is given.

    CuPy has no bfloat16: ``uint16`` arrays hold the bits.
    """
    problem, bound_here, index = target.problem, target.variant.bound, target.device.index
    b_spec, c_spec = problem.operands[0], problem.result
    dtype, ndarray, empty = problem.dtype.storage, cupy.ndarray, cupy.empty
    current = cupy.cuda.get_current_stream
    has_bias = problem.epilogue.has_bias
    fixed_bias = None if target.bias is None else target.bias.address

    def address(array: Any, spec: TensorSpec) -> int:
        if not isinstance(array, ndarray):
            raise mismatch(spec, "a", "cupy.ndarray", type(array).__name__)
        if array.shape != spec.shape:
            raise mismatch(spec, "shape", spec.shape, array.shape)
        if array.dtype != dtype:
            raise mismatch(spec, "dtype", dtype, array.dtype)
        if array.data.device_id != index:
            raise mismatch(spec, "device", f"cuda:{index}", f"cuda:{array.data.device_id}")
        if not array._c_contiguous:
            raise mismatch(spec, "a", "contiguous (row-major) array", f"strides {array.strides}")
        pointer = int(array.data.ptr)
        if pointer % alignment_of(spec):
            raise mismatch(
                spec, "an address aligned to", f"{alignment_of(spec)} bytes", f"{pointer:#x}; pass a copy()"
            )
        return pointer

    def call(b: Any, out: Any, stream: Any, bias: Any) -> Any:
        addresses = [address(b, b_spec)]
        handle = current().ptr if stream is None else stream_handle(stream)
        if out is None:
            if stream is None:
                out = empty(c_spec.shape, dtype)
            else:
                with cupy.cuda.ExternalStream(handle, index):
                    out = empty(c_spec.shape, dtype)
        if bias is not None and has_bias:
            addresses.append(address(bias, problem.operands[1]))
        elif fixed_bias is not None and has_bias:
            addresses.append(fixed_bias)
        elif has_bias or bias is not None:
            raise missing_bias(problem)
        bound_here()(handle, *addresses, address(out, c_spec))
        return out

    return call


# --- NumPy -------------------------------------------------------------------------------------------------


def numpy_type(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype of inputs and outputs: float32 for bfloat16, which NumPy has not; it is rounded."""
    return np.dtype(np.float32) if dtype is DType.BFLOAT16 else dtype.storage


def check_numpy(array: Any, spec: TensorSpec) -> Array:
    """The array itself when it is as the problem says.

    Raises:
        OperandError: wrong type, shape, dtype or memory order.
    """
    expected = numpy_type(spec.dtype)
    if not isinstance(array, np.ndarray):
        raise mismatch(spec, "a", "numpy.ndarray", type(array).__name__)
    if array.shape != spec.shape:
        raise mismatch(spec, "shape", spec.shape, array.shape)
    if array.dtype != expected:
        raise mismatch(spec, "dtype", expected, array.dtype)
    if not array.flags.c_contiguous:
        raise mismatch(spec, "a", "contiguous (row-major) array", f"strides {array.strides}")
    return array


def numpy_caller(target: Target) -> Call:
    """Arrays on the host: copied to the device and back, one call at a time."""
    problem, executor = target.problem, target.variant.executor
    specs = {spec.name: spec for spec in (*problem.operands, problem.result)}
    buffers: dict[str, Buffer] = {}
    turn = threading.Lock()

    def send(name: str, array: Any) -> Buffer:
        spec = specs[name]
        stored = spec.dtype.to_storage(check_numpy(array, spec))
        executor.overwrite(buffers[name], stored)
        return buffers[name]

    def call(b: Any, out: Any, stream: Any, bias: Any) -> Array:
        if stream is not None:
            raise OperandError(
                "stream= has no meaning for NumPy arrays: the call returns when the result is there"
            )
        if bias is None and target.bias is None and problem.epilogue.has_bias:
            raise missing_bias(problem)
        if bias is not None and not problem.epilogue.has_bias:
            raise missing_bias(problem)
        if out is None:
            out = np.empty(problem.result.shape, numpy_type(problem.dtype))
        elif not check_numpy(out, problem.result).flags.writeable:
            raise mismatch(problem.result, "a", "writeable array", "a read-only one")
        with turn, executor.entered():
            for name, spec in specs.items():
                if name not in buffers:
                    buffers[name] = executor.allocate(spec.nbytes)
            operands = [send("b", b)]
            if bias is not None:
                operands.append(send("bias", bias))
            elif target.bias is not None:
                operands.append(target.bias)
            result = buffers[problem.result.name]
            target.variant.bound()(0, *(buffer.address for buffer in operands), result.address)
            executor.synchronize()
            stored = np.empty(problem.result.shape, problem.dtype.storage)
            executor.download(result, stored)
        out[...] = problem.dtype.from_storage(stored)
        return out  # type: ignore[no-any-return]

    return call
