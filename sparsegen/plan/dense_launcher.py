"""The dense product, for ``on_miss="dense"``: the matrix as a full PyTorch tensor, multiplied by cuBLAS."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from sparsegen.dispatch.choice import Choice
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Array, Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import HasDense, TensorSpec
from sparsegen.plan.arrays import (
    check_numpy,
    encoded,
    host_values,
    mismatch,
    missing,
    numpy_type,
    stream_handle,
)
from sparsegen.plan.new_values import new_values


def is_available(device: Device) -> bool:
    """Whether PyTorch is installed for this device."""
    return device.backend == "cuda" and importlib.util.find_spec("torch") is not None


class DenseLauncher:
    """A `Launcher` that stores and multiplies every zero; for PyTorch and NumPy arrays.

    Attributes:
        device: where it runs.
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
        kept: Mapping[str, Any],
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
        self._place = torch.device(device.backend, device.index)
        self._dtype = getattr(torch, str(problem.dtype))
        self._pattern = matrix
        self._weight = torch.zeros(matrix.shape, dtype=self._dtype, device=self._place)
        self._order: Array | None = None
        self._given_pattern = pattern
        self.update_values(matrix.values)
        if value_order is not None:
            self._order = value_order.astype(np.int64)
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

    def run(self, operands: tuple[Any, ...], out: Any, stream: Any) -> Any:
        """See `Launcher.run`; CuPy arrays are refused."""
        if isinstance(operands[0], np.ndarray):
            return self._numpy(operands, out, stream)
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
        if stream is None:
            return self._multiply(torch, self._weight, given, out)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream_handle(stream), device=self._place)):
            return self._multiply(torch, self._weight, given, out)

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

    def _check(self, array: Any, spec: TensorSpec) -> None:
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
        """Bytes of the matrix on the device."""
        return int(self._weight.nbytes)

    def explain(self) -> str:
        """What runs, and why, in words."""
        rows, columns = self._pattern.shape
        return f"dense: torch.matmul of the full {rows} × {columns} matrix\n{self.choice.explain()}"

    def update_values(self, values: Any) -> None:
        """See `Operator.update_values`."""
        torch, pattern = self._torch, self._pattern
        values = new_values(values, (pattern.nnz,), self._given_pattern)
        if not isinstance(values, torch.Tensor):
            values = torch.as_tensor(np.array(host_values(values)))  # a copy: it may be read-only
        # Places are sent again for each update: 8 bytes a nonzero are more than the weight itself takes.
        lengths = torch.as_tensor(np.diff(pattern.row_offsets), device=self._place)
        begins = torch.arange(pattern.shape[0], device=self._place) * pattern.shape[1]
        places = torch.repeat_interleave(begins, lengths)
        places += torch.as_tensor(np.array(pattern.column_indices), device=self._place)
        stored = values.detach().to(self._place, self._dtype)
        if self._order is not None:
            stored = stored[torch.as_tensor(self._order, device=self._place)]
        self._weight.view(-1)[places] = stored
