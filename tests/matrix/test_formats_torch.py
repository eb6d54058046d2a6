"""PyTorch tensors to CSR; runs where PyTorch is installed."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import as_csr

torch = pytest.importorskip("torch")

DENSE = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4], [0, 5, 6, 0]], dtype=np.float32)


@pytest.mark.parametrize("layout", ["strided", "coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64"])
def test_every_layout_and_dtype(layout: str, dtype: str) -> None:
    tensor = torch.from_numpy(DENSE).to(getattr(torch, dtype))
    if layout in ("bsr", "bsc"):
        tensor = getattr(tensor, f"to_sparse_{layout}")((2, 2))
    elif layout != "strided":
        tensor = getattr(tensor, "to_sparse" if layout == "coo" else f"to_sparse_{layout}")()
    matrix = as_csr(tensor, drop_zeros=True)
    assert np.array_equal(matrix.to_scipy().toarray(), DENSE)
    assert matrix.values.dtype == (np.float64 if dtype == "float64" else np.float32)


def test_a_dense_tensor_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegen.matrix.formats.MOST_AT_ONCE", 9)
    tensor = torch.from_numpy(DENSE)
    assert np.array_equal(as_csr(tensor).to_scipy().toarray(), DENSE)
    assert np.array_equal(as_csr(tensor.t()).to_scipy().toarray(), DENSE.T)
    assert np.array_equal(as_csr(tensor != 0).to_scipy().toarray(), DENSE != 0)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_a_dense_tensor_without_elements(shape: tuple[int, int]) -> None:
    matrix = as_csr(torch.zeros(shape))
    assert (matrix.shape, matrix.nnz) == (shape, 0)


def test_a_parameter_needs_no_detach() -> None:
    assert as_csr(torch.nn.Parameter(torch.from_numpy(DENSE.copy()))).nnz == 6


def test_duplicates_of_an_uncoalesced_tensor_are_summed() -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 2))
    assert as_csr(tensor).values.tolist() == [3.0]


def test_meta_and_hybrid_tensors_are_refused() -> None:
    with pytest.raises(MatrixError, match="cannot be copied"):
        as_csr(torch.empty(2, 2, device="meta"))
    with pytest.raises(MatrixError, match="dense dimensions"):
        as_csr(torch.eye(2).to_sparse(1))


def test_complex_and_other_dimensions_are_refused() -> None:
    with pytest.raises(MatrixError, match="complex"):
        as_csr(torch.eye(2, dtype=torch.complex64))
    with pytest.raises(MatrixError, match="2 dimensions"):
        as_csr(torch.ones(3))
