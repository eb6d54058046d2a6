"""The heuristic of `panel_sddmm`, how it shares out work and when it is preferred, beyond the contract tests."""

from __future__ import annotations

import pytest

from sparsegen.kernels import by_predicted_time, family
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, SddmmProblem
from sparsegen.testing.matrices import matrices

FAMILY = family("panel_sddmm")
H100 = Device("h100", "H100", "cuda", (9, 0), 132, 232448, 233472, 50 << 20)
A100 = Device("a100", "A100", "cuda", (8, 0), 108, 166912, 167936, 40 << 20)
V100 = Device("v100", "V100", "cuda", (7, 0), 80, 98304, 98304, 6 << 20)


def test_sorting_lets_subwarps_end_together() -> None:
    matrix = matrices()["every_row_length"]
    problem = SddmmProblem(*matrix.shape, 32)
    sizes = {
        order: FAMILY.pack(problem, FAMILY.config(row_order=order), matrix).arrays["indices"].size
        for order in ("natural", "sorted")
    }
    assert matrix.nnz <= sizes["sorted"] < sizes["natural"]


def test_blocks_share_out_panels_and_items() -> None:
    matrix = random_uniform(16384, 2048, 0.02, seed=0)
    for batch in (1, 4, 1000):
        problem = SddmmProblem(16384, 2048, 64, batch=batch)
        for turns in (1, 4):
            config = FAMILY.config(panel_n=256, turns=turns)
            launch = FAMILY.launch(problem, config, FAMILY.pack(problem, config, matrix).sizes, H100)
            x, panels, items = launch.grid
            assert (panels, items) == (8, batch)
            assert x * panels * items <= turns * 132 or x == 1
            assert (x + 1) * panels * items > turns * 132


def test_heuristics_keep_panels_in_proportion() -> None:
    def heuristic(
        m: int, n: int, k: int, density: float, dtype: DType = DType.FLOAT32, device: Device = H100
    ):  # type: ignore[no-untyped-def]
        problem = SddmmProblem(m, n, k, dtype)
        config = FAMILY.heuristic(problem, Features.of(random_uniform(m, n, density, seed=0)), device)
        assert not FAMILY.broken_constraints(problem, config, device)
        return config

    large, small = heuristic(4096, 4096, 64, 0.1), heuristic(1024, 1024, 64, 0.1)
    assert large.panel_n > small.panel_n, "a small product does not pay for large panels"
    assert large.threads_per_strip == heuristic(1024, 1024, 128, 0.1).threads_per_strip == 4
    assert heuristic(1024, 1024, 128, 0.1, DType.FLOAT16).threads_per_strip == 8, "conversions need registers"
    assert heuristic(512, 512, 3, 0.1).threads_per_strip == 2, "short dot products"
    ragged = heuristic(2321, 1640, 178, 0.27)
    assert ragged.threads_per_strip == 8, (
        "two threads would take the least memory, and have too few registers"
    )
    assert ragged.panel_n > 64
    heuristic(1024, 1024, 512, 0.1, device=A100)
    heuristic(1024, 1024, 1024, 0.1, DType.BFLOAT16, device=A100)


@pytest.mark.parametrize(
    ("k", "density", "preferred"),
    [(64, 0.1, True), (64, 0.05, True), (128, 0.05, True), (64, 0.001, False), (1024, 0.1, False)],
)
def test_it_is_preferred_where_panels_hold_many_nonzeros_of_a_row(
    k: int, density: float, preferred: bool
) -> None:
    features = Features.of(random_uniform(4096, 4096, density, seed=0))
    assert (by_predicted_time(SddmmProblem(4096, 4096, k), features, H100)[0] is FAMILY) == preferred


def test_long_rows_and_older_devices_are_told() -> None:
    assert not FAMILY.computes(SddmmProblem(64, 64, 513))
    assert FAMILY.computes(SddmmProblem(64, 64, 513, DType.FLOAT16))
    broken = FAMILY.broken_constraints(SddmmProblem(64, 64, 513), FAMILY.config(), V100)
    assert any("a row of B (2052 bytes) has at most 2048 bytes" in sentence for sentence in broken)
    assert any("(7.0) has compute capability 8.0 or later" in sentence for sentence in broken)
