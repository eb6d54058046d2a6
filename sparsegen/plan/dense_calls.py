"""Calls of dense products in a variant's place, by PyTorch: its tensors, CuPy's and NumPy's arrays."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from sparsegen.dispatch.chosen import Choice
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.operators import TensorSpec
from sparsegen.plan.arrays import (
    check_numpy,
    encoded,
    mismatch,
    missing,
    numpy_type,
    stream_handle,
)
from sparsegen.system.numpy_types import Array

EMULATED = ("emulator", "cpu")  # PyTorch runs on the CPU for them


class DenseCalls(ABC):
    """A `Launcher` that multiplies every zero; for PyTorch, CuPy and NumPy arrays.

    Attributes:
        device: the device that it runs on.
        choice: the look-up that found dense to be better; its variant does not run.
    """

    variant = None  # nothing of sparsegen's multiplies
    source = None

    def __init__(self, choice: Choice, nnz: int, device: Device, kept: Mapping[str, object]) -> None:
        """
        Raises:
            OperandError: a kept operand of the wrong shape.
        """
        import torch

        problem = choice.problem
        self.choice, self.device = choice, device
        self._operands, self._result = problem.operands(nnz), problem.result(nnz)
        self._torch = torch
        self._place = (
            torch.device("cpu") if device.backend in EMULATED else torch.device(device.backend, device.index)
        )
        specs = {spec.name: spec for spec in self._operands}
        self._host = {name: encoded(value, specs[name]) for name, value in kept.items()}
        self._kept = {
            name: self._sent(specs[name].dtype.from_storage(stored), specs[name])
            for name, stored in self._host.items()
        }

    @abstractmethod
    def _computed(self, operands: Mapping[str, object], out: object) -> object:
        """The result for tensors by name, past all checks."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the matrix on the device, its zeros among them."""

    @abstractmethod
    def explain(self) -> str:
        """Describes what runs, and why."""

    @abstractmethod
    def update_values(self, values: object) -> None:
        """See `Operator.update_values`."""

    @property
    def kept(self) -> Collection[str]:
        """Names of the operands that calls need not bring."""
        return self._kept.keys()

    def kept_operand(self, name: str) -> Array | None:
        """The operand that is kept, in storage form; None if it is not."""
        return self._host.get(name)

    def run(self, operands: tuple[object, ...], out: object, stream: object) -> Any:
        """See `Launcher.run`."""
        if isinstance(operands[0], np.ndarray):
            return self._numpy(operands, out, stream)
        cupy = sys.modules.get("cupy")
        if cupy is not None and isinstance(operands[0], cupy.ndarray):
            return self._cupy(cupy, operands, out, stream)
        given = {}
        for array, spec in zip(operands, self._operands, strict=True):
            if array is not None:
                self._check(array, spec)
            elif spec.name not in self._kept:
                raise missing(spec)
            given[spec.name] = self._kept[spec.name] if array is None else array
        if out is not None:
            self._check(out, self._result)
        torch = self._torch
        kind = self._place.type
        with ExitStack() as contexts:
            contexts.enter_context(torch.no_grad())
            if torch.is_autocast_enabled(kind):  # the problem says the dtype
                contexts.enter_context(torch.autocast(kind, enabled=False))
            if stream is not None:
                external = torch.cuda.ExternalStream(stream_handle(stream), device=self._place)
                contexts.enter_context(torch.cuda.stream(external))
            return self._computed(given, out)

    def _cupy(self, cupy: Any, operands: tuple[object, ...], out: object, stream: object) -> object:
        """Runs on CuPy's current stream, with tensors over the same memory."""
        torch = self._torch
        handle = stream_handle(cupy.cuda.get_current_stream() if stream is None else stream)
        with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=self._place)):
            seen = tuple(None if array is None else torch.from_dlpack(array) for array in operands)
            result = self.run(seen, None if out is None else torch.from_dlpack(out), None)
            return cupy.from_dlpack(result) if out is None else out

    def _numpy(self, operands: tuple[object, ...], out: Any, stream: object) -> Array:
        if stream is not None:
            raise OperandError(
                "stream= has no meaning for NumPy arrays: the call returns when the result is there"
            )
        sent = tuple(
            None if array is None else self._sent(check_numpy(array, spec), spec)
            for array, spec in zip(operands, self._operands, strict=True)
        )
        given = None
        if out is None:
            out = np.empty(self._result.shape, numpy_type(self._result.dtype))
        else:
            check_numpy(out, self._result, writes=True)
            given = self._sent(out, self._result) if self._result.is_updated else None
        out[...] = self.run(sent, given, None).float().cpu().numpy()
        return out  # type: ignore[no-any-return]

    def _sent(self, array: Array, spec: TensorSpec) -> object:
        return self._torch.as_tensor(array, device=self._place).to(self._type_of(spec))

    def _type_of(self, spec: TensorSpec) -> Any:
        return getattr(self._torch, str(spec.dtype))

    def _check(self, array: object, spec: TensorSpec) -> None:
        if not isinstance(array, self._torch.Tensor):
            raise mismatch(spec, "a", "torch.Tensor or numpy.ndarray", type(array).__name__)
        if tuple(array.shape) != spec.shape:
            raise mismatch(spec, "shape", spec.shape, tuple(array.shape))
        if array.dtype is not self._type_of(spec):
            raise mismatch(spec, "dtype", self._type_of(spec), array.dtype)
        if array.device != self._place:
            raise mismatch(spec, "device", self._place, array.device)
        if not array.is_contiguous():
            raise mismatch(spec, "a", "contiguous (row-major) tensor", f"strides {tuple(array.stride())}")
