"""What tells masked convolutions apart beside their sizes: whose mask it is, what becomes of the rest, epilogues."""

from __future__ import annotations

from enum import StrEnum


class MaskOf(StrEnum):
    """What the mask says: which blocks of the input are not zero, or which blocks of the output are wanted."""

    INPUT = "input"
    OUTPUT = "output"


class ConvEpilogue(StrEnum):
    """What is done to a sum before it is stored, in float32; the bias has one value for each output channel.

    SiLU is x / (1 + exp(-x)). A residual has the output's shape.
    """

    NONE = "none"
    BIAS = "bias"
    BIAS_RELU = "bias_relu"
    BIAS_SILU = "bias_silu"
    BIAS_RESIDUAL = "bias_residual"

    @property
    def has_bias(self) -> bool:
        return self is not ConvEpilogue.NONE

    @property
    def has_residual(self) -> bool:
        return self is ConvEpilogue.BIAS_RESIDUAL
