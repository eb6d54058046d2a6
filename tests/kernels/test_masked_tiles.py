"""Families of masked products on warps' tensor cores: their predicted times, beside the copy engine's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tuning_samples import H100

from sparsegen.kernels import families_of, family
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Layout,
    MaskedProblem,
    SddProblem,
)


def square(of: type[MaskedProblem], size: int, block: int = 128, density: float = 0.5) -> MaskedProblem:
    start = of(size, size, size, DType.FLOAT16)
    return replace(start, block=Block(block, block), density=Density(density))


@pytest.mark.parametrize(
    ("problem", "measured"),
    [
        (square(DsdProblem, 1024, density=1), 21.3),
        (square(DsdProblem, 1024, density=0.1), 9.4),
        (square(SddProblem, 1024, density=0.1), 19.2),
        (square(DsdTransposedProblem, 2048), 45.0),
        (square(DsdProblem, 2048, density=0.1), 18.2),
        (square(SddProblem, 2048, density=0.1), 50.7),
        (square(SddProblem, 2048, 32), 77.6),
        (square(DsdProblem, 4096, 32), 568),
        (square(SddProblem, 4096, 32), 548),
        (replace(square(DsdProblem, 2048), dtype=DType.FLOAT32, w_layout=Layout.COLUMN), 92.4),
    ],
    ids=str,
)
def test_predictions_are_near_what_an_h100_took(problem: MaskedProblem, measured: float) -> None:
    """Microseconds with a cold L2 on 2026-11-23."""
    found = family(f"mma_{problem.operator}")
    features = problem.features(problem.without_pattern)
    assert found.predicted_us(problem, features, H100) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("of", [DsdProblem, DsdTransposedProblem, SddProblem])
@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize("density", [1, 0.95, 0.8, 0.5, 0.1])
@pytest.mark.parametrize("block", [128, 64])
def test_the_copy_engine_s_families_are_taken_where_they_compute(
    of: type[MaskedProblem], size: int, density: float, block: int
) -> None:
    """An H100 took 1.4 to 2.2 times as long with `mma.sync` wherever both were measured."""
    problem = square(of, size, block, density)
    features = problem.features(problem.without_pattern)
    times = {f.name: f.predicted_us(problem, features, H100) for f in families_of(problem.operator)}
    assert min(times, key=lambda name: times[name]) == f"tma_{problem.operator}"
