"""The heuristics of the row-wise families for rows of any length."""

from __future__ import annotations

import pytest

from sparsegen.backends.emulator import device
from sparsegen.kernels import family
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, SoftmaxBackwardProblem, SoftmaxProblem
from tests.tuning_samples import H100

PROBLEMS = {"row_softmax": SoftmaxProblem, "row_softmax_backward": SoftmaxBackwardProblem}


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("name", PROBLEMS)
def test_heuristics_are_valid_for_rows_of_any_length(name: str, dtype: DType) -> None:
    for power in range(16):
        length = 3 << power
        features = Features(64, 1 << 18, 64 * length, float(length), 0.0, length, 0.5)
        problem = PROBLEMS[name](64, 1 << 18, dtype)
        heuristic = family(name).heuristic(problem, features, device())
        assert not family(name).broken_constraints(problem, heuristic, device()), length


@pytest.mark.parametrize(
    ("name", "dtype", "rows", "mean", "cov", "config"),
    [
        ("row_softmax", DType.FLOAT32, 12288, 548.0, 0.19, (32, 4, 4, 4, "sorted")),
        ("row_softmax", DType.FLOAT16, 12288, 1229.0, 0.03, (32, 4, 8, 2, "natural")),
        (
            "row_softmax",
            DType.FLOAT16,
            4096,
            338.0,
            0.2,
            (64, 1, 8, 1, "sorted"),
        ),  # few rows: more threads each
        ("row_softmax_backward", DType.FLOAT32, 12288, 548.0, 0.19, (32, 4, 4, 4, "sorted")),
        ("row_softmax_backward", DType.BFLOAT16, 12288, 548.0, 0.19, (64, 1, 1, 8, "sorted")),
    ],
)
def test_heuristics_are_what_an_h100_ran_fastest(
    name: str, dtype: DType, rows: int, mean: float, cov: float, config: tuple[int | str, ...]
) -> None:
    features = Features(rows, rows, round(rows * mean), mean, cov, round(1.3 * mean), 0.5)
    heuristic = family(name).heuristic(PROBLEMS[name](rows, rows, dtype), features, H100)
    assert tuple(heuristic.to_dict().values()) == config
