"""The CSR container and the conversions to it."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any, Literal

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given

from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import below_each_other, check_compressed, check_shape
from sparsegen.matrix.features import Features
from sparsegen.matrix.foreign import Compressed, Coordinates
from sparsegen.matrix.formats import CsrMatrix, as_csr
from sparsegen.matrix.generators import random_uniform

SCIPY_FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
OFFSETS = np.array([0, 2, 2, 3])
COLUMNS = np.array([0, 3, 1])
VALUES = np.array([1.0, 2.0, 3.0], dtype=np.float32)

dense_matrices = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9),
    elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -2.5, 3.0]),
)


def small() -> CsrMatrix:
    return CsrMatrix((3, 4), OFFSETS, COLUMNS, VALUES)


def dense(matrix: CsrMatrix) -> np.ndarray[Any, Any]:
    return np.asarray(matrix.to_scipy().toarray())


def test_arrays_are_narrowed_and_read_only() -> None:
    matrix = small()
    assert matrix.row_offsets.dtype == matrix.column_indices.dtype == np.int32
    assert matrix.nnz == 3
    for array in (matrix.row_offsets, matrix.column_indices, matrix.values):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_arrays_of_the_right_type_are_shared_but_stay_writable_for_their_owner() -> None:
    offsets, columns, values = OFFSETS.astype(np.int32), COLUMNS.astype(np.int32), VALUES.copy()
    matrix = CsrMatrix((3, 4), offsets, columns, values)
    assert np.shares_memory(matrix.values, values) and np.shares_memory(matrix.column_indices, columns)
    values[0] = 9.0
    assert matrix.values[0] == 9.0


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({"row_offsets": [0, 2, 1, 3]}, r"row_offsets\[2\], the end of row 1", "1 after 2"),
        ({"row_offsets": [0, -1, 2, 3]}, r"row_offsets\[1\], the end of row 0", "-1 after 0"),
        ({"row_offsets": [1, 2, 2, 3]}, r"row_offsets\[0\]", "must be 0, got 1"),
        ({"row_offsets": [0, 2, 2, 4]}, r"row_offsets\[3\]", "number of nonzeros, 3, got 4"),
        ({"row_offsets": [0, 2, 3]}, "row_offsets", "3 rows need 4 offsets, got 3"),
        ({"row_offsets": [0.0, 2.0, 2.0, 3.0]}, "row_offsets", "expected integers, got float64"),
        ({"row_offsets": [[0, 2, 2, 3]]}, "row_offsets", "1 dimension"),
        ({"column_indices": [0, 4, 1]}, "row 0, nonzero 1", r"column 4 is outside \[0, 4\)"),
        ({"column_indices": [0, 3, -1]}, "row 2, nonzero 2", "column -1 is outside"),
        ({"column_indices": [3, 0, 1]}, "row 0, nonzero 1", "column 0 follows column 3"),
        ({"column_indices": [3, 3, 1]}, "row 0, nonzero 1", "column 3 follows column 3"),
        ({"values": [1.0, 2.0]}, "values", "each of the 3 column indices"),
        ({"values": [1, 2, 3]}, "values", "floating-point"),
        ({"shape": (3, 2**31)}, "shape", "2147483648 columns are outside the 32-bit"),
        ({"shape": (-1, 2)}, "shape", "-1 rows"),
        ({"shape": (3, 4, 1)}, "shape", "2 dimensions, got 3"),
        ({"shape": (3, 4.0)}, "shape", "integer sizes"),
    ],
)
def test_every_broken_invariant_names_its_place(change: dict[str, Any], place: str, message: str) -> None:
    fields: dict[str, Any] = {
        "shape": (3, 4),
        "row_offsets": OFFSETS,
        "column_indices": COLUMNS,
        "values": VALUES,
    }
    arrays = {name: value if name == "shape" else np.asarray(value) for name, value in change.items()}
    with pytest.raises(MatrixError, match=f"{place}.*{message}"):
        CsrMatrix(**{**fields, **arrays})


def test_unsigned_offsets_cannot_wrap_around() -> None:
    with pytest.raises(MatrixError, match=r"row_offsets\[2\]"):
        CsrMatrix((3, 4), np.array([0, 2, 1, 3], dtype=np.uint64), COLUMNS, VALUES)


def test_the_last_row_may_be_empty_and_columns_may_fall_between_rows() -> None:
    matrix = CsrMatrix((3, 4), np.array([0, 1, 2, 2]), np.array([3, 0]), np.ones(2))
    assert dense(matrix)[0, 3] == dense(matrix)[1, 0] == 1.0


def test_nnz_over_the_index_range_is_refused_without_allocating() -> None:
    many = np.broadcast_to(np.int32(0), (2**31,))
    with pytest.raises(MatrixError, match="2147483648 nonzeros are over the 32-bit"):
        check_compressed(np.array([0, 2**31]), many, (1, 1))


def test_a_dense_array_over_the_index_range_is_refused_without_reading_it() -> None:
    with pytest.raises(MatrixError, match="rows are outside the 32-bit"):
        as_csr(np.broadcast_to(np.float32(1), (2**31, 3)))
    assert check_shape((2**31 - 1, 0)) == (2**31 - 1, 0)


def test_fingerprint_is_of_the_pattern_only() -> None:
    matrix = small()
    assert matrix.fingerprint() == matrix.with_values(np.array([4.0, 5.0, 6.0])).fingerprint()
    assert matrix.fingerprint() != CsrMatrix((3, 5), OFFSETS, COLUMNS, VALUES).fingerprint()
    with pytest.raises(MatrixError, match="expected 3 values"):
        matrix.with_values(np.ones(4))


@given(dense_matrices, st.sampled_from(SCIPY_FORMATS), st.booleans())
def test_every_scipy_format_round_trips(array: Any, form: str, old_style: bool) -> None:
    matrix = (scipy.sparse.coo_matrix if old_style else scipy.sparse.coo_array)(array).asformat(form)
    # dia and bsr store zeros between the nonzeros; they are kept unless dropped.
    converted = as_csr(matrix, drop_zeros=True)
    assert np.array_equal(dense(converted), array)
    assert converted.nnz == np.count_nonzero(array)


@given(dense_matrices)
def test_dense_arrays_round_trip(array: Any) -> None:
    assert np.array_equal(dense(as_csr(array)), array)
    assert np.array_equal(dense(as_csr(np.asfortranarray(array))), array)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.sampled_from([0.0, 1.0, -1.0, 2.0])), max_size=30
    )
)
def test_duplicates_are_summed_and_indices_sorted(entries: list[tuple[int, int, float]]) -> None:
    rows, columns, values = (np.array([e[i] for e in entries], dtype=t) for i, t in enumerate("iif"))
    expected = np.zeros((4, 5), dtype=np.float32)
    np.add.at(expected, (rows, columns), values)
    kept = as_csr(Coordinates((4, 5), rows, columns, values))
    dropped = as_csr(Coordinates((4, 5), rows, columns, values), drop_zeros=True)
    assert np.array_equal(dense(kept), expected) and np.array_equal(dense(dropped), expected)
    assert kept.nnz == len({(r, c) for r, c, _ in entries})
    assert dropped.nnz == np.count_nonzero(expected)


def test_duplicates_in_the_callers_csr_matrix_are_left_alone() -> None:
    theirs = scipy.sparse.csr_array((np.ones(3), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 4))
    assert dense(as_csr(theirs)).tolist() == [[1.0, 0.0, 2.0, 0.0]]
    assert theirs.indices.tolist() == [2, 0, 2] and theirs.data.tolist() == [1.0, 1.0, 1.0]


def test_a_canonical_csr_matrix_is_not_copied() -> None:
    theirs = scipy.sparse.csr_array(np.eye(3, dtype=np.float32))
    assert np.shares_memory(as_csr(theirs).values, theirs.data)
    assert theirs.data.flags.writeable


@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        ("f2", "f4"),
        ("f4", "f4"),
        ("f8", "f8"),
        (">f4", "f4"),
        (">f8", "f8"),
        ("i8", "f4"),
        ("u1", "f4"),
        ("?", "f4"),
    ],
)
def test_dtypes_of_values(given_dtype: str, expected: str) -> None:
    array = np.array([[0, 1], [1, 0]], dtype=given_dtype)
    coordinates = Coordinates((2, 2), np.array([0, 1]), np.array([1, 0]), array[[0, 1], [1, 0]])
    for matrix in (as_csr(array), as_csr(coordinates)):
        assert matrix.values.dtype == np.dtype(expected)
        assert dense(matrix).tolist() == [[0, 1], [1, 0]]


def test_true_or_true_is_true() -> None:
    twice = Coordinates((1, 1), np.array([0, 0]), np.array([0, 0]), np.array([True, True]))
    assert as_csr(twice).values.tolist() == [1.0]


@pytest.mark.parametrize("array", [np.eye(2) * 1j, np.array([["a"]]), np.array([[None]])])
def test_what_is_no_real_number_is_refused(array: Any) -> None:
    with pytest.raises(MatrixError, match="expected real numbers"):
        as_csr(array)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_values_are_refused_unless_allowed(bad: float) -> None:
    array = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, bad]])
    with pytest.raises(MatrixError, match="weights, row 1, column 2, nonzero 1"):
        as_csr(array, source="weights")
    with pytest.raises(MatrixError, match=r"in Python allow NaN and infinities \(allow_nonfinite=True\)"):
        as_csr(array)
    assert as_csr(array, allow_nonfinite=True).nnz == 2


def test_explicit_zeros_are_kept_or_dropped() -> None:
    stored = scipy.sparse.csr_array(
        (np.array([0.0, 1.0]), np.array([0, 1]), np.array([0, 2, 2])), shape=(2, 2)
    )
    assert as_csr(stored).nnz == 2
    assert as_csr(stored, drop_zeros=True).nnz == 1
    assert as_csr(as_csr(stored), drop_zeros=True).row_offsets.tolist() == [0, 1, 1]


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
@pytest.mark.parametrize(
    ("array", "index", "value", "place"),
    [
        ("indices", 0, 77, r"indices\[0\].*77 is outside"),
        ("indices", 0, -1, r"indices\[0\].*-1 is outside"),
        ("indptr", 1, 1 << 20, r"indptr\[2\]"),
        ("indptr", 0, -3, r"indptr\[0\]"),
        ("indptr", -1, 1000, r"indptr\["),
    ],
)
def test_damaged_scipy_matrices_are_refused_before_they_are_walked(
    form: str, array: str, index: int, value: int, place: str
) -> None:
    whole = scipy.sparse.csr_array(np.ones((4, 4)))
    matrix = whole.tobsr((2, 2)) if form == "bsr" else whole.asformat(form)
    getattr(matrix, array)[index] = value
    with pytest.raises(MatrixError, match=place):
        as_csr(matrix)


@pytest.mark.parametrize(
    ("rows", "columns", "place"),
    [([0, 5], [0, 1], "nonzero 1: row 5"), ([0, 1], [-1, 1], "nonzero 0: column -1")],
)
def test_coordinates_out_of_range(rows: list[int], columns: list[int], place: str) -> None:
    with pytest.raises(MatrixError, match=place):
        as_csr(Coordinates((3, 3), np.array(rows), np.array(columns), np.ones(2)))


@pytest.mark.parametrize("layout", ["bsr", "bsc"])
def test_block_layouts(layout: Any) -> None:
    array = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
    array[:2, 3:] = 0
    blocks = {(r, c): array[2 * r : 2 * r + 2, 3 * c : 3 * c + 3] for r in range(2) for c in range(2)}
    order = [(0, 0), (1, 0), (1, 1)]  # by block row, and by block column too
    offsets, indices = ([0, 1, 3], [0, 0, 1]) if layout == "bsr" else ([0, 2, 3], [0, 1, 1])
    stored = Compressed(
        layout, (4, 6), np.array(offsets), np.array(indices), np.stack([blocks[at] for at in order])
    )
    assert np.array_equal(dense(as_csr(stored)), array)
    with pytest.raises(MatrixError, match="do not tile"):
        as_csr(Compressed(layout, (5, 6), stored.offsets, stored.indices, stored.values))
    with pytest.raises(MatrixError, match="block rows"):
        as_csr(Compressed(layout, (4, 6), stored.offsets, stored.indices, stored.values[0]))


@pytest.mark.parametrize("obj", [[[1.0]], "w.npz", None, 3, np.ones(3), np.ones((1, 1, 1))])
def test_what_is_no_matrix_is_refused(obj: Any) -> None:
    with pytest.raises(MatrixError, match="expected a"):
        as_csr(obj)


class _FakeCupyArray:
    def __init__(self, host: Any) -> None:
        self.host = host

    def get(self) -> Any:
        return self.host


def test_cupy_is_recognised_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.array([[0.0, 2.0]], dtype=np.float32)
    theirs = _FakeCupyArray(array)
    with pytest.raises(MatrixError, match="expected a scipy"):
        as_csr(theirs)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(ndarray=_FakeCupyArray))
    assert dense(as_csr(theirs)).tolist() == [[0.0, 2.0]]


def test_cupy_sparse_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.SimpleNamespace(issparse=lambda obj: isinstance(obj, _FakeCupyArray))
    monkeypatch.setitem(sys.modules, "cupyx.scipy.sparse", fake)
    theirs = _FakeCupyArray(scipy.sparse.csc_matrix([[0.0, 2.0]]))
    assert dense(as_csr(theirs)).tolist() == [[0.0, 2.0]]


@pytest.mark.gpu
def test_cupy_itself() -> None:
    cupy = pytest.importorskip("cupy")
    sparse = pytest.importorskip("cupyx.scipy.sparse")
    array = np.array([[0.0, 2.0], [3.0, 0.0]], dtype=np.float32)
    assert np.array_equal(dense(as_csr(cupy.asarray(array))), array)
    for form in ("csr", "csc", "coo"):
        assert np.array_equal(dense(as_csr(sparse.csr_matrix(cupy.asarray(array)).asformat(form))), array)


@given(dense_matrices)
def test_a_transpose_knows_where_its_values_come_from(array: Any) -> None:
    matrix = as_csr(array)
    assert np.array_equal(matrix.transposed().to_scipy().toarray(), array.T)
    numbered = matrix.with_values(np.arange(1, matrix.nnz + 1, dtype=np.float32))
    assert np.array_equal(numbered.transposed().values, matrix.transposition().source + 1)
    assert numbered.transposition() is matrix.transposition(), "worked out once for the pattern"
    assert matrix.transposed().transposed().fingerprint() == matrix.fingerprint()


def test_what_is_known_of_a_pattern_goes_with_its_values_and_not_into_pickles() -> None:
    matrix = random_uniform(40, 30, 0.2, 0)
    for one in (matrix, matrix.with_values(np.ones(matrix.nnz))):
        assert one.known("answer", lambda: [42]) is matrix.known("answer", list)
        assert Features.of(one) is Features.of(matrix)
    with pytest.raises(MatrixError, match="floating-point"):
        matrix.with_values(np.ones(matrix.nnz, dtype=np.int32))
    copied = pickle.loads(pickle.dumps(matrix))
    assert copied.known("answer", list) == []
    assert copied.fingerprint() == matrix.fingerprint() and np.array_equal(copied.values, matrix.values)
    other = random_uniform(40, 30, 0.2, 1)
    assert other.fingerprint() != matrix.fingerprint() and Features.of(other) is not Features.of(matrix)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["f4", "f2", ">f8", "i4", "?"])
def test_dense_arrays_in_many_parts(
    monkeypatch: pytest.MonkeyPatch, kind: str, order: Literal["C", "F"]
) -> None:
    """A large array is compressed by a few rows at a time, in threads."""
    dense = np.asarray(np.random.default_rng(5).integers(0, 3, (57, 41)), dtype=kind, order=order)
    whole = as_csr(dense)
    monkeypatch.setattr("sparsegen.matrix.formats.AT_ONCE", 100)
    parts = as_csr(dense)
    assert parts.fingerprint() == whole.fingerprint() and parts.values.dtype == whole.values.dtype
    assert np.array_equal(parts.values, whole.values) and np.array_equal(parts.to_dense(), dense)


def test_a_matrix_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(small()))
    assert np.array_equal(dense(again), dense(small()))


def test_converting_does_not_import_pytorch_or_cupy() -> None:
    import subprocess

    code = (
        "import sys, numpy as np; from sparsegen.matrix.formats import as_csr; as_csr(np.eye(2));"
        "assert not {'torch', 'cupy', 'pycuda'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_dense_again() -> None:
    dense = np.array([[0, 1.5, 0], [0, 0, 0], [-2, 0, 3]], dtype=np.float32)
    found = as_csr(dense).to_dense()
    np.testing.assert_array_equal(found, dense)
    assert found.dtype == np.float32 and as_csr(np.zeros((0, 4))).to_dense().shape == (0, 4)


def test_matrices_below_each_other() -> None:
    parts = [random_uniform(m, 12, 0.3, m) for m in (5, 0, 7)]
    joined = below_each_other(parts)
    assert joined.shape == (12, 12) and joined.nnz == sum(part.nnz for part in parts)
    assert (joined.to_dense()[5:] == parts[2].to_dense()).all()
    for wrong in ([], [parts[0], random_uniform(3, 11, 0.5, 0)]):
        with pytest.raises(MatrixError, match="one number of columns"):
            below_each_other(wrong)
