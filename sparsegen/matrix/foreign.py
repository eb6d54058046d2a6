"""Matrices of other libraries as the arrays that they hold: SciPy, PyTorch, CuPy and sparse (pydata).

None of them is imported here: an object of theirs can only exist once its owner has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.system.numpy_types import Array

CompressedLayout = Literal["csr", "csc", "bsr", "bsc"]
MOST_AT_ONCE = 1 << 28  # elements of a dense tensor: PyTorch finds nonzeros with 16 bytes for each


@dataclass(frozen=True, slots=True)
class Compressed:
    """CSR, CSC, BSR or BSC arrays as they were stored, nothing checked yet.

    Attributes:
        shape: (rows, columns) of the whole matrix.
        offsets: one more than (block) rows for csr and bsr, than (block) columns for csc and bsc.
        values: nnz, or blocks × block rows × block columns.
        offsets_name, indices_name: names of the two arrays in messages.
    """

    layout: CompressedLayout
    shape: tuple[int, int]
    offsets: Array
    indices: Array
    values: Array
    offsets_name: str = "indptr"
    indices_name: str = "indices"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Row and column of every nonzero as they were stored, nothing checked yet; all of length nnz."""

    shape: tuple[int, int]
    rows: Array
    columns: Array
    values: Array


def describe(obj: object) -> str:
    """A word for an object's type in messages: ``scipy.sparse csr_array``, ``torch Tensor``."""
    if is_scipy(obj):
        return f"scipy.sparse {type(obj).__name__}"
    root = type(obj).__module__.partition(".")[0]
    return type(obj).__name__ if root == "builtins" else f"{root} {type(obj).__name__}"


def is_scipy(obj: object) -> bool:
    """True for a sparse matrix or array of SciPy; never imports SciPy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(obj))


def unwrap(obj: Any, source: str) -> Any:
    """Objects of PyTorch and CuPy to host arrays; all others as they are."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return _from_torch(torch, obj, source)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(obj, cupy.ndarray):
        return obj.get()
    pydata = sys.modules.get("sparse")
    if pydata is not None and isinstance(obj, getattr(pydata, "SparseArray", ())):
        return _from_pydata(obj, source)
    cupy_sparse = sys.modules.get("cupyx.scipy.sparse")
    if cupy_sparse is not None and cupy_sparse.issparse(obj):
        return obj.get()
    return obj


def _from_pydata(array: Any, source: str) -> Coordinates:
    """An array of the library ``sparse`` (pydata), of any of its formats."""
    if array.ndim != 2:
        raise MatrixError(f"expected 2 dimensions, got shape {array.shape}", source=source)
    if array.fill_value != 0:
        raise MatrixError(
            f"what is not stored must be 0, got a fill_value of {array.fill_value}", source=source
        )
    rows, columns = array.asformat("coo").coords
    shape = (int(array.shape[0]), int(array.shape[1]))
    return Coordinates(shape, rows, columns, np.asarray(array.asformat("coo").data))


def _from_torch(torch: Any, tensor: Any, source: str) -> Array | Compressed | Coordinates:
    tensor = tensor.detach()
    if tensor.ndim != 2:
        raise MatrixError(
            f"expected a tensor of 2 dimensions, got shape {tuple(tensor.shape)}", source=source
        )
    shape = (int(tensor.shape[0]), int(tensor.shape[1]))

    def host(part: Any) -> Array:
        # NumPy has no bfloat16; float32 holds it exactly.
        try:
            array: Array = (part.float() if part.dtype == torch.bfloat16 else part).cpu().numpy()
        except (TypeError, NotImplementedError) as error:  # float8, quantised; a meta tensor
            raise MatrixError(
                f"a tensor of {part.dtype} cannot be copied to NumPy: {error}", source=source
            ) from error
        return array

    if tensor.layout == torch.strided:
        if tensor.device.type == "cpu":
            return host(tensor.resolve_conj().resolve_neg())
        return _nonzeros_there(tensor, shape, host, source)
    if tensor.layout == torch.sparse_coo:
        if tensor.sparse_dim() != 2:
            raise MatrixError(
                "a COO tensor with dense dimensions cannot be read; use .to_dense()", source=source
            )
        # The accessors of an uncoalesced tensor that do not raise start with an underscore.
        rows, columns = host(tensor._indices())
        return Coordinates(shape, rows, columns, host(tensor._values()))
    values = host(tensor.values())
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        layout: CompressedLayout = "csr" if tensor.layout == torch.sparse_csr else "bsr"
        offsets, indices = host(tensor.crow_indices()), host(tensor.col_indices())
        return Compressed(layout, shape, offsets, indices, values, "crow_indices", "col_indices")
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        layout = "csc" if tensor.layout == torch.sparse_csc else "bsc"
        offsets, indices = host(tensor.ccol_indices()), host(tensor.row_indices())
        return Compressed(layout, shape, offsets, indices, values, "ccol_indices", "row_indices")
    raise MatrixError(
        f"tensors of layout {tensor.layout} cannot be read; use .to_sparse_csr()", source=source
    )


def _nonzeros_there(
    tensor: Any, shape: tuple[int, int], host: Callable[[Any], Array], source: str
) -> Compressed:
    """Finds the nonzeros of a dense tensor on its own device, so that a GPU's host gets these alone."""
    torch = sys.modules["torch"]
    counts, columns, kept = [], [], []
    for rows in tensor.split(max(1, MOST_AT_ONCE // max(1, shape[1]))):
        is_kept = _is_not_zero(rows, source)
        counts.append(host(is_kept.sum(dim=1)))
        columns.append(host(is_kept.nonzero()[:, 1].to(torch.int32)))
        kept.append(host(rows[is_kept]))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts), dtype=np.int64)])
    return Compressed(
        "csr", shape, offsets, np.concatenate(columns), np.concatenate(kept), "offsets", "columns"
    )


def _is_not_zero(tensor: Any, source: str) -> Any:
    try:
        return tensor != 0
    except (RuntimeError, NotImplementedError) as error:  # float8, quantised
        raise MatrixError(
            f"a tensor of {tensor.dtype} cannot be compared to 0: {error}", source=source
        ) from error
