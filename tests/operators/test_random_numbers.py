"""Normal numbers as operands: the same from the same seed, whatever draws them."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.operators import DType
from sparsegen.operators.base import random_numbers as module
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.tensor_spec import TensorSpec


def drawn(count: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return normal_numbers(np.random.default_rng(seed), TensorSpec("x", (count,), DType.FLOAT16), scale=scale)


def test_strips_are_equal_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRIP", 1000)
    found = []
    for cores in (1, 3, None):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        found.append(drawn(4321))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert len(np.unique(found[0].reshape(-1)[:4000].reshape(4, 1000), axis=0)) == 4, (
        "no strip repeats another"
    )
    assert abs(found[0].astype(np.float64).std() - 1) < 0.05 and not np.isnan(found[0]).any()


def test_few_numbers_are_those_of_the_generator() -> None:
    wanted = np.random.default_rng(3).standard_normal(50, dtype=np.float32).astype(np.float16)
    np.testing.assert_array_equal(drawn(50, 3), wanted)
    np.testing.assert_allclose(drawn(50, 3, 0.5), wanted / 2, rtol=1e-3)
