"""Damaged files of NumPy and SciPy are refused with the file and the place."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from matrix_files import DENSE, npy_bytes, refused

from sparsegen.errors import MatrixError
from sparsegen.matrix.load import load_matrix
from sparsegen.system.numpy_load import load_numpy


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    array = np.array([[Bomb()]], dtype=object)
    (tmp_path / "w.npy").write_bytes(npy_bytes(array, allow_pickle=True))
    refused(tmp_path / "w.npy", "Python objects")
    np.savez(tmp_path / "w.npz", w=array)
    refused(tmp_path / "w.npz", "array 'w'", "Python objects")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("shape", ["(1000000000, 1000000000)", "(99999999999999999999, 2)", "(3, 5)"])
def test_a_npy_header_that_declares_more_than_the_file_holds(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + DENSE.tobytes()
    (tmp_path / "w.npy").write_bytes(npy)
    refused(tmp_path / "w.npy", "the header declares shape", "48 are there")
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", npy)
    refused(tmp_path / "w.npz", "array 'w'", "the header declares shape")


def npy_with_header(text: str, data: bytes = b"") -> bytes:
    header = text.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "header",
    [
        "{[]: 1}",
        "{'descr': (), 'fortran_order': False, 'shape': (3, 4)}",
        "{'descr': [], 'fortran_order': False, 'shape': (3, 4)}",
        "{'descr': {'names': 1}, 'fortran_order': False, 'shape': (3, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, True)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3, -4)}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {10**30})}}",
        f"{{'descr': '|V0', 'fortran_order': False, 'shape': ({10**9}, {10**9}, {10**9})}}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 40 + ")}",
        "(" * 100,
        "1" * 100,
        "",
    ],
)
def test_npy_headers_that_numpy_stumbles_over(tmp_path: Path, header: str) -> None:
    (tmp_path / "w.npy").write_bytes(npy_with_header(header, DENSE.tobytes()))
    refused(tmp_path / "w.npy")
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", npy_with_header(header, DENSE.tobytes()))
    refused(tmp_path / "w.npz")


@pytest.mark.parametrize("array", [np.ones(3), np.ones((2, 2, 2)), np.float32(1)])
def test_other_dimensions(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "w.npy", array)
    refused(tmp_path / "w.npy", "2 dimensions")
    np.savez(tmp_path / "w.npz", bias=array)
    refused(tmp_path / "w.npz", "array 'bias'", "2 dimensions")


def test_complex_and_structured_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", DENSE * 1j)
    refused(tmp_path / "w.npy", "complex")
    np.save(tmp_path / "w.npy", np.zeros((2, 2), dtype=[("a", "f4")]))
    refused(tmp_path / "w.npy", "expected real numbers")


def test_archives_without_a_known_array(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, a=DENSE, b=DENSE)
    refused(path, "name one array (--tensor); the file holds a, b")
    refused(path, "no array 'c'; the file holds a, b", tensor="c")
    with zipfile.ZipFile(path, "w"):
        pass
    refused(path, "the file holds none")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "hello")
    refused(path, "array 'notes.txt'", "not a NumPy array")


def sparse_parts(form: str) -> dict[str, Any]:
    matrix = scipy.sparse.csr_array(DENSE).asformat(form)
    names = {"coo": ("row", "col"), "dia": ("offsets",)}.get(form, ("indptr", "indices"))
    parts = {name: getattr(matrix, name) for name in names}
    return {**parts, "data": matrix.data, "format": form, "shape": matrix.shape}


@pytest.mark.parametrize(
    ("form", "change", "place"),
    [
        ("csr", {"indptr": [0, 3, 2, 4]}, "indptr[2], the end of row 1"),
        ("csr", {"indptr": [0, -1, 2, 4]}, "indptr[1], the end of row 0"),
        ("csr", {"indptr": [0, 2, 2, 9]}, "indptr[3]"),
        ("csr", {"indptr": [0.0, 2.0, 2.0, 4.0]}, "indptr: expected integers"),
        ("csr", {"indices": [1, 3, 0, 4]}, "indices[3], row 2, nonzero 3"),
        ("csr", {"indices": [1, -3, 0, 2]}, "indices[1], row 0, nonzero 1"),
        ("csr", {"indices": 3}, "indices: expected 1 dimension"),
        ("csr", {"data": [1.0]}, "values: expected 4 values"),
        ("csr", {"shape": (3, 2**31)}, "shape: 2147483648 columns"),
        ("csr", {"shape": (3.0, 4.0)}, "shape: expected two integer sizes"),
        ("csr", {"format": "xyz"}, "array 'format': sparse format 'xyz' is none of csr, csc"),
        ("csr", {"format": np.array([1, 2])}, "array 'format'"),
        ("csc", {"indices": [2, 0, 3, 0]}, "indices[2], column 2, nonzero 2"),
        ("bsr", {"data": np.ones((4, 2, 3))}, "shape: blocks of (2, 3) do not tile"),
        ("coo", {"row": [0, 0, 3, 2]}, "nonzero 2: row 3"),
        ("coo", {"col": [0, 0, -1, 2]}, "nonzero 2: column -1"),
        ("coo", {"col": [0, 0]}, "column indices"),
        ("dia", {"offsets": [0, 0]}, "array 'offsets'"),
    ],
)
def test_damaged_scipy_files(tmp_path: Path, form: str, change: dict[str, Any], place: str) -> None:
    path = tmp_path / "w.npz"
    np.savez(path, **{**sparse_parts(form), **change})
    refused(path, place)


def test_a_scipy_file_without_one_of_its_arrays(tmp_path: Path) -> None:
    parts = sparse_parts("csr")
    del parts["indptr"]
    np.savez(tmp_path / "w.npz", **parts)
    refused(tmp_path / "w.npz", "needs the array 'indptr'")


def test_a_long_header_is_refused_in_our_own_words(tmp_path: Path) -> None:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}" + b" " * 10_000 + b"\n"
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4))
    with pytest.raises(
        MatrixError, match=r"its header has 10058 bytes, of which at most 10000 are read"
    ) as error:
        load_matrix(path)
    assert "\n" not in str(error.value)


def test_headers_of_python_2_are_read_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 1L)}\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0\0\x80?")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_matrix(path).to_dense().tolist() == [[1.0]]
        assert load_numpy(path).tolist() == [[1.0]]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_names_of_several_lines_stand_in_one(tmp_path: Path, suffix: str) -> None:
    names = ["a\x1b[31m", "b\nc", "d\te"]
    path = tmp_path / f"names{suffix}"
    if suffix == ".npz":
        np.savez(path, **{name: np.eye(2, dtype=np.float32) for name in names})
    else:
        entries = {
            name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * i, 4 * i + 4]}
            for i, name in enumerate(names)
        }
        header = json.dumps(entries).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(MatrixError) as error:
        load_matrix(path)
    assert str(error.value).isprintable()
    assert r"b\nc" in str(error.value)
