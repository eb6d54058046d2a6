"""SBNet's way in PyTorch: live blocks with their halo are gathered, convolved by cuDNN as a stack, and scattered."""

from __future__ import annotations

from typing import Any

from sparsegen.bench.baselines._torch import import_torch
from sparsegen.bench.baselines._torch_blocks import Blocks, TorchBlocks, window
from sparsegen.bench.baselines._torch_conv import Given
from sparsegen.bench.results.results import Kind
from sparsegen.measure.clock import Call


class TorchGatherConv(TorchBlocks):
    """Ren et al., SBNet, CVPR 2018, by PyTorch's indexing; a gather kernel of its own would be faster."""

    name, kind = "torch-gather-conv", Kind.SPARSE
    detail = "gather, cuDNN's fastest, scatter; list of blocks and padding for nothing"

    def convolution(self, given: Given) -> Call:
        convolve, blocks = import_torch().nn.functional.conv2d, Blocks(given)
        sides = {name: side for name, side in given.sides.items() if name != "padding"}

        def run() -> Any:
            tiles = window(blocks, given).permute(0, 3, 1, 2)
            found = convolve(tiles, given.filters, given.bias, groups=given.problem.groups.count, **sides)
            return blocks.stored(found.permute(0, 2, 3, 1))

        return run


BASELINE = TorchGatherConv()
