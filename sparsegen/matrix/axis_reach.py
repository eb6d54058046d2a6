"""Blocks of a layer's images along one axis, and the blocks of the layer before whose pixels they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from sparsegen.matrix.spatial_mask import Reach
from sparsegen.system.integers import ceil_div

Side = tuple[int, int]


@dataclass(frozen=True, slots=True)
class AxisReach:
    """Geometry of blocks that read pixels along an axis.

    A block reads from where it begins, in pixels of the input, less `before`, to where it ends and `after` more.

    Attributes:
        pixels, block: of the input, and of a block of its mask.
        out_pixels, out_block: likewise of the output.
        steps, per: `steps` pixels of the input lie under `per` of the output.
        before, after: see above; either may be negative.
    """

    pixels: int
    block: int
    out_pixels: int
    out_block: int
    steps: int
    per: int
    before: int
    after: int

    @property
    def blocks(self) -> int:
        return ceil_div(self.pixels, self.block)

    @property
    def out_blocks(self) -> int:
        return ceil_div(self.out_pixels, self.out_block)

    @property
    def numbers(self) -> Sequence[int]:
        """The kernel's arguments of an axis."""
        return astuple(self)

    @classmethod
    def of_window(cls, axis: int, size: Side, block: Side, reach: Reach) -> AxisReach | None:
        """Blocks of a convolution's or a pool's result, of as many pixels as the input's.

        Args:
            axis: 0 along the rows of the input, whose size and blocks these are; 1 along the columns.

        Returns:
            None where a window steps over a whole block, so that what it reads is no interval of blocks.

        Raises:
            MatrixError: the window does not fit.
        """
        pixels, side, out = size[axis], block[axis], reach.output_size(size)[axis]
        window, stride = reach.dilation[axis] * (reach.kernel[axis] - 1), reach.stride[axis]
        last = (pixels - 1) % side + 1  # pixels of the last block, which may be cut off
        if max(reach.dilation[axis] if reach.kernel[axis] > 1 else 1, stride - window) > min(side, last):
            return None
        after = window - reach.padding[axis] - stride + 1
        return cls(pixels, side, out, side, stride, 1, reach.padding[axis], after)

    @classmethod
    def of_scene(cls, pixels: int, block: int, out_pixels: int, margin: int = 0) -> AxisReach:
        """Blocks of the same scene in other pixels, of as many as the input's.

        Args:
            margin: pixels that a block reads further on each side.
        """
        return cls(pixels, block, out_pixels, block, pixels, out_pixels, margin, margin)
