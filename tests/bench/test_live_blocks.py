"""Live elements of a whole product are read; elsewhere stands the problem's own value."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.bench.baselines._live_blocks import live_alone
from sparsegen.operators import Block, DType, Rest, SddProblem


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("rest", Rest)
def test_dead_elements_are_what_the_problem_has_there(dtype: DType, rest: Rest) -> None:
    problem = SddProblem(16, 32, 8, dtype, Block(16, 16), rest=rest)
    whole = dtype.to_storage(np.arange(16 * 32, dtype=np.float32).reshape(16, 32))
    live = np.arange(32) < np.full((16, 1), 16)
    found = live_alone(lambda: whole, live, problem)()
    assert found.dtype == dtype.storage
    np.testing.assert_array_equal(found[:, :16], whole[:, :16])
    dead = dtype.from_storage(found[:, 16:])
    assert np.isnan(dead).all() if rest is Rest.KEPT else not dead.any()
