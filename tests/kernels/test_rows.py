"""Row order and alignment as the SpMM families share them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegen.errors import MatrixError
from sparsegen.kernels.layouts.rows import AlignedRows, align_rows, align_runs, order_rows
from sparsegen.matrix.csr import CsrMatrix

LENGTHS = st.lists(st.integers(0, 9), max_size=40).map(lambda lengths: np.array(lengths, dtype=np.int32))


@given(LENGTHS, st.sampled_from([1, 2, 4, 8]))
def test_runs_are_aligned_and_hold_every_nonzero_once(lengths: np.ndarray, alignment: int) -> None:
    starts = np.cumsum(lengths) - lengths
    runs = align_runs(lengths, starts, alignment, tail=8)
    assert (runs.offsets % alignment == 0).all() and runs.source.size % 8 == 0 and runs.source.size >= 8
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        own = runs.source[runs.offsets[number] : runs.offsets[number + 1]]
        np.testing.assert_array_equal(own[:length], np.arange(start, start + length))
        assert (own[length:] == -1).all()
    assert (runs.source >= 0).sum() == lengths.sum()


@given(LENGTHS)
def test_padding_repeats_the_last_nonzero(lengths: np.ndarray) -> None:
    runs = align_runs(lengths, np.cumsum(lengths) - lengths, 4, tail=4)
    columns = np.arange(int(lengths.sum()), dtype=np.int32) + 100
    for begin, end, length in zip(runs.offsets[:-1], runs.offsets[1:], lengths, strict=True):
        repeated = runs.gather_repeating(columns)[begin:end]
        if length:
            assert set(repeated[length:]) <= {repeated[length - 1]}


def test_what_is_gathered() -> None:
    """Rows of 3, 0, 1 and 4 nonzeros, the first of them nonzero 0, in vectors of 2, eight places at least."""
    offsets, columns = np.array([0, 3, 3, 4, 8], np.int32), np.array([0, 1, 2, 1, 0, 1, 2, 3], np.int32)
    matrix = CsrMatrix((4, 4), offsets, columns, np.ones(8, np.float32))
    rows = align_rows(matrix, 2, tail=8)
    assert rows.offsets.tolist() == [0, 4, 4, 6, 10]
    places = [0, 1, 2, -1, 3, -1, 4, 5, 6, 7]
    assert rows.source.tolist() == [*places, *[-1] * 6]
    numbers = np.arange(8, dtype=np.float32) + 100
    repeated = [100, 101, 102, 102, 103, 103, 104, 105, 106, 107, *[107] * 6]
    assert rows.gather_repeating(numbers).tolist() == repeated


def test_without_nonzeros_all_is_padding() -> None:
    nothing = np.zeros(0, np.int32)
    rows = align_runs(np.zeros(3, np.int32), np.zeros(3, np.int32), 4, tail=8)
    assert rows.source.tolist() == [-1] * 8
    assert rows.gather_repeating(nothing).tolist() == [0] * 8


@given(LENGTHS, st.sampled_from(["natural", "binned", "sorted", "local"]), st.integers(1, 8))
def test_every_order_is_a_permutation(lengths: np.ndarray, order: str, bundle: int) -> None:
    rows = order_rows(lengths, order, bundle)
    np.testing.assert_array_equal(np.sort(rows), np.arange(lengths.size))


def test_orders() -> None:
    lengths = np.array([1, 5, 2, 9, 3, 3])
    assert order_rows(lengths, "natural", 2).tolist() == [0, 1, 2, 3, 4, 5]
    assert order_rows(lengths, "sorted", 2).tolist() == [3, 1, 4, 5, 2, 0]
    assert order_rows(lengths, "binned", 2).tolist() == [2, 3, 0, 1, 4, 5]
    assert order_rows(lengths, "local", 2).tolist() == [5, 4, 3, 2, 1, 0]
    assert order_rows(lengths[::-1], "local", 2).tolist() == [0, 1, 2, 3, 4, 5]


def test_offsets_past_32_bits_are_refused_before_anything_is_allocated() -> None:
    lengths = np.full(2**10, 2**21 - 3, dtype=np.int64)  # 2³¹ - 3·2¹⁰ nonzeros, 2³¹ places
    with pytest.raises(MatrixError, match="2147483648 places"):
        align_runs(lengths, np.cumsum(lengths) - lengths, 4, tail=4)


def test_padding_before_any_nonzero_repeats_the_first() -> None:
    rows = AlignedRows(np.zeros(0, np.int32), np.array([-1, -1, 2, -1, 0, 1, -1, -1], np.int32))
    assert rows.gather_repeating(np.array([7, 8, 9])).tolist() == [7, 7, 9, 9, 7, 8, 8, 8]
