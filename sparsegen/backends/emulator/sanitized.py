"""Runs a variant in a child process under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sparsegen.backends.emulator.tensor_maps import encoded
from sparsegen.errors import KernelFault
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.system.numpy_types import Array

INTEGER, BUFFER, TENSOR_MAP = 0, 1, 2  # kinds of arguments in the request, which runner.cpp reads
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
HEADLINES = ("sparsegen emulator:", "ERROR: AddressSanitizer", "runtime error:")
DETAILS = (" of size ", " is located ", "kernel.cu:")
MAX_LINES = 6


@dataclass(frozen=True, eq=False)
class Mapped:
    """A tensor map of one of the arrays that a launch takes too."""

    tensor_map: TensorMap
    array: Array


Argument: TypeAlias = Array | int | Mapped


def run_sanitized(
    executable: Path, launch: Launch, arguments: Sequence[Argument], *, timeout: float = 300.0
) -> list[Array]:
    """Launch a variant on buffers of exactly the arrays' sizes.

    Args:
        executable: a file made by `EmulatorToolchain.compile_sanitized`.
        arguments: the kernel's parameters: arrays of any dtype, 32-bit integers, and tensor maps of the arrays.
        timeout: seconds.

    Returns:
        The arrays as the kernel left them, in order, without the integers.

    Raises:
        KernelFault: a sanitizer's report, a fault that the emulator caught, a crash, or no end in time.
    """
    arrays = [np.ascontiguousarray(a) for a in arguments if isinstance(a, np.ndarray)]
    if launch.is_empty:
        return [array.copy() for array in arrays]
    with tempfile.TemporaryDirectory(prefix="sparsegen-") as folder:
        request, reply = Path(folder, "request"), Path(folder, "reply")
        request.write_bytes(b"".join(_request(launch, arguments)))
        try:
            done = subprocess.run(
                [executable, request, reply],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                env=os.environ | SANITIZER_OPTIONS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KernelFault(f"the kernel had not ended after {timeout:g} s") from None
        if done.returncode != 0:
            raise KernelFault(_summary(done.stderr) or f"the kernel's process ended with {done.returncode}")
        data = reply.read_bytes()
    return list(_split(data, arrays))


def _request(launch: Launch, arguments: Sequence[Argument]) -> Iterator[bytes]:
    yield struct.pack("<6IQI", *launch.grid, *launch.block, launch.shared_memory_bytes, len(arguments))
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            yield struct.pack("<Iq", BUFFER, argument.nbytes)
            yield argument.tobytes()
        elif isinstance(argument, Mapped):
            place = next(i for i, other in enumerate(arguments) if other is argument.array)
            yield struct.pack("<Iq", TENSOR_MAP, place)
            yield encoded(argument.tensor_map)
        else:
            yield struct.pack("<Iq", INTEGER, argument)


def _split(data: bytes, arrays: Sequence[Array]) -> Iterator[Array]:
    start = 0
    for array in arrays:
        part = data[start : start + array.nbytes]
        yield np.frombuffer(part, dtype=array.dtype).reshape(array.shape).copy()
        start += array.nbytes


def _summary(report: str) -> str:
    """The lines of a report that say what happened and where in the kernel."""
    lines = [re.sub(r"^==\d+==", "", line.strip()) for line in report.splitlines() if line.strip()]
    headline = next((i for i, line in enumerate(lines) if any(word in line for word in HEADLINES)), None)
    if headline is None:
        return "\n".join(lines[:MAX_LINES])
    details = [line for line in lines[headline + 1 : -1] if any(word in line for word in DETAILS)]
    return "\n".join([lines[headline], *details][:MAX_LINES])
