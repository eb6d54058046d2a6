"""Matrices as the libraries that wrote them read them: SciPy, pydata/sparse, PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import sparsegen
from sparsegen.errors import MatrixError

A = sp.random(6, 5, 0.4, random_state=1, dtype=np.float32).tocoo()


def _read(path: Path) -> Any:
    return sparsegen.load_matrix(path).to_dense()


def test_coo_with_coords(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays = {"shape": A.shape, "data": A.data, "coords": np.array([A.row, A.col])}
    np.savez(path, format="coo", _is_array=True, **arrays)
    np.testing.assert_array_equal(_read(path), sp.load_npz(path).toarray())
    np.savez(path, format="coo", **arrays | {"coords": np.array([A.row, A.col, A.col])})
    with pytest.raises(MatrixError, match="2 × nonzeros"):
        _read(path)


def test_one_dimension_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    sp.save_npz(path, sp.coo_array(np.array([0, 1.0, 0, 2])))
    with pytest.raises(MatrixError, match="2 dimensions"):
        _read(path)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_pydata_sparse(tmp_path: Path, axis: int | None) -> None:
    """Its ``save_npz`` names the arrays so."""
    path, csr = tmp_path / "a.npz", A.tocsr() if axis != 1 else A.tocsc()
    arrays: dict[str, Any] = {
        "data": csr.data,
        "indices": csr.indices,
        "indptr": csr.indptr,
        "compressed_axes": [axis],
    }
    if axis is None:
        arrays = {"data": A.data, "coords": np.array([A.row, A.col])}
    np.savez(path, shape=A.shape, fill_value=np.float32(0), **arrays)
    np.testing.assert_array_equal(_read(path), A.toarray())
    np.savez(path, shape=A.shape, fill_value=np.float32(1), **arrays)
    with pytest.raises(MatrixError, match="must be 0"):
        _read(path)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
def test_room_behind_the_last_nonzero(tmp_path: Path, form: str) -> None:
    given = A.asformat(form)
    wanted = given.toarray()
    blocks = np.full_like(given.data[:2], 5)
    given.data = np.concatenate([given.data, blocks])
    given.indices = np.concatenate([given.indices, np.array([99, 99], given.indices.dtype)])
    np.testing.assert_array_equal(sparsegen.as_csr(given).to_dense(), wanted)
    sp.save_npz(tmp_path / "a.npz", given)
    np.testing.assert_array_equal(_read(tmp_path / "a.npz"), wanted)


def test_too_few_nonzeros_are_refused() -> None:
    short = A.tocsr()
    short.indptr = short.indptr + np.array([0] * (short.indptr.size - 1) + [3], short.indptr.dtype)
    with pytest.raises(MatrixError, match="last offset"):
        sparsegen.as_csr(short)


@pytest.mark.parametrize(("dtype", "large"), [("uint32", 7), ("uint64", 2**63 + 2**40)])
def test_unsigned_matrix_market(tmp_path: Path, dtype: str, large: int) -> None:
    array = np.array([[0, large], [3, 0]], dtype)
    for name, given in (("sparse", sp.coo_array(array)), ("dense", array)):
        path = tmp_path / f"{name}.mtx"
        scipy.io.mmwrite(path, given)
        assert b"unsigned-integer" in path.read_bytes()
        np.testing.assert_array_equal(_read(path), array.astype(np.float32))


def test_a_skew_symmetric_matrix_has_no_diagonal(tmp_path: Path) -> None:
    path = tmp_path / "a.mtx"
    path.write_text("%%MatrixMarket matrix coordinate unsigned-integer skew-symmetric\n2 2 1\n2 1 4\n")
    np.testing.assert_array_equal(_read(path), [[0, -4], [4, 0]])
    path.write_text("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n1 1 4\n")
    with pytest.raises(MatrixError, match="diagonal"):
        _read(path)


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_duplicates_of_booleans_are_true(form: str) -> None:
    coo = sp.coo_array((np.array([True, True, True, False]), ([0, 0, 1, 1], [1, 1, 0, 1])), shape=(2, 2))
    found = sparsegen.as_csr(coo if form == "coo" else _uncanonical(coo, form))
    np.testing.assert_array_equal(found.to_dense(), coo.toarray())
    assert found.nnz == 3


def _uncanonical(coo: Any, form: str) -> Any:
    """Returns the matrix with its duplicates in one row or column."""
    kind = sp.csr_array if form == "csr" else sp.csc_array
    major, minor = (coo.row, coo.col) if form == "csr" else (coo.col, coo.row)
    order = np.argsort(major, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(major, minlength=2))])
    return kind((coo.data[order], minor[order], offsets), shape=(2, 2))


def test_duplicates_of_booleans_of_pytorch_are_true() -> None:
    torch = pytest.importorskip("torch")
    coo = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], torch.tensor([True, True, True]), (2, 2))
    np.testing.assert_array_equal(sparsegen.as_csr(coo).to_dense(), coo.to_dense().numpy())
