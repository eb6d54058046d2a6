"""PyTorch tensors to CSR; runs where PyTorch is installed."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.errors import MatrixError
from sparsegen.matrix import foreign
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


def test_a_dense_tensor_on_a_device_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's tensor is read so; here it is one of this host."""
    monkeypatch.setattr(foreign, "MOST_AT_ONCE", 9)
    tensor = torch.from_numpy(DENSE)
    for dense in (tensor, tensor.t(), tensor != 0):
        found = as_csr(foreign._nonzeros_there(dense, (4, 4), lambda part: part.numpy(), "weights"))
        here = as_csr(dense)
        assert np.array_equal(found.to_dense(), dense.numpy())
        assert found.fingerprint() == here.fingerprint()
        assert found.values.dtype == here.values.dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_zeros_of_a_dense_tensor(dtype: str) -> None:
    """A negative zero is one, and the smallest number is none; a negative view is what it stands for."""
    kind = getattr(torch, dtype)
    least = torch.tensor(1, dtype=torch.int16 if kind.itemsize == 2 else torch.int32).view(kind)
    tensor = torch.tensor([[0.0, -0.0, 2.0], [-1.0, 0.0, 0.0]], dtype=kind)
    tensor[1, 2] = least
    matrix = as_csr(tensor)
    assert (matrix.row_offsets.tolist(), matrix.column_indices.tolist()) == ([0, 1, 3], [2, 0, 2])
    assert matrix.values.tolist() == [2.0, -1.0, float(least)]
    negative = torch.complex(torch.zeros(2, 2), torch.eye(2)).conj().imag
    assert negative.is_neg() and as_csr(negative).values.tolist() == [-1.0, -1.0]


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
