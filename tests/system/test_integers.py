"""Division that rounds up, of numbers, arrays and numbers that no float holds."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.system.integers import ceil_div, round_up


@pytest.mark.parametrize(
    ("number", "step", "quotient"),
    [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (-5, 4, -1), (2**62 + 1, 2, 2**61 + 1)],
)
def test_quotients_are_rounded_up(number: int, step: int, quotient: int) -> None:
    assert ceil_div(number, step) == quotient
    assert round_up(number, step) == quotient * step


def test_arrays_are_divided_element_by_element() -> None:
    numbers = np.array([0, 1, 8, 9])
    np.testing.assert_array_equal(ceil_div(numbers, 8), [0, 1, 1, 2])
    np.testing.assert_array_equal(round_up(numbers, np.array([1, 2, 3, 4])), [0, 2, 9, 12])
