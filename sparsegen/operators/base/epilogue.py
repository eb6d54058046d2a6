"""Epilogues: operations on a sum of products before it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.operators.base.reference import DeviceReference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import WARP, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

# Growth of an error by an activation with a slope of at most 1.13 (GELU) or 1.1 (SiLU), and roundings in evaluating it.
GROWTH = 1.5


class BiasEpilogue(StrEnum):
    """Epilogues that begin with a bias: ``none``, ``bias``, and ``bias_`` with an activation or ``residual``."""

    @property
    def has_bias(self) -> bool:
        return self != "none"

    @property
    def has_residual(self) -> bool:
        return self == "bias_residual"

    def operands(self, biases: int, result: TensorSpec, alignment: int = 0) -> tuple[TensorSpec, ...]:
        """Returns the operands that it adds: a bias of ``biases`` values, a residual of the result's shape.

        Args:
            alignment: alignment of the residual; see `TensorSpec`.
        """
        bias = TensorSpec("bias", (biases,), result.dtype)
        residual = TensorSpec("residual", result.shape, result.dtype, alignment)
        return (*([bias] if self.has_bias else []), *([residual] if self.has_residual else []))

    def given(self, bias: object, residual: object, biases: int) -> tuple[Any, ...]:
        """Returns the call's arrays for `operands`, in their order.

        Args:
            bias, residual: None where the call brings none.
            biases: number of values of a bias.

        Raises:
            OperandError: the call brings other operands.
        """
        if (bias is not None) != self.has_bias or (residual is not None) != self.has_residual:
            raise OperandError(
                f"epilogue {self} takes {'a' if self.has_bias else 'no'} bias ({biases} values) and "
                f"{'a' if self.has_residual else 'no'} residual (of the result's shape)"
            )
        return tuple(array for array in (bias, residual) if array is not None)

    def activated(self, exact: Array, magnitude: Array) -> tuple[Array, Array]:
        """The sums after the activation, and their `Reference.magnitude`; both as they were where there is none."""
        if self == "bias_relu":
            return np.maximum(exact, 0.0), magnitude
        if self == "bias_gelu":
            return gelu(exact), magnitude * GROWTH
        if self == "bias_silu":
            return exact / (1.0 + np.exp(-exact)), magnitude * GROWTH
        return exact, magnitude


class Epilogue(BiasEpilogue):
    """The operation on C before it is stored, in float32; the bias has one value per row of C.

    GELU is the exact one, x · Φ(x) with the normal distribution Φ. A residual has C's shape and layout.
    """

    NONE = "none"
    BIAS = "bias"
    BIAS_RELU = "bias_relu"
    BIAS_GELU = "bias_gelu"
    BIAS_RESIDUAL = "bias_residual"

    def finish_on(
        self,
        device: PlainDevice,
        into: DeviceReference,
        shape: tuple[int, int],
        steps: tuple[int, int],
        operands: Mapping[str, Array],
    ) -> None:
        """Make the results of the sums that a device holds.

        Args:
            shape: rows, each of which has a value of the bias, and columns.
            steps: elements from one row, and from one column, to the next.
            operands: float32, with those of `operands` by name.
        """
        if self is Epilogue.NONE:
            return
        nothing = np.zeros(1, np.float32)
        added = (device.upload(operands.get(name, nothing)) for name in ("bias", "residual"))
        does = (self.has_residual, self is Epilogue.BIAS_RELU, self is Epilogue.BIAS_GELU)
        warps, found = ceil_div(shape[0] * shape[1], WARP), (into.exact, into.magnitude)
        device.run("reference.cu:spmm_epilogue", warps, *shape, *steps, *map(int, does), *added, *found)


def gelu(x: Array) -> Array:
    """x · Φ(x) in float64 (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016)."""
    from scipy.special import erf

    result: Array = 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))
    return result
