"""2:4 sparsity of a pattern."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.matrix import two_four
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.two_four import is_two_four


def test_no_four_columns_hold_more_than_two_nonzeros() -> None:
    rows = np.array([[1, 2, 0, 0, 0, 3, 4, 0], [0, 0, 0, 0, 0, 0, 1, 2]], dtype=np.float32)
    assert is_two_four(as_csr(rows))
    rows[0, 2] = 5
    assert not is_two_four(as_csr(rows))
    assert is_two_four(as_csr(np.eye(4, dtype=np.float32)))
    assert is_two_four(as_csr(np.zeros((3, 5), dtype=np.float32)))
    across = np.array([[0, 0, 1, 1], [1, 1, 0, 0]], dtype=np.float32)
    assert is_two_four(as_csr(across)), "neighbours in memory, but not in one row"


def test_it_is_seen_wherever_parts_of_the_nonzeros_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_four, "AT_ONCE", 4)
    rows = np.tile(np.array([0, 1, 1, 0], dtype=np.float32), (3, 8))
    assert is_two_four(as_csr(rows))
    for column in range(0, 32, 4):
        rows[1] = np.tile([0, 1, 1, 0], 8)
        rows[1, column] = 1
        assert not is_two_four(as_csr(rows)), column
