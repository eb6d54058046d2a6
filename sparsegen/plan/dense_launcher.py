"""The dense product in a variant's place: the matrix as a full PyTorch tensor, multiplied by cuBLAS."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import Dense
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import HasDense, TensorSpec
from sparsegen.operators.base.cost import matrix_bytes
from sparsegen.plan.arrays import (
    check_numpy,
    encoded,
    mismatch,
    missing,
    numpy_type,
    stream_handle,
)
from sparsegen.plan.dense_weight import DenseWeight
from sparsegen.plan.new_values import new_values
from sparsegen.system.extras import install_command
from sparsegen.system.numpy_types import Array

EMULATED = ("emulator", "cpu")  # PyTorch runs on the CPU for them


def obstacle(device: Device, policy: Dense) -> str:
    """Returns why no dense product can run here, in words; empty if it can.

    PyTorch takes seconds to import, so that where dense is one of two choices it has to be imported already.
    """
    if "torch" not in sys.modules and policy is not Dense.ALWAYS:
        return "PyTorch, which multiplies, is not imported in this process"
    try:
        import torch
    except ImportError:
        return f"PyTorch, which multiplies, is not installed ({install_command('torch')})"
    if device.backend == "cuda" and not torch.cuda.is_available():
        return "this PyTorch has no CUDA"
    return ""


class DenseLauncher:
    """A `Launcher` that stores and multiplies every zero; for PyTorch, CuPy and NumPy arrays.

    Attributes:
        device: the device that it runs on.
        choice: the look-up that found dense to be better; its variant does not run.
    """

    variant = None  # nothing of sparsegen's runs
    source = None

    def __init__(
        self,
        choice: Choice,
        matrix: CsrMatrix,
        device: Device,
        *,
        kept: Mapping[str, object],
        pattern: str | None,
        value_order: Array | None = None,
    ) -> None:
        """See `VariantLauncher`.

        Raises:
            OperandError: a kept operand of the wrong shape.
        """
        import torch

        problem = choice.problem
        assert isinstance(problem, HasDense)
        self.choice, self.device = choice, device
        self._problem, self._multiply = problem, problem.dense_result
        self._operands, self._result = problem.operands(matrix.nnz), problem.result(matrix.nnz)
        self._torch = torch
        self._place = (
            torch.device("cpu") if device.backend in EMULATED else torch.device(device.backend, device.index)
        )
        self._dtype = getattr(torch, str(problem.dtype))
        self._pattern = matrix
        self._given_pattern = pattern
        self._weight = DenseWeight(matrix, self._dtype, self._place)
        self._weight.update(matrix.values)
        if value_order is not None:
            self._weight.reorder(value_order)
        specs = {spec.name: spec for spec in self._operands}
        self._host = {name: encoded(value, specs[name]) for name, value in kept.items()}
        self._kept = {
            name: self._sent(specs[name].dtype.from_storage(stored)) for name, stored in self._host.items()
        }

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
            return self._multiply(torch, self._weight.tensor, given, out)

    def _cupy(self, cupy: Any, operands: tuple[object, ...], out: Any, stream: Any) -> Any:
        """Runs on CuPy's current stream, with tensors over the same memory."""
        torch = self._torch
        handle = stream_handle(cupy.cuda.get_current_stream() if stream is None else stream)
        with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=self._place)):
            seen = tuple(None if array is None else torch.from_dlpack(array) for array in operands)
            result = self.run(seen, None if out is None else torch.from_dlpack(out), None)
            return cupy.from_dlpack(result) if out is None else out

    def _numpy(self, operands: tuple[Any, ...], out: Any, stream: Any) -> Array:
        if stream is not None:
            raise OperandError(
                "stream= has no meaning for NumPy arrays: the call returns when the result is there"
            )
        sent = tuple(
            None if array is None else self._sent(check_numpy(array, spec))
            for array, spec in zip(operands, self._operands, strict=True)
        )
        computed = self.run(sent, None, None)
        if out is None:
            out = np.empty(self._result.shape, numpy_type(self._result.dtype))
        check_numpy(out, self._result)[...] = computed.float().cpu().numpy()
        return out  # type: ignore[no-any-return]

    def _sent(self, array: Array) -> Any:
        return self._torch.as_tensor(array, device=self._place).to(self._dtype)

    def _check(self, array: object, spec: TensorSpec) -> None:
        if not isinstance(array, self._torch.Tensor):
            raise mismatch(spec, "a", "torch.Tensor or numpy.ndarray", type(array).__name__)
        if tuple(array.shape) != spec.shape:
            raise mismatch(spec, "shape", spec.shape, tuple(array.shape))
        if array.dtype is not self._dtype:
            raise mismatch(spec, "dtype", self._dtype, array.dtype)
        if array.device != self._place:
            raise mismatch(spec, "device", self._place, array.device)
        if not array.is_contiguous():
            raise mismatch(spec, "a", "contiguous (row-major) tensor", f"strides {tuple(array.stride())}")

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix on the device, its zeros among them."""
        return self._weight.nbytes

    def explain(self) -> str:
        """Describes what runs, and why."""
        (rows, columns), problem = self._pattern.shape, self._problem
        itemsize = problem.dtype.itemsize
        least = matrix_bytes(rows, columns, self._pattern.nnz, itemsize)
        return (
            f"dense: PyTorch's product with the full {rows} × {columns} matrix, which takes {self.nbytes} bytes "
            f"(its nonzeros alone {least})\n{self.choice.explain()}"
        )

    def update_values(self, values: object) -> None:
        """See `Operator.update_values`."""
        self._weight.update(new_values(values, (self._pattern.nnz,), self._given_pattern))
