"""``sdd`` whose warps compute live blocks alone: scope, walks of the contraction, maps, heuristics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import family
from sparsegen.operators import Block, Density, DType, FactorType, Layout, Rest, SddProblem
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.variants import Variant

H100 = replace(device(), multiprocessors=132)
SDD = SddProblem(4096, 4096, 4096, DType.FLOAT16, Block(16, 16), Density(0.1))
FOUND: Any = family("tma_block_sdd")


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (replace(SDD, dtype=DType.FLOAT32), "warps multiply 16-bit elements"),
        (replace(SDD, factor_type=FactorType.E5M2_E4M3), "warps multiply 16-bit elements"),
        (replace(SDD, block=Block(32, 64)), "blocks (32x64) have sides of 16 or 32"),
        (replace(SDD, n=100), "rows of the arrays (k = 4096, n = 100 elements) are whole chunks of 16 bytes"),
    ],
)
def test_scope(problem: SddProblem, sentence: str) -> None:
    assert [c.sentence for c in FOUND.scope(problem) if not c.holds] == [sentence]
    assert FOUND.computes(replace(SDD, m=4097, block=Block(32, 16)))


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("changed", "tile"),
    [
        ({"density": Density(1.0)}, (256, 512)),  # four walks
        ({"density": Density(0.4), "rest": Rest.KEPT, "w_layout": Layout.COLUMN}, (256, 256)),
        ({"density": Density(1.0), "block": Block(32, 32), "dtype": DType.BFLOAT16}, (256, 256)),
        ({"density": Density(0.6), "block": Block(32, 16), "w_layout": Layout.COLUMN}, (128, 512)),
        ({"density": Density(0.7), "block": Block(16, 32), "batch": 2}, (256, 128)),
        ({"density": Density(0.4), "m": 600, "k": 1032}, (256, 256, 2)),
        ({"density": Density(0.9), "w_layout": Layout.COLUMN, "batch": 2}, (64, 256, 2)),
        ({"density": Density(0.01), "m": 600, "k": 1032}, (64, 128)),  # tiles without a live block
    ],
    ids=("all", "kept", "large-blocks", "high-blocks", "batch", "pairs", "unequal-pairs", "sparse"),
)
def test_tiles_are_walked_until_all_blocks_are_computed(
    emulator_toolchain: EmulatorToolchain, changed: dict[str, Any], tile: tuple[int, ...]
) -> None:
    problem = replace(SDD, **{"m": 170, "k": 328, "n": 136, **changed})
    config = FOUND.config(**dict(zip(("tile_m", "tile_n", "cluster"), tile, strict=False)))
    assert not FOUND.broken_constraints(problem, config, H100)
    source = render(FOUND, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FOUND.name, FOUND.entry, source)
    matrix = problem.without_pattern
    variant = Variant(FOUND, config, Kind(SddProblem, (), ()), (), source)
    run_and_compare(variant, kernel, problem, matrix, FOUND.pack(problem, config, matrix), where=str(config))


def test_boxes_are_rows_of_blocks_of_d_and_64_columns_of_w() -> None:
    problem, config = replace(SDD, m=1000, k=520, n=712, block=Block(32, 16)), FOUND.config()
    for layout, w in ((Layout.ROW, (712, 520)), (Layout.COLUMN, (520, 712))):
        maps = {name: FOUND.tensor_map(replace(problem, w_layout=layout), config, name) for name in "dw"}
        assert (maps["d"].sizes, maps["d"].box) == ((712, 1000), (64, 32))
        assert (maps["w"].sizes, maps["w"].box) == (w, (64, 64))


def test_small_results_have_small_tiles() -> None:
    problem = replace(SDD, m=1024, k=1024, n=1024)
    found = FOUND.heuristic(problem, problem.features(problem.without_pattern), H100)
    assert FOUND.launch(problem, found, {}, H100).grid[0] >= 64


def test_tiles_are_larger_the_fewer_blocks_are_live() -> None:
    def area(density: float) -> int:
        problem = replace(SDD, m=16384, k=16384, density=Density(density))
        found = FOUND.heuristic(problem, problem.features(problem.without_pattern), H100)
        return int(found.tile_m * found.tile_n)

    assert area(0.1) == 256 * 512
    assert area(0.1) > area(0.9)
