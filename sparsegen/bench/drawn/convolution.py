"""Convolutions of images with masks of spatial blocks, and their gradients by the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sparsegen.bench.drawn.distribution import Distribution, Row
from sparsegen.bench.drawn.draw import Draw
from sparsegen.bench.patterns.patterns import Blobs, Drawn, Pattern
from sparsegen.operators import (
    ConvEpilogue,
    Density,
    Dilation,
    DType,
    FilterSize,
    Groups,
    ImageLayout,
    MaskBlock,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    MaskOf,
    Padding,
    Problem,
    Stride,
)
from sparsegen.system.integers import round_up

EACH = 0  # groups of depthwise convolutions: as many as channels
BLOCKS = ("8", "16", "32", "64", "128", "8x16", "16x8", "12x20")


class Convolution(Distribution):
    """Distribution of masked convolutions, shared by both operators."""

    words: ClassVar[Mapping[str, str]] = {
        "sizes": "1 to 16 images of 30 to 1920 rows and columns, 3 to 512 channels, 8 to 512 filters; a first "
        "layer's 3 "
        "channels in one of ten",
        "filters": "3 × 3 in half of the rows, else 1 × 1, 5 × 5, 7 × 7, 2 × 2, 3 × 1, 1 × 7; strides 1 (three "
        "of five), 2 and "
        "3; padded to the image's size in four of five, else not; dilation 2 in one of twelve; two groups, four, or "
        "one for each of as many filters as channels in one of twelve",
        "mask": "blocks of 8 to 128, some no squares; .02 to 1 of them live, all in one of eight; scattered, or "
        "blobs in "
        "half of the rows",
        "types": "float16, bfloat16, float32",
    }

    def fields(self, draw: Draw) -> dict[str, Any]:
        """Fields that both operators have, but for the images' number."""
        sides = draw.one_of(
            ((3, 3), (1, 1), (5, 5), (7, 7), (2, 2), (3, 1), (1, 7)), (6, 2, 1, 1, 0.7, 0.7, 0.6)
        )
        dilation = 2 if max(sides) > 1 and draw.chance(1 / 12) else 1
        same = tuple(dilation * (side - 1) // 2 for side in sides)
        groups = draw.one_of((2, EACH, 4, EACH)) if draw.chance(1 / 12) else 1
        channels = 3 if draw.chance(0.1) and groups == 1 else draw.size(9, 512)
        filters = draw.size(9, 512)
        if groups == EACH:
            groups = filters = channels
        channels, filters = (size if groups == 1 else round_up(size, groups) for size in (channels, filters))
        height = draw.size(30, 1080)
        return {
            "height": height,
            "width": min(1920, draw.size(max(30, height // 2), 2 * height)),
            "channels": channels,
            "filters": filters,
            "dtype": draw.one_of(list(DType), (2, 1, 1)),
            "filter_size": FilterSize(*sides),
            "stride": Stride.parse(draw.one_of((1, 2, 3), (6, 3, 1))),
            "padding": Padding(*(same if draw.chance(0.8) else (0, 0))),
            "dilation": Dilation(dilation, dilation),
            "groups": Groups(groups),
            "mask_block": MaskBlock.parse(draw.one_of(BLOCKS)),
            "density": Density(1.0 if draw.chance(1 / 8) else draw.share(0.02, 1.0)),
        }

    @staticmethod
    def mask(draw: Draw, problem: Problem) -> tuple[Pattern, str]:
        """Draws a pattern of masks, and returns a word for it."""
        shape = problem.matrix_shape
        if draw.chance(0.5):
            return Blobs(*shape, draw.one_of((2, 4, 8)), draw.seed()), "blobs"
        return Drawn(*shape), "scattered"

    def dense_flop(self, problem: Problem) -> float:
        forward = problem.forward if isinstance(problem, MaskedConv2dWeightsProblem) else problem
        assert isinstance(forward, MaskedConv2dProblem)
        outputs = forward.batch * forward.out_height * forward.out_width * forward.filters
        return 2.0 * outputs * forward.group_channels * forward.taps


class MaskedConv2d(Convolution):
    operator: ClassVar[str] = MaskedConv2dProblem.operator
    words: ClassVar[Mapping[str, str]] = {
        **Convolution.words,
        "own": "masks of the output, in one of three of any input; both memory orders, channels last in two of "
        "three; a bias in "
        "half of the rows",
    }

    def drawn(self, draw: Draw) -> Row:
        problem = MaskedConv2dProblem(
            **self.fields(draw),
            mask_of=draw.one_of((MaskOf.OUTPUT, MaskOf.ANY_INPUT), (2, 1)),
            epilogue=draw.one_of((ConvEpilogue.NONE, ConvEpilogue.BIAS)),
            batch=draw.whole(1, 16),
            layout=draw.one_of((ImageLayout.NHWC, ImageLayout.NCHW), (2, 1)),
        )
        return problem, *self.mask(draw, problem)


class MaskedConv2dWeights(Convolution):
    operator: ClassVar[str] = MaskedConv2dWeightsProblem.operator

    def drawn(self, draw: Draw) -> Row:
        problem = MaskedConv2dWeightsProblem(**self.fields(draw), images=draw.whole(1, 16))
        return problem, *self.mask(draw, problem)


DISTRIBUTIONS = (MaskedConv2d(), MaskedConv2dWeights())
