"""Families of masked products on warps' tensor cores: their predicted times, beside those of TMA."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from product_launches import compare
from tuning_samples import H100

from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import families_of, family
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Layout,
    MaskedProblem,
    Rest,
    SddProblem,
)


def square(of: type[MaskedProblem], size: int, block: int = 128, density: float = 0.5) -> MaskedProblem:
    start = of(size, size, size, DType.FLOAT16)
    return replace(start, block=Block(block, block), density=Density(density))


TF32 = replace(square(DsdProblem, 2048), dtype=DType.FLOAT32, w_layout=Layout.COLUMN)


@pytest.mark.parametrize(
    ("problem", "tiles", "measured"),
    [
        (square(DsdProblem, 1024, density=1), (64, 64, 32, 2, 2, 3), 21.3),
        (square(DsdProblem, 1024, density=0.1), (64, 64, 32, 2, 2, 3), 9.4),
        (square(SddProblem, 1024, density=0.1), (64, 64, 32, 2, 2, 3), 19.2),
        (square(DsdProblem, 2048, 32), (64, 256, 32, 1, 4, 4), 61),
        (square(SddProblem, 2048, 32), (128, 128, 32, 2, 2, 4), 72.4),
        (square(DsdProblem, 4096, density=1), (128, 256, 64, 2, 4, 3), 393),
        (square(DsdTransposedProblem, 4096), (128, 256, 64, 2, 4, 3), 208),
        (square(SddProblem, 4096), (128, 128, 64, 2, 2, 3), 231),
        (square(DsdProblem, 4096, 32), (64, 256, 32, 1, 4, 4), 376),
        (square(SddProblem, 4096, 32), (32, 256, 32, 1, 4, 4), 1069),
        (TF32, (128, 128, 16, 2, 4, 3), 92.4),
    ],
    ids=str,
)
def test_predictions_are_near_what_an_h100_took(
    problem: MaskedProblem, tiles: tuple[int, ...], measured: float
) -> None:
    """Microseconds with a cold L2 on 2026-11-23."""
    found = family(f"mma_{problem.operator}")
    names = ("tile_m", "tile_n", "step", "warps_m", "warps_n", "stages")
    config = found.config(**dict(zip(names, tiles, strict=True)))
    features = problem.features(problem.without_pattern)
    assert found.analytic_us(problem, features, config, H100) == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(
    ("problem", "tiles"),
    [
        (square(DsdProblem, 4096), (128, 256, 64, 3, True)),
        (square(DsdTransposedProblem, 2048), (128, 128, 64, 3, True)),
        (square(DsdProblem, 4096, 32), (64, 256, 32, 5, False)),
        (square(SddProblem, 4096), (128, 128, 64, 3, True)),
        (square(SddProblem, 4096, 32), (128, 256, 64, 2, False)),
        (square(DsdProblem, 1024, 16), (32, 128, 32, 5, False)),
        (TF32, (128, 128, 32, 3, False)),
    ],
    ids=str,
)
def test_tiles_to_start_with(problem: MaskedProblem, tiles: tuple[int, int, int, int, bool]) -> None:
    found = family(f"mma_{problem.operator}")
    features = problem.features(problem.without_pattern)
    config = found.heuristic(problem, features, H100)
    assert (config.tile_m, config.tile_n, config.step, config.stages, config.ahead) == tiles
    small = replace(H100, shared_memory_per_block=101_376)
    assert not found.broken_constraints(problem, found.heuristic(problem, features, small), small)


@pytest.mark.parametrize("of", [DsdProblem, DsdTransposedProblem, SddProblem])
@pytest.mark.parametrize(
    ("size", "density"),
    [
        (size, density)
        for size in (1024, 2048, 4096, 8192)
        for density in (1, 0.95, 0.8, 0.5, 0.1)
        if size * density > 200
    ],
)
@pytest.mark.parametrize("block", [128, 64])
def test_the_copy_engine_s_families_are_taken_where_they_compute(
    of: type[MaskedProblem], size: int, density: float, block: int
) -> None:
    """An H100 took 1.4 to 2.2 times as long with `mma.sync` wherever both were measured. With less than these, both
    are expected to take some 8 µs, half of them for the launch.
    """
    problem = square(of, size, block, density)
    features = problem.features(problem.without_pattern)
    computing = [f for f in families_of(problem.operator) if f.computes(problem)]
    times = {f.name: f.predicted_us(problem, features, H100) for f in computing}
    assert min(times, key=lambda name: times[name]) == f"tma_{problem.operator}"


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("of", "changed", "tunables"),
    [
        (DsdProblem, {}, {"tile_m": 64, "tile_n": 64, "step": 64, "warps_n": 2}),
        (
            DsdTransposedProblem,
            {"block": Block(16, 32)},
            {"tile_m": 128, "tile_n": 64, "step": 64, "warps_n": 2},
        ),
        (
            DsdProblem,
            {"block": Block(32, 16)},
            {"tile_m": 32, "tile_n": 64, "step": 32, "stages": 4, "warps_m": 1},
        ),
        (SddProblem, {}, {"tile_m": 64, "tile_n": 128, "step": 32, "warps_n": 2}),
    ],
    ids=("two-blocks", "four-blocks", "zeros-behind", "sampled"),
)
@pytest.mark.parametrize("ahead", [False, True])
def test_steps_of_several_blocks(
    emulator_toolchain: EmulatorToolchain,
    of: type[MaskedProblem],
    changed: dict[str, Any],
    tunables: dict[str, Any],
    ahead: bool,
) -> None:
    """Live blocks of the mask are put together to steps, and warps skip the dead ones."""
    problem = replace(of(200, 144, 272, DType.FLOAT16), block=Block(32, 32), density=Density(0.4))
    compare_mma(emulator_toolchain, replace(problem, **changed), ahead=ahead, **tunables)


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("problem", "tunables"),
    [
        (DsdProblem(200, 145, 271, DType.FLOAT16), {"tile_m": 64, "tile_n": 256, "step": 64}),
        (
            DsdProblem(70, 131, 33, DType.BFLOAT16, Block(32, 16), w_layout=Layout.COLUMN, batch=3),
            {"step": 64},
        ),
        (DsdProblem(200, 146, 278, DType.FLOAT16, Block(16, 32)), {"tile_m": 64, "step": 64}),
        (DsdTransposedProblem(99, 203, 67, DType.BFLOAT16, Block(16, 32), batch=3), {"step": 64}),
        (DsdTransposedProblem(99, 203, 67, DType.FLOAT16, Block(16, 16)), {"tile_n": 64, "step": 32}),
        (DsdTransposedProblem(5, 3, 1, DType.FLOAT16, Block(64, 64)), {"tile_m": 64, "tile_n": 32}),
        (SddProblem(150, 130, 77, DType.FLOAT16, Block(32, 32), batch=3), {"tile_n": 64, "stages": 4}),
        (SddProblem(90, 131, 3, DType.BFLOAT16, Block(32, 64), w_layout=Layout.COLUMN), {"tile_m": 32}),
        (SddProblem(90, 131, 5, DType.BFLOAT16, w_layout=Layout.COLUMN, batch=3), {"tile_m": 64}),
    ],
    ids=str,
)
@pytest.mark.parametrize("ahead", [False, True])
def test_rows_that_begin_anywhere(
    emulator_toolchain: EmulatorToolchain, problem: MaskedProblem, tunables: dict[str, Any], ahead: bool
) -> None:
    """Their chunks are copied as they lie and then shifted. Batch elements begin within a chunk too."""
    problem = replace(problem, density=Density(0.4))
    compare_mma(emulator_toolchain, problem, ahead=ahead, **{"tile_n": 128, "warps_n": 2, **tunables})


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("problem", "tunables"),
    [
        (DsdProblem(40, 300, 72, DType.FLOAT16, Block(32, 32)), {"parts": 8, "ahead": True}),
        (DsdTransposedProblem(333, 70, 40, batch=2, y_layout=Layout.COLUMN), {"parts": 4, "step": 16}),
        (SddProblem(90, 131, 405, DType.BFLOAT16, Block(32, 64), rest=Rest.KEPT), {"parts": 2, "tile_m": 32}),
        (SddProblem(90, 132, 16), {"parts": 8}),
    ],
    ids=str,
)
def test_parts_of_a_contraction(
    emulator_toolchain: EmulatorToolchain, problem: MaskedProblem, tunables: dict[str, Any]
) -> None:
    """A cluster shares the steps of a tile, and its first block adds up their sums."""
    problem = replace(problem, density=Density(0.4))
    compare_mma(emulator_toolchain, problem, **{"tile_m": 64, "tile_n": 64, "warps_n": 2, **tunables})


def compare_mma(toolchain: EmulatorToolchain, problem: MaskedProblem, **tunables: Any) -> None:
    """Hold a config's result under the sanitizers against the reference."""
    compare(toolchain, problem, family(f"mma_{problem.operator}").config(**tunables), H100)
