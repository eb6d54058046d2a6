"""Matrix files: what is read, and that whatever is malformed is refused with its file and place."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from matrix_files import (
    COORDINATE,
    DENSE,
    SMTX,
    dense,
    matrices,
    npy_bytes,
    refused,
    safetensors_bytes,
    same_folder,
    tensor_entry,
)

from sparsegen.errors import MatrixError
from sparsegen.matrix.load import load_matrix

# --- what is read ---


@same_folder
@given(matrices, st.sampled_from(["csr", "csc", "coo", "bsr", "dia"]), st.booleans())
def test_scipy_npz(tmp_path: Path, array: Any, form: str, compressed: bool) -> None:
    path = tmp_path / "w.npz"
    scipy.sparse.save_npz(path, scipy.sparse.coo_array(array).asformat(form), compressed=compressed)
    assert np.array_equal(dense(load_matrix(path)), array)


@same_folder
@given(matrices)
def test_dense_numpy_files(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "w.npy", array)
    np.savez(tmp_path / "w.npz", array)
    np.savez_compressed(tmp_path / "two.npz", w=array, other=array[:1])
    for path, tensor in (("w.npy", None), ("w.npz", None), ("two.npz", "w")):
        matrix = load_matrix(tmp_path / path, tensor=tensor)
        assert np.array_equal(dense(matrix), array)
        assert matrix.nnz == np.count_nonzero(array)


@same_folder
@given(matrices, st.sampled_from(["general", "symmetric", "skew-symmetric"]), st.booleans(), st.booleans())
def test_matrix_market(tmp_path: Path, array: Any, symmetry: str, sparse: bool, windows: bool) -> None:
    if symmetry != "general":
        side = min(array.shape)
        square = array[:side, :side]
        array = square + square.T if symmetry == "symmetric" else square - square.T
    stream = io.BytesIO()
    scipy.io.mmwrite(stream, scipy.sparse.coo_array(array) if sparse else array, symmetry=symmetry)
    text = stream.getvalue().replace(b"\n", b"\r\n") if windows else stream.getvalue()
    plain, packed = tmp_path / "w.mtx", tmp_path / "w.mtx.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    assert np.array_equal(dense(load_matrix(plain)), array)
    assert np.array_equal(dense(load_matrix(packed)), array)


def test_matrix_market_pattern_integers_and_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "w.mtx"
    path.write_text("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 2\n\n2 1\n3 3\n")
    assert dense(load_matrix(path)).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    path.write_text("%%MatrixMarket MATRIX Coordinate Integer General\n1 2 3\n1 2 5\n1 2 -1\n1 1 0")
    matrix = load_matrix(path)
    assert dense(matrix).tolist() == [[0, 4]]
    assert matrix.values.dtype == np.float32
    assert (matrix.nnz, load_matrix(path, drop_zeros=True).nnz) == (2, 1)


def test_smtx_has_seeded_values_without_zeros(tmp_path: Path) -> None:
    plain, packed = tmp_path / "w.smtx", tmp_path / "w.smtx.gz"
    plain.write_bytes(SMTX)
    packed.write_bytes(gzip.compress(SMTX))
    matrix, again, other = load_matrix(plain), load_matrix(packed), load_matrix(plain, seed=1)
    assert (dense(matrix) != 0).tolist() == (DENSE != 0).tolist()
    assert np.array_equal(matrix.values, again.values)
    assert not np.array_equal(matrix.values, other.values)


def test_an_empty_smtx_matrix(tmp_path: Path) -> None:
    path = tmp_path / "w.smtx"
    path.write_bytes(b"2, 5, 0\n0 0 0\n\n")
    assert (load_matrix(path).shape, load_matrix(path).nnz) == ((2, 5), 0)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("f8", "F64"), ("f4", "F32"), ("f2", "F16"), ("i8", "I64"), ("i4", "I32"), ("i2", "I16"), ("i1", "I8")],
)
def test_safetensors(tmp_path: Path, dtype: str, name: str) -> None:
    array = DENSE.astype(dtype)
    path = tmp_path / "w.safetensors"
    bias = np.ones(3, np.float32)
    header = {"__metadata__": {"format": "pt"}, "bias": tensor_entry(bias, "F32")}
    header["w"] = tensor_entry(array, name, begin=bias.nbytes)
    path.write_bytes(safetensors_bytes(header, bias.tobytes() + array.tobytes()))
    assert np.array_equal(dense(load_matrix(path, tensor="w")), array)


def test_safetensors_bfloat16_bool_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    halves = (DENSE.view(np.uint32) >> 16).astype(np.uint16)
    path.write_bytes(safetensors_bytes({"w": tensor_entry(halves, "BF16")}, halves.tobytes()))
    assert np.array_equal(dense(load_matrix(path)), DENSE)  # all of DENSE is exact in bfloat16
    for dtype, name in (("?", "BOOL"), ("u1", "U8")):
        array = (DENSE != 0).astype(dtype)
        path.write_bytes(safetensors_bytes({"w": tensor_entry(array, name)}, array.tobytes()))
        assert np.array_equal(dense(load_matrix(path)), array)


def test_a_file_of_the_safetensors_package(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "w.safetensors"
    package.save_file({"w": DENSE, "bias": np.ones(3, np.float16)}, path)
    assert np.array_equal(dense(load_matrix(path, tensor="w")), DENSE)


# --- what is refused: any file ---

SUFFIXES = (".npz", ".npy", ".mtx", ".mtx.gz", ".smtx", ".smtx.gz", ".safetensors")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_empty_missing_and_folder(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    refused(path, "no such file")
    path.write_bytes(b"")
    refused(path, "the file is empty")
    path.unlink()
    path.mkdir()
    refused(path, "a folder")


def test_a_folder_of_any_name(tmp_path: Path) -> None:
    refused(tmp_path, "this is no file but a folder")


@pytest.mark.parametrize("name", ["w.csv", "w", "w.gz", "w.npz.gz", "w.tar.gz"])
def test_unknown_suffix(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1")
    refused(tmp_path / name, "unknown suffix", ".safetensors")


def test_an_empty_gzip_stream(tmp_path: Path) -> None:
    path = tmp_path / "w.mtx.gz"
    path.write_bytes(gzip.compress(b""))
    refused(path, "the file is empty")


CONTENTS = {
    "npz": lambda: _saved(lambda s: np.savez(s, DENSE)),
    "npy": lambda: npy_bytes(DENSE),
    "mtx": lambda: COORDINATE,
    "smtx": lambda: SMTX,
    "safetensors": lambda: safetensors_bytes({"w": tensor_entry(DENSE, "F32")}, DENSE.tobytes()),
    "mtx.gz": lambda: gzip.compress(COORDINATE),
}


def _saved(save: Callable[[io.BytesIO], None]) -> bytes:
    stream = io.BytesIO()
    save(stream)
    return stream.getvalue()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", CONTENTS)
def test_the_wrong_type_for_its_suffix(tmp_path: Path, suffix: str, content: str) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(CONTENTS[content]())
    if suffix == f".{content}":
        assert load_matrix(path).nnz > 0
    else:
        refused(path)


def test_the_wrong_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "w.npy"
    path.write_bytes(CONTENTS["npz"]())
    refused(path, "its content is a zip archive (.npz)")
    path = tmp_path / "w.mtx"
    path.write_bytes(gzip.compress(COORDINATE))
    refused(path, "line 1", "gzip-compressed")


@pytest.mark.parametrize("content", ["npz", "npy", "safetensors", "mtx.gz"])
def test_every_truncation_is_refused(tmp_path: Path, content: str) -> None:
    whole, path = CONTENTS[content](), tmp_path / f"w.{content}"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused(path)


def test_truncated_gzip_says_so(tmp_path: Path) -> None:
    path = tmp_path / "w.smtx.gz"
    path.write_bytes(gzip.compress(SMTX)[:-9])
    refused(path, "truncated")
    path.write_bytes(gzip.compress(SMTX)[:-8] + b"\0" * 8)
    refused(path, "not a sound gzip file")


def test_a_tensor_name_where_there_is_one_matrix(tmp_path: Path) -> None:
    (tmp_path / "w.smtx").write_bytes(SMTX)
    refused(tmp_path / "w.smtx", "leave out --tensor", tensor="w")
    scipy.sparse.save_npz(tmp_path / "w.npz", scipy.sparse.csr_array(DENSE))
    refused(tmp_path / "w.npz", "leave out --tensor", tensor="w")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nonfinite_values(tmp_path: Path, bad: float) -> None:
    array = DENSE.copy()
    array[2, 0] = bad
    np.save(tmp_path / "w.npy", array)
    refused(tmp_path / "w.npy", "row 2, column 0, nonzero 2", str(bad))
    assert load_matrix(tmp_path / "w.npy", allow_nonfinite=True).nnz == 4


# --- Matrix Market ---


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (COORDINATE.replace(b"3 1 3", b"4 1 3"), "line 5", "row 4, column 1 is outside the shape (3, 4)"),
        (COORDINATE.replace(b"3 1 3", b"\n\n3 0 3"), "line 7", "column 0 is outside"),
        (COORDINATE.replace(b"1.5", b"x"), "line 4", "got '1 2 x'"),
        (COORDINATE.replace(b"1.5", b"1.\x005"), "line 4", "expected row, column, value (real)"),
        (COORDINATE.replace(b"1.5", b"1.5 7"), "line 4", "expected row, column, value"),
        (COORDINATE.replace(b"1.5", b""), "line 4", "expected row, column, value"),
        (COORDINATE.replace(b"1 2", b"1.0 2"), "line 4", "expected row, column, value"),
        (COORDINATE[:-6], "line 3", "2 entries are declared, but 1 are there"),
        (COORDINATE + b"1 1 1\n", "line 3", "2 entries are declared, but more are there"),
        (COORDINATE.replace(b"3 4 2", b"3 4 99999999999999"), "line 3", "declared"),
        (COORDINATE.replace(b"3 4 2", b"3 2147483648 2"), "line 3, shape", "2147483648 columns"),
        (COORDINATE.replace(b"3 4 2", b"3 4"), "line 3", "3 sizes"),
        (COORDINATE.replace(b"3 4 2", b"3 -4 2"), "line 3", "3 sizes"),
        (COORDINATE.replace(b"real", b"complex"), "line 1", "'complex' is not supported"),
        (COORDINATE.replace(b"general", b"hermitian"), "line 1", "'hermitian' is not supported"),
        (COORDINATE.replace(b"general", b"symmetric"), "line 3", "must be square"),
        (COORDINATE.replace(b"matrix", b"vector", 1), "line 1", "expected '%%MatrixMarket"),
        (b"hello\n", "line 1", "expected '%%MatrixMarket"),
        (b"%%MatrixMarket matrix array real general\n99999999 99999999\n1\n", "line 2", "but 1 are there"),
        (b"%%MatrixMarket matrix array pattern general\n1 1\n", "line 1", "pattern has no values"),
        (b"%%MatrixMarket matrix coordinate real general\n", "line 2", "3 sizes"),
    ],
)
def test_damaged_matrix_market_files(tmp_path: Path, text: bytes, place: str, message: str) -> None:
    path = tmp_path / "w.mtx"
    path.write_bytes(text)
    refused(path, place, message)


# --- smtx ---


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (b"hello\n", "line 1", "rows, columns, nonzeros"),
        (b"3, 4\n0 2 2 4\n1 3 0 2\n", "line 1", "rows, columns, nonzeros"),
        (b"3, -4, 4\n0 2 2 4\n1 3 0 2\n", "line 1, shape", "-4 columns"),
        (b"3, 2147483648, 4\n0 2 2 4\n1 3 0 2\n", "line 1, shape", "32-bit"),
        (b"3, 4, 4\n0 2 1 4\n1 3 0 2\n", "line 2, row_offsets[2]", "1 after 2"),
        (b"3, 4, 4\n0 -2 2 4\n1 3 0 2\n", "line 2, row_offsets[1]", "negative"),
        (b"3, 4, 4\n0 2 4\n1 3 0 2\n", "line 2, row_offsets", "need 4 offsets, got 3"),
        (b"2147483647, 4, 4\n0 2 2 4\n1 3 0 2\n", "line 2, row_offsets", "need 2147483648 offsets"),
        (b"3, 4, 4\n0 2 x 4\n1 3 0 2\n", "line 2, number 3", "'x' is no 64-bit integer"),
        (b"3, 4, 4\n0 2 2 4\n1 3 0 4\n", "line 3, column_indices[3], row 2", "column 4 is outside"),
        (b"3, 4, 4\n0 2 2 4\n1 3 -1 2\n", "line 3, column_indices[2], row 2", "column -1"),
        (b"3, 4, 4\n0 2 2 4\n1 3 0 1_0\n", "line 3, number 4", "'1_0'"),
        (b"3, 4, 4\n0 2 2 4\n1 3 0 99999999999999999999\n", "line 3, number 4", "64-bit"),
        (b"3, 4, 4\n0 2 2 4\n1 3 0\n", "line 3", "declares 4 nonzeros, but there are 3"),
        (b"3, 4, 4\n0 2 2 4\n", "line 3", "there are 0"),
        (SMTX + b"0.5 1.5 2.5 1\n", "line 4", "three lines"),
    ],
)
def test_damaged_smtx_files(tmp_path: Path, text: bytes, place: str, message: str) -> None:
    path = tmp_path / "w.smtx"
    path.write_bytes(text)
    refused(path, place, message)


# --- safetensors ---

ENTRY = tensor_entry(DENSE, "F32")


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"abc", "header length", "not a whole"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "header length", "in a file of 10"),
        (safetensors_bytes(b"{"), "header", "no JSON"),
        (safetensors_bytes(b"[]"), "header", "JSON object"),
        (safetensors_bytes(b"[" * 100_000), "header", "no JSON"),
        (safetensors_bytes({}), "", "the file holds none"),
        (safetensors_bytes({"w": 3}), "tensor 'w'", "needs dtype, shape"),
        (safetensors_bytes({"w": {"dtype": "F32", "shape": [3, 4]}}), "tensor 'w'", "needs dtype, shape"),
        (
            safetensors_bytes({"w": {**ENTRY, "dtype": "F8_E4M3"}}),
            "tensor 'w'",
            "dtype F8_E4M3 is not supported",
        ),
        (safetensors_bytes({"w": {**ENTRY, "dtype": ["F32"]}}), "tensor 'w'", "is not supported"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [12]}}), "tensor 'w', shape", "2 dimensions, got 1"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [2**31, 4]}}), "tensor 'w', shape", "32-bit"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [-3, -4]}}), "tensor 'w'", "sizes"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [0, 10**30]}}), "tensor 'w'", "sizes"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [2**40, 2**40]}}), "tensor 'w'", "over NumPy's limits"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [1] * 40}}), "tensor 'w'", "over NumPy's limits"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [True, True]}}), "tensor 'w'", "sizes"),
        (safetensors_bytes(b'{"w": {"shape": [' + b"9" * 5000 + b"]}}"), "header", "no JSON"),
        (safetensors_bytes({"w": {**ENTRY, "shape": [2**30, 2**30]}}), "tensor 'w'", "must span"),
        (safetensors_bytes({"w": ENTRY}, b"\0" * 47), "tensor 'w'", "within the 47 bytes"),
        (
            safetensors_bytes({"w": {**ENTRY, "data_offsets": [4, 48]}}, b"\0" * 48),
            "tensor 'w'",
            "must span 48",
        ),
        (safetensors_bytes({"w": {**ENTRY, "data_offsets": [-48, 0]}}, b"\0" * 48), "tensor 'w'", "sizes"),
    ],
)
def test_damaged_safetensors_files(tmp_path: Path, content: bytes, place: str, message: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    refused(path, place, message)


def test_a_tensor_must_be_named_where_there_are_several(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes({f"t{i}": ENTRY for i in range(12)}, DENSE.tobytes()))
    refused(path, "name a tensor (--tensor)", "t0, t1", "(12 in all)")
    refused(path, "there is no tensor 'w'", tensor="w")
    assert load_matrix(path, tensor="t7").nnz == 4


# --- damage at random ---


@same_folder
@given(st.data())
def test_damage_at_random_gives_a_matrix_or_a_matrix_error(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CONTENTS)))
    content = bytearray(CONTENTS[name]())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / f"w.{name}"
    path.write_bytes(content)
    try:
        matrix = load_matrix(path)
    except MatrixError as error:
        assert str(path) in str(error)
    else:
        assert len(matrix.row_offsets) == matrix.shape[0] + 1
