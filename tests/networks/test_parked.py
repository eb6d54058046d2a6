"""Inputs that wait: first in, first out, in memory that grows and is used again."""

from __future__ import annotations

import numpy as np

from sparsegen.networks.run.parked import Parked


def test_those_that_came_first_go_first_with_their_rows() -> None:
    rng, parked = np.random.default_rng(0), Parked(3, np.dtype(np.float16))
    waiting: list[int] = []
    coming = 0
    for _ in range(60):
        size = int(rng.integers(0, 7))
        numbers = np.arange(coming, coming + size)
        coming += size
        parked.put(numbers)[:] = numbers[:, None]
        waiting += numbers.tolist()
        assert parked.count == len(waiting)
        most = int(rng.integers(0, 8))
        taken, rows = parked.take(most)
        assert taken.tolist() == waiting[:most]
        np.testing.assert_array_equal(rows, np.repeat(taken[:, None], 3, axis=1))
        waiting = waiting[most:]


def test_memory_is_used_again() -> None:
    parked = Parked(2, np.dtype(np.float32))
    first = parked.put(np.arange(4))
    parked.take(4)
    assert np.shares_memory(first, parked.put(np.arange(4)))
