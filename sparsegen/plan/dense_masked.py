"""The dense product in the place of a masked one: PyTorch's, of matrices whose dead blocks are zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsegen.dispatch.chosen import Choice
from sparsegen.errors import OperandError
from sparsegen.kernels.base import Device
from sparsegen.operators import MaskedProblem
from sparsegen.plan.dense_calls import DenseCalls
from sparsegen.plan.live_blocks import LiveBlocks


class MaskedDenseLauncher(DenseCalls):
    """A `Launcher` of one launch, which makes the dead blocks zeros by the packed mask, and one product by PyTorch.

    float32 is multiplied as PyTorch may (`torch.set_float32_matmul_precision`).
    """

    def __init__(self, choice: Choice, device: Device, kept: Mapping[str, object]) -> None:
        """
        Raises:
            OperandError: a kept operand of the wrong shape.
        """
        problem = choice.problem
        assert isinstance(problem, MaskedProblem)
        super().__init__(choice, 0, device, kept)
        self._problem = problem
        self._live = LiveBlocks((problem.m, problem.k), (problem.block.rows, problem.block.columns), device)
        self._scale = float(self._host["scale"][0])

    def _computed(self, operands: Mapping[str, Any], out: Any) -> Any:
        scale = operands["scale"]
        given = {**operands, "scale": self._scale if scale is self._kept["scale"] else scale}
        return self._problem.dense_result(self._torch, self._live, given, out)

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
