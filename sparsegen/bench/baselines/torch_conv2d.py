"""Convolutions by PyTorch: dense, or of the live blocks alone, gathered as images or laid out as a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsegen.bench.baselines._torch import import_torch
from sparsegen.bench.baselines._torch_blocks import Blocks, other_masks, taps, window
from sparsegen.bench.baselines._torch_conv import Given, TorchConvolution
from sparsegen.bench.results.results import Kind
from sparsegen.operators import MaskedConv2dProblem


def dense(given: Given) -> Callable[[], Any]:
    """cuDNN's convolution. With a mask of the output, it computes the rest too."""
    convolve, groups = import_torch().nn.functional.conv2d, given.problem.groups.count
    return lambda: convolve(given.images, given.filters, given.bias, groups=groups, **given.sides)


def gathered(given: Given) -> Callable[[], Any]:
    """Live blocks with their halo, convolved by cuDNN as a stack, and scattered: Ren et al., SBNet, CVPR 2018.

    By PyTorch's indexing; a gather kernel of its own is `kernel-gather-conv`.
    """
    convolve, blocks = import_torch().nn.functional.conv2d, Blocks(given)
    sides = {name: side for name, side in given.sides.items() if name != "padding"}

    def run() -> Any:
        tiles = window(blocks, given).permute(0, 3, 1, 2)
        found = convolve(tiles, given.filters, given.bias, groups=given.problem.groups.count, **sides)
        return blocks.stored(found.permute(0, 2, 3, 1))

    return run


def as_matrix(given: Given) -> Callable[[], Any]:
    """Shah and Nair, Block Sparse Convolution (CS6023 report): im2col over active blocks, a product, col2im."""
    blocks = Blocks(given)
    weights = given.filters.permute(0, 2, 3, 1).reshape(given.problem.filters, -1).t()

    def run() -> Any:
        found = taps(blocks, given) @ weights
        return blocks.stored(found if given.bias is None else found + given.bias)

    return run


def other_masks_or_groups(problem: MaskedConv2dProblem) -> str | None:
    """Refuses several groups too."""
    several = "it has one product, of one group" if problem.groups.count > 1 else None
    return other_masks(problem) or several


BASELINES = (
    TorchConvolution("torch-conv2d", Kind.DENSE, "cuDNN's fastest, dense", dense),
    TorchConvolution(
        "torch-gather-conv",
        Kind.SPARSE,
        "gather, cuDNN's fastest, scatter; list of blocks and padding for nothing",
        gathered,
        other_masks,
    ),
    TorchConvolution(
        "torch-im2col",
        Kind.SPARSE,
        "im2col of live blocks, matmul, scatter; list of blocks and padding for nothing",
        as_matrix,
        other_masks_or_groups,
    ),
)
