"""Traits of masked convolutions besides their sizes: masks, treatment of the rest, epilogues, memory order."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from sparsegen.operators.base.epilogue import BiasEpilogue
from sparsegen.system.numpy_types import Array


class MaskOf(StrEnum):
    """The meaning of the mask: blocks of the input that are nonzero, or that count, or blocks of the output to compute.

    With ``INPUT`` the caller makes sure that x is zero elsewhere; with ``ANY_INPUT`` x counts as zero there, whatever
    it holds.
    """

    INPUT = "input"
    OUTPUT = "output"
    ANY_INPUT = "any_input"

    @property
    def is_of_input(self) -> bool:
        """True if the mask lies over the input."""
        return self is not MaskOf.OUTPUT


class Given(StrEnum):
    """The time at which mask, filters and bias were written.

    ``LATEST``: perhaps by the kernel before on the stream. ``EARLIER``: all was written before that kernel began its
    own work, as in a chain of convolutions whose masks are made beforehand; then a kernel may read them while the one
    before still ends (programmatic dependent launch).
    """

    LATEST = "latest"
    EARLIER = "earlier"


class ConvEpilogue(BiasEpilogue):
    """The operation on a sum before it is stored, in float32; the bias has one value for each output channel.

    SiLU is x / (1 + exp(-x)). A residual has the output's shape.
    """

    NONE = "none"
    BIAS = "bias"
    BIAS_RELU = "bias_relu"
    BIAS_SILU = "bias_silu"
    BIAS_RESIDUAL = "bias_residual"


class ImageLayout(StrEnum):
    """Memory order of images, of their result and of the residual, from the outermost dimension to the innermost.

    ``NHWC``: images × rows × columns × channels (PyTorch's ``channels_last``). ``NCHW``: images × channels × rows ×
    columns. Filters lie as filters × rows × columns × channels with either.
    """

    NHWC = "nhwc"
    NCHW = "nchw"

    @property
    def has_planes(self) -> bool:
        """True if the channels of an image lie in planes of their own."""
        return self is ImageLayout.NCHW

    def shape(self, height: int, width: int, channels: int) -> tuple[int, int, int]:
        """An image of these sizes, as stored."""
        return (channels, height, width) if self.has_planes else (height, width, channels)

    def by_pixels(self, stored: Array) -> Array:
        """Height × width × channels of stored images; leading dimensions stay."""
        return np.moveaxis(stored, -3, -1) if self.has_planes else stored

    def stored(self, image: Array) -> Array:
        """An image of height × width × channels in the order in which it is stored."""
        return np.ascontiguousarray(np.moveaxis(image, -1, -3)) if self.has_planes else image
