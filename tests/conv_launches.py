"""Launches of masked convolutions' families under the sanitizers, on masks that a test makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import families
from sparsegen.matrix.spatial_mask import words_of
from sparsegen.operators import MaskedConv2dProblem, MaskedConv2dWeightsProblem, MaskOf
from sparsegen.render import render
from sparsegen.testing.launches import call
from sparsegen.verify.bounds import worst_error


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
