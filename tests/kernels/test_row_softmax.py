"""The heuristics of the row-wise families for rows of any length."""

from __future__ import annotations

import pytest

from sparsegen.backends.emulator import device
from sparsegen.kernels import family
from sparsegen.matrix.features import Features
from sparsegen.operators import DType, SoftmaxBackwardProblem, SoftmaxProblem

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
