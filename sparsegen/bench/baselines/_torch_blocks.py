"""Shared parts of the convolutions of gathered blocks by PyTorch: places of live blocks and of the pixels they read."""

from __future__ import annotations

from typing import Any

from sparsegen.bench.baselines._torch import import_torch, place
from sparsegen.bench.baselines._torch_conv import Given
from sparsegen.operators import MaskedConv2dProblem, MaskOf


class Blocks:
    """The live blocks of masks of the output.

    The list of blocks and the padded images are made beforehand, as favours to the baseline: their time counts for
    nothing.

    Attributes:
        results: images × rows × columns × filters, a whole number of blocks each way, zero where nothing is stored.
    """

    def __init__(self, given: Given) -> None:
        torch, p = import_torch(), given.problem
        block, size, stride = p.mask_block, p.filter_size, p.stride
        rows, columns = (
            count * side for count, side in zip(p.mask_shape, (block.rows, block.columns), strict=True)
        )
        reach = (
            (rows - 1) * stride.rows + p.dilation.rows * (size.rows - 1) + 1,
            (columns - 1) * stride.columns + p.dilation.columns * (size.columns - 1) + 1,
        )
        more = [
            max(0, wanted - side - padding)
            for wanted, side, padding in zip(
                reach, (p.height, p.width), (p.padding.rows, p.padding.columns), strict=True
            )
        ]
        margins = (p.padding.columns, more[1], p.padding.rows, more[0])
        padded = torch.nn.functional.pad(given.images, margins)
        self.pixels = padded.permute(0, 2, 3, 1).contiguous()
        self.image, self.row, self.column = given.live.nonzero(as_tuple=True)
        self.results = torch.zeros((p.batch, rows, columns, p.filters), dtype=padded.dtype, device=place())
        self._problem = p

    def outputs(self) -> tuple[Any, Any, Any]:
        """Images, rows and columns of the blocks' outputs, blocks × rows × columns each when they are broadcast."""
        block = self._problem.mask_block
        return (
            self.image[:, None, None],
            (self.row * block.rows)[:, None, None] + _count(block.rows)[:, None],
            (self.column * block.columns)[:, None, None] + _count(block.columns),
        )

    def stored(self, found: object) -> Any:
        """All results, with those of the blocks: blocks × rows × columns × filters."""
        p = self._problem
        self.results[self.outputs()] = found
        return self.results[:, : p.out_height, : p.out_width].permute(0, 3, 1, 2)


def _count(number: int) -> Any:
    """0, 1, 2, ... on the device."""
    return import_torch().arange(number, device=place())


def window_size(problem: MaskedConv2dProblem) -> tuple[int, int]:
    """Rows and columns of the pixels that a block's outputs read."""
    p, block, size = problem, problem.mask_block, problem.filter_size
    return (
        (block.rows - 1) * p.stride.rows + p.dilation.rows * (size.rows - 1) + 1,
        (block.columns - 1) * p.stride.columns + p.dilation.columns * (size.columns - 1) + 1,
    )


def window(blocks: Blocks, given: Given) -> Any:
    """The pixels with their halo that each block reads: blocks × rows × columns × channels."""
    p, block = given.problem, given.problem.mask_block
    rows, columns = window_size(p)
    top = (blocks.row * block.rows * p.stride.rows)[:, None, None] + _count(rows)[:, None]
    left = (blocks.column * block.columns * p.stride.columns)[:, None, None] + _count(columns)
    return blocks.pixels[blocks.image[:, None, None], top, left]


def taps(blocks: Blocks, given: Given) -> Any:
    """Gathers the pixels for the taps of each output: blocks × rows × columns × (taps and channels)."""
    p, torch = given.problem, import_torch()
    image, row, column = blocks.outputs()
    read = [
        blocks.pixels[
            image,
            row * p.stride.rows + r * p.dilation.rows,
            column * p.stride.columns + s * p.dilation.columns,
        ]
        for r in range(p.filter_size.rows)
        for s in range(p.filter_size.columns)
    ]
    return torch.cat(read, dim=-1)


def other_masks(problem: MaskedConv2dProblem) -> str | None:
    """Refuses masks of anything but the output, whose live blocks alone are computed."""
    return None if problem.mask_of is MaskOf.OUTPUT else "it takes masks of the output"
