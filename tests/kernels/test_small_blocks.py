"""``dsd`` and ``dsd_transposed`` in small blocks: scope, results, boxes, heuristics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from product_launches import compare

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    FactorType,
    Layout,
    MaskedProblem,
)

H100 = replace(device(), multiprocessors=132)
DSD = DsdProblem(4096, 4096, 4096, DType.FLOAT16, Block(16, 16), Density(0.1))
TRANSPOSED = DsdTransposedProblem(4096, 4096, 4096, DType.FLOAT16, Block(16, 16), Density(0.1))


def of(problem: MaskedProblem) -> Any:
    return family(f"tma_block_{problem.operator}")


@pytest.mark.parametrize("problem", [DSD, TRANSPOSED])
def test_scope(problem: MaskedProblem) -> None:
    def said(changed: MaskedProblem) -> list[str]:
        return [c.sentence for c in of(problem).scope(changed) if not c.holds]

    assert said(replace(problem, dtype=DType.FLOAT32)) == ["warps multiply 16-bit elements"]
    assert said(replace(problem, factor_type=FactorType.E4M3)) == ["warps multiply 16-bit elements"]
    assert said(replace(problem, block=Block(64, 32))) == ["blocks (64x32) have sides of 16 or 32"]
    assert said(replace(problem, n=100)) == [
        "rows of both matrices (4096 and 100 elements) are whole chunks of 16 bytes"
    ]
    assert not said(replace(problem, m=4097))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("problem", "tile_n"),
    [
        (replace(DSD, m=170, k=328, n=264), 256),
        (replace(DSD, m=70, k=2056, n=33, w_layout=Layout.COLUMN, block=Block(32, 16)), 64),
        (
            replace(DSD, m=170, k=136, n=70, w_layout=Layout.COLUMN, epilogue=Epilogue.BIAS_GELU, batch=2),
            128,
        ),
        (replace(DSD, m=300, k=200, n=264, epilogue=Epilogue.BIAS_RESIDUAL, dtype=DType.BFLOAT16), 128),
        (replace(TRANSPOSED, m=170, k=328, n=136), 256),
        (replace(TRANSPOSED, m=2051, k=40, n=72, y_layout=Layout.COLUMN, block=Block(16, 32)), 128),
        (replace(TRANSPOSED, m=90, k=72, n=80, batch=3, block=Block(32, 32)), 64),
        (replace(DSD, m=200, k=640, n=64, density=Density(0.01)), 64),  # tiles without a live block
        (replace(DSD, m=200, k=256, n=128, density=Density(1.0), block=Block(32, 32)), 128),
    ],
)
def test_results(emulator_toolchain: EmulatorToolchain, problem: MaskedProblem, tile_n: int) -> None:
    if problem.density.share == 0.1:
        problem = replace(problem, density=Density(0.4))
    compare(emulator_toolchain, problem, of(problem).config(tile_n=tile_n), H100)


def test_boxes_are_of_one_block_along_the_contraction() -> None:
    for problem, wanted in (
        (DSD, ((4096, 4096), (64, 16), 128)),
        (replace(DSD, n=512, w_layout=Layout.COLUMN), ((4096, 512), (16, 128), 32)),
        (replace(TRANSPOSED, m=72, n=40, block=Block(32, 16)), ((40, 72), (64, 32), 128)),
    ):
        found = of(problem)
        [name] = found.mapped_names
        box = found.tensor_map(problem, found.config(tile_n=128), name)
        assert (box.sizes, box.box, int(box.swizzle)) == wanted


@pytest.mark.parametrize("problem", [DSD, TRANSPOSED])
def test_small_results_have_narrow_tiles(problem: MaskedProblem) -> None:
    def tile_n(some: MaskedProblem) -> int:
        return int(of(some).heuristic(some, some.features(some.without_pattern), H100).tile_n)

    assert tile_n(problem) == 256
    assert tile_n(replace(problem, m=1024, k=1024, n=1024)) == 64
