"""The dense product, for ``on_miss="dense"``: the matrix as a full PyTorch tensor, multiplied by cuBLAS."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from sparsegen.dispatch.choice import Choice
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Array, Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Epilogue, Layout, SpmmProblem, TensorSpec
from sparsegen.plan.arrays import check_numpy, mismatch, numpy_type, stream_handle
from sparsegen.plan.operator import host_values, missing_bias, missing_residual


def is_available(device: Device) -> bool:
    """Whether PyTorch is installed for this device."""
    return device.backend == "cuda" and importlib.util.find_spec("torch") is not None


class DenseOperator:
    """Called like a `SparseOperator`, but every zero is stored and multiplied; for PyTorch and NumPy arrays.

    Attributes:
        problem, device: what it computes, and where.
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
        bias: Any = None,
        value_order: Array | None = None,
    ) -> None:
        """See `SparseOperator`.

        Raises:
            OperandError: a bias of the wrong shape, or for an epilogue without one.
        """
        import torch

        assert isinstance(choice.problem, SpmmProblem)
        self.choice = choice
        self.problem = choice.problem
        self._operands = self.problem.operands(matrix.nnz)
        self._result = self.problem.result(matrix.nnz)
        self.device = device
        self._torch = torch
        self._place = torch.device(device.backend, device.index)
        self._dtype = getattr(torch, str(self.problem.dtype))
        self._pattern = matrix
        self._weight = torch.zeros(matrix.shape, dtype=self._dtype, device=self._place)
        self._order: Array | None = None
        self.update_values(matrix.values)
        if value_order is not None:
            self._order = value_order.astype(np.int64)
        if bias is not None and not self.problem.epilogue.has_bias:
            raise missing_bias(self.problem)
        self._bias = None if bias is None else self._sent(host_values(bias), self._operands[1])

    def __call__(
        self, b: Any, out: Any = None, stream: Any = None, bias: Any = None, residual: Any = None
    ) -> Any:
        """See `SparseOperator.__call__`; CuPy arrays are refused."""
        torch, problem = self._torch, self.problem
        if (residual is not None) != problem.epilogue.has_residual:
            raise missing_residual(problem)
        if isinstance(b, np.ndarray):
            return self._numpy(b, out, stream, bias, residual)
        self._check(b, self._operands[0])
        bias = self._bias if bias is None else bias
        if (bias is not None) != problem.epilogue.has_bias:
            raise missing_bias(problem)
        if bias is not None:
            self._check(bias, self._operands[1])
        if residual is not None:
            self._check(residual, self._operands[2])
        if out is not None:
            self._check(out, self._result)
        if stream is None:
            return self._multiply(b, out, bias, residual)
        with torch.cuda.stream(torch.cuda.ExternalStream(stream_handle(stream), device=self._place)):
            return self._multiply(b, out, bias, residual)

    def _multiply(self, b: Any, out: Any, bias: Any, residual: Any) -> Any:
        torch, problem = self._torch, self.problem
        if problem.layout is Layout.ROW:
            result = torch.matmul(self._weight, b, out=out)
        else:
            result = torch.matmul(b, self._weight.t(), out=out)
        if bias is not None:
            result += bias[:, None] if problem.layout is Layout.ROW else bias
        if problem.epilogue is Epilogue.BIAS_RELU:
            result.relu_()
        if problem.epilogue is Epilogue.BIAS_GELU:
            result.copy_(torch.nn.functional.gelu(result))
        if residual is not None:
            result += residual
        return result

    def _numpy(self, b: Array, out: Any, stream: Any, bias: Any, residual: Any) -> Array:
        if stream is not None:
            raise OperandError(
                "stream= has no meaning for NumPy arrays: the call returns when the result is there"
            )
        problem = self.problem
        given = zip((b, bias, residual), self._operands, strict=False)
        sent = [None if a is None else self._sent(check_numpy(a, spec), spec) for a, spec in given]
        computed = self(*sent[:1], **dict(zip(("bias", "residual"), sent[1:], strict=False)))
        if out is None:
            out = np.empty(self._result.shape, numpy_type(problem.dtype))
        check_numpy(out, self._result)[...] = computed.float().cpu().numpy()
        return out  # type: ignore[no-any-return]

    def _sent(self, array: Array, spec: TensorSpec) -> Any:
        if array.shape != spec.shape:
            raise mismatch(spec, "shape", spec.shape, array.shape)
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
        size = f"{self.problem.m} × {self.problem.k}"
        return f"dense: torch.matmul of the full {size} matrix\n{self.choice.explain()}"

    def update_values(self, values: Any) -> None:
        """See `SparseOperator.update_values`."""
        torch, pattern = self._torch, self._pattern
        if isinstance(values, CsrMatrix):
            values = values.values
        if tuple(np.shape(values)) != (pattern.nnz,):
            raise OperandError(f"values: expected shape ({pattern.nnz},), got {tuple(np.shape(values))}")
        if not isinstance(values, torch.Tensor):
            values = torch.as_tensor(np.array(host_values(values)))  # a copy: it may be read-only
        # Places are sent again for each update: 8 bytes a nonzero are more than the weight itself takes.
        lengths = torch.as_tensor(np.diff(pattern.row_offsets), device=self._place)
        begins = torch.arange(pattern.shape[0], device=self._place) * pattern.shape[1]
        places = torch.repeat_interleave(begins, lengths)
        places += torch.as_tensor(np.array(pattern.column_indices), device=self._place)
        encoded = values.detach().to(self._place, self._dtype)
        if self._order is not None:
            encoded = encoded[torch.as_tensor(self._order, device=self._place)]
        self._weight.view(-1)[places] = encoded
