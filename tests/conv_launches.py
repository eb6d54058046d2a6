"""Launches of masked convolutions' families under the sanitizers, with small tiles, on masks that a test makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import families
from sparsegen.kernels.convolution.depthwise_conv import DepthwiseConvConfig
from sparsegen.kernels.convolution.halo_conv import HaloConvConfig
from sparsegen.kernels.convolution.halo_conv_weights import HaloConvWeightsConfig
from sparsegen.kernels.convolution.mma_conv import MmaConvConfig
from sparsegen.kernels.convolution.plane_conv import PlaneConvConfig
from sparsegen.kernels.convolution.strip_conv import StripConvConfig
from sparsegen.kernels.convolution.tile_conv import TileConvConfig
from sparsegen.kernels.convolution.window_conv import WindowConvConfig
from sparsegen.kernels.convolution.window_conv_weights import WindowConvWeightsConfig
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import MaskedConv2dProblem, MaskedConv2dWeightsProblem, MaskOf
from sparsegen.render import render
from sparsegen.testing.launches import call
from sparsegen.verify.bounds import worst_error

# Small tiles of each family.
HALO = HaloConvConfig(tile_n=32, chunk=16, group_units=1, input_stages=2, weight_stages=3)
MMA = MmaConvConfig(tile_m=64, tile_n=32, step=16, warps_m=2, warps_n=1, stages=2, resident=1)
WINDOW = WindowConvConfig(tile_m=64, tile_n=32, chunk=16, warps_m=2, warps_n=1, stages=2, resident=1)
PLANE = PlaneConvConfig(tile_m=64, tile_n=32, chunk=16, warps_m=2, warps_n=1, resident=1)
TILE = TileConvConfig(tile_n=32, step=8)
DEPTHWISE = DepthwiseConvConfig(2, 4, 2, channel_threads=8, threads=64)
DEPTHWISE_PLANES = DepthwiseConvConfig(threads=64)
STRIP = StripConvConfig(units_down=2, units_across=4, threads=128)
HALO_WEIGHTS = HaloConvWeightsConfig(tile_m=128, tile_n=64, tap_rows=3, stages=2, parts=3)
HALO_WEIGHTS_IN_TURNS = replace(HALO_WEIGHTS, tile_m=64, stages=4)
WINDOW_WEIGHTS = WindowConvWeightsConfig(
    tile_m=32, tile_n=16, taps=3, warps_m=2, warps_n=1, warps_k=1, stages=2, parts=4
)


def worst(
    p: MaskedConv2dProblem | MaskedConv2dWeightsProblem,
    config: Any,
    toolchain: EmulatorToolchain,
    blocks: np.ndarray | None = None,
    multiprocessors: int = 3,
) -> float:
    """Returns the largest error over its bound, of a launch on ``multiprocessors`` multiprocessors."""
    family = families()[config.declared_by]
    assert not family.broken_constraints(p, config, device())
    matrix = p.without_pattern
    given = p.random_operands(np.random.default_rng(0), 0)
    if blocks is not None:
        given["mask"] = words_of(blocks).reshape(given["mask"].shape)
        if isinstance(p, MaskedConv2dProblem) and p.mask_of is MaskOf.INPUT:
            assert p.batch == 1
            p.layout.by_pixels(given["x"])[~p.live(given["mask"])] = 0
    packed = family.pack(p, config, matrix)
    prepared = call(family, p, config, packed, given, 0)
    launch = family.launch(p, config, packed.sizes, replace(device(), multiprocessors=multiprocessors))
    kernel = toolchain.compile_sanitized(family.name, family.entry, render(family, p, config))
    arrays = run_sanitized(kernel.binary, launch, prepared.arguments)
    return worst_error(p.reference(matrix, given), arrays[prepared.result])


def conv(height: int, width: int, **fields: Any) -> MaskedConv2dProblem:
    """A small problem; fields as of `MaskedConv2dProblem.of`."""
    usual = {"channels": 16, "filters": 32, "dtype": "float16", "mask_block": 8}
    return MaskedConv2dProblem.of((height, width), **{**usual, **fields})


def weights(height: int, width: int, **fields: Any) -> MaskedConv2dWeightsProblem:
    """The gradient of a small one by its weights."""
    usual = {"channels": 16, "filters": 32, "images": 1, "dtype": "float16", "mask_block": 8}
    return MaskedConv2dWeightsProblem.of((height, width), **{**usual, **fields})
