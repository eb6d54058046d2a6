"""The dense product in a variant's place: the matrix as a full PyTorch tensor, multiplied by cuBLAS."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import Dense
from sparsegen.dispatch.padded_dense import padded_for_dense
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import HasDense, Layout, MaskedProblem, SpmmProblem
from sparsegen.operators.base.cost import matrix_bytes
from sparsegen.plan.dense_calls import DenseCalls
from sparsegen.plan.dense_weight import DenseWeight
from sparsegen.plan.live_blocks import LiveBlocks
from sparsegen.plan.new_values import new_values
from sparsegen.plan.tf32 import cut_as_kernels_do
from sparsegen.system.extras import install_command
from sparsegen.system.numpy_types import Array


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


class DenseLauncher(DenseCalls):
    """A `Launcher` that stores and multiplies every zero of a pattern's matrix."""

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
        problem = choice.problem
        assert isinstance(problem, HasDense)
        super().__init__(choice, matrix.nnz, device, kept)
        self._multiply, self._pattern, self._given_pattern = problem.dense_result, matrix, pattern
        # Measured on an H200 with a row-major B, 3920 × 835 × 624 of float16: 12.2 µs by columns, 59.8 by rows, and no
        # less by padded rows. Beside a column-major B, whose columns have k elements too, either takes as long.
        by_columns = isinstance(problem, SpmmProblem) and problem.layout is Layout.ROW
        self._weight = DenseWeight(matrix, self._type_of(self._result), self._place, by_columns=by_columns)
        self._weight.update(matrix.values)
        if value_order is not None:
            self._weight.reorder(value_order)

    def _computed(self, operands: Mapping[str, Any], out: Any) -> Any:
        return self._multiply(self._torch, self._weight.tensor, operands, out)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix on the device, its zeros among them."""
        return self._weight.nbytes

    def explain(self) -> str:
        """Describes what runs, and why."""
        (rows, columns), itemsize = self._pattern.shape, self._result.dtype.itemsize
        least = matrix_bytes(rows, columns, self._pattern.nnz, itemsize)
        return (
            f"dense: PyTorch's product with the full {rows} × {columns} matrix, which takes {self.nbytes} bytes "
            f"(its nonzeros alone {least})\n{self.choice.explain()}"
        )

    def update_values(self, values: object) -> None:
        """See `Operator.update_values`."""
        self._weight.update(new_values(values, (self._pattern.nnz,), self._given_pattern))


class DenseCallsWithMask(DenseCalls):
    """A `Launcher` of dense products whose mask comes with every call."""

    def __init__(self, choice: Choice, device: Device, kept: Mapping[str, object]) -> None:
        """
        Raises:
            OperandError: a kept operand of the wrong shape.
        """
        super().__init__(choice, 0, device, kept)

    @property
    def nbytes(self) -> int:
        """Bytes of a packed matrix on the device: none."""
        return 0

    def explain(self) -> str:
        """Describes what runs, and why."""
        return f"dense: PyTorch's product with dead blocks set to zero\n{self.choice.explain()}"

    def update_values(self, values: object) -> None:
        """Refuses new values.

        Raises:
            OperandError: always: a mask has none.
        """
        raise OperandError("masks come with every call, and have no values to update")


class MaskedDenseLauncher(DenseCallsWithMask):
    """A `Launcher` of one launch, which makes the dead blocks zeros by the packed mask, and one product by PyTorch.

    float32 is multiplied in TF32, as variants do. Operands whose rows are no whole vectors are copied with zeros behind
    them where that should take less time (`sparsegen.dispatch.padded_dense`).
    """

    def __init__(self, choice: Choice, device: Device, kept: Mapping[str, object]) -> None:
        """See `DenseCallsWithMask`."""
        super().__init__(choice, device, kept)
        assert isinstance(choice.problem, MaskedProblem)
        self._padded = padded_for_dense(choice.problem, device)
        problem = self._padded or choice.problem
        self._multiply = cut_as_kernels_do(problem.dense_result, problem.dtype, device)
        self._live = LiveBlocks((problem.m, problem.k), (problem.block.rows, problem.block.columns), device)
        self._scale = float(self._host["scale"][0])

    def _computed(self, operands: Mapping[str, Any], out: Any) -> Any:
        scale = operands["scale"]
        given = {**operands, "scale": self._scale if scale is self._kept["scale"] else scale}
        if self._padded is None:
            return self._multiply(self._torch, self._live, given, out)
        for spec in self._padded.operands(0):
            if spec.name not in ("mask", "scale"):
                given[spec.name] = self._wider(given[spec.name], spec.shape)
        if self._padded.result(0).shape == self._result.shape:
            return self._multiply(self._torch, self._live, given, out)
        part = tuple(slice(size) for size in self._result.shape)
        found = self._multiply(self._torch, self._live, given, None)[part]
        return found.contiguous() if out is None else out.copy_(found)

    def _wider(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        """The tensor with zeros behind its rows, and rows of zeros behind these, up to a shape."""
        more = [
            end
            for size, there in zip(shape[::-1], tensor.shape[::-1], strict=True)
            for end in (0, size - there)
        ]
        return self._torch.nn.functional.pad(tensor, more) if any(more) else tensor
