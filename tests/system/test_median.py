"""The median is that of Python's statistics."""

from __future__ import annotations

import random
import statistics

import pytest

from sparsegen.system.median import median


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 50])
def test_it_is_that_of_statistics(count: int) -> None:
    drawn = random.Random(count)
    for _ in range(20):
        values = [drawn.choice([1.0, 2.5, drawn.expovariate(0.1)]) for _ in range(count)]
        assert median(iter(values)) == statistics.median(values)


def test_there_is_none_of_nothing() -> None:
    with pytest.raises(ValueError, match="no median"):
        median([])
