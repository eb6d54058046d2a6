"""What is done to the result of a product before it is stored."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from sparsegen.operators.dtype import Array

GELU_GROWTH = 1.5  # of an error: its slope is at most 1.13, and evaluating it adds some roundings of x


class Epilogue(StrEnum):
    """What is done to C before it is stored, in float32; the bias has one value per row of C.

    GELU is the exact one, x · Φ(x) with the normal distribution Φ. A residual has C's shape and layout.
    """

    NONE = "none"
    BIAS = "bias"
    BIAS_RELU = "bias_relu"
    BIAS_GELU = "bias_gelu"
    BIAS_RESIDUAL = "bias_residual"

    @property
    def has_bias(self) -> bool:
        return self is not Epilogue.NONE

    @property
    def has_residual(self) -> bool:
        return self is Epilogue.BIAS_RESIDUAL


def gelu(x: Array) -> Array:
    """x · Φ(x) in float64 (Hendrycks and Gimpel, Gaussian Error Linear Units, 2016)."""
    from scipy.special import erf

    result: Array = 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))
    return result
