"""The sparse container, and matrices of other libraries converted to it: SciPy, NumPy, PyTorch and CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix, check_compressed, check_shape, is_canonical, row_of
from sparsegen.matrix.foreign import Compressed, Coordinates, describe, is_scipy, unwrap
from sparsegen.system.numpy_types import Array, NumpyType
from sparsegen.system.threads import in_threads

__all__ = ["MAX_INDEX", "Array", "CsrMatrix", "as_csr", "as_mask", "as_real"]

HIDDEN = -100.0  # largest value of additive masks that hides a key: they use -100, -1e4, -1e9, -inf
SURELY_HIDDEN = -1e4  # beside values above zero
BIAS_SHARE = 0.1  # of a value that hides a key: what is added to scores elsewhere is less than that
ADDITIVE = "this is an additive mask, with a large negative number where a key is not seen"
AT_ONCE = 1 << 18  # elements that a thread looks at together


def as_csr(
    obj: object, *, drop_zeros: bool = False, allow_nonfinite: bool = False, source: str | None = None
) -> CsrMatrix:
    """Any matrix to CSR with sorted indices and summed duplicates.

    Args:
        obj: a `CsrMatrix`; a ``scipy.sparse`` matrix or array of any format; a NumPy array of 2 dimensions;
            a PyTorch tensor (dense, COO, CSR, CSC, BSR, BSC) or CuPy array or ``cupyx.scipy.sparse`` matrix,
            copied from its device; or `Compressed` or `Coordinates`. Values stay float32 or float64; float16,
            bfloat16, integers and booleans become float32.
        drop_zeros: leave out stored zeros (after duplicates are summed). A dense array's zeros never count
            as stored; a block's do.
        allow_nonfinite: let NaN and infinities pass. They are refused by default: a kernel's result cannot
            be verified with them, and in trained weights they are a mistake.
        source: name of the matrix in messages; default a word for its type.

    Raises:
        MatrixError: malformed, not a matrix, or of a type that cannot be converted.
    """
    name = describe(obj) if source is None else arguments.text(source, "source", MatrixError)
    drop_zeros = arguments.flag(drop_zeros, "drop_zeros", MatrixError)
    allow_nonfinite = arguments.flag(allow_nonfinite, "allow_nonfinite", MatrixError)
    matrix = _to_csr(unwrap(obj, name), name)
    if drop_zeros:
        matrix = _without_zeros(matrix)
    if not allow_nonfinite:
        _require_finite(matrix, name)
    return matrix


def as_mask(mask: object, *, source: str | None = None) -> CsrMatrix:
    """Converts a mask as `as_csr` does, for its pattern alone; a dense mask's pattern is its nonzero places.

    Values are ignored, so that an additive mask would be read with its meaning inverted: it is refused, with biases
    where keys are seen and without.

    Raises:
        MatrixError: malformed, not a matrix, additive, or with NaN or infinities.
    """
    name = describe(mask) if source is None else source
    csr = as_csr(mask, allow_nonfinite=True, source=name)
    hides = csr.values <= HIDDEN
    if hides.any():
        biases = csr.values[~hides]
        if not biases.size:
            raise MatrixError(f"{ADDITIVE}; pass the seen places instead: mask == 0", source=name)
        if _are_biases(biases, csr.values[hides]):
            raise MatrixError(
                f"{ADDITIVE}, and biases elsewhere, which are not added here; pass the seen places instead: "
                f"mask > {HIDDEN:.0f}; or mask != 0, if it is none",
                source=name,
            )
    _require_finite(csr, name)
    return csr


def _are_biases(others: Array, hidden: Array) -> bool:
    """True if the other values of what may be an additive mask are added to scores: none is positive, or all small."""
    if others.max() <= 0:
        return True
    surely = hidden[hidden <= SURELY_HIDDEN]
    return bool(surely.size == hidden.size and np.abs(others).max() <= -BIAS_SHARE * surely.max())


def _to_csr(obj: object, source: str) -> CsrMatrix:
    if isinstance(obj, CsrMatrix):
        values = as_real(obj.values, source)
        return obj if values is obj.values else obj.with_values(values)
    if isinstance(obj, Compressed):
        return _from_compressed(obj, source)
    if isinstance(obj, Coordinates):
        return _from_coordinates(obj, source)
    if is_scipy(obj):
        return _from_scipy(obj, source)
    if isinstance(obj, np.ma.MaskedArray):
        raise MatrixError(
            "a masked array may hold anything where it is masked; use .filled(0)", source=source
        )
    if isinstance(obj, np.ndarray):
        return _from_dense(np.asarray(obj), source)
    raise MatrixError(
        "expected a scipy.sparse matrix, a NumPy, PyTorch or CuPy array or a CsrMatrix; "
        "load_matrix() reads files",
        source=source,
    )


def _from_scipy(matrix: Any, source: str) -> CsrMatrix:
    shape = check_shape(matrix.shape, source=source)
    if matrix.format in ("csr", "csc", "bsr"):
        return _from_compressed(
            Compressed(matrix.format, shape, matrix.indptr, matrix.indices, matrix.data), source
        )
    coordinates = matrix.tocoo()
    return _from_coordinates(Coordinates(shape, coordinates.row, coordinates.col, coordinates.data), source)


def _from_dense(array: Array, source: str) -> CsrMatrix:
    shape = check_shape(array.shape, source=source)
    MemoryBudget.of_machine(source).require_matrix(shape, 0)
    dtype = as_real(array[:0], source).dtype

    def read(first: int, last: int) -> Array:
        part = array[first:last]
        return part if part.dtype == np.float16 else as_real(part, source)

    return CsrMatrix(shape, *nonzeros_by_row(shape, read, dtype))


def _from_compressed(stored: Compressed, source: str) -> CsrMatrix:
    shape = check_shape(stored.shape, source=source)
    by_row = stored.layout in ("csr", "bsr")
    offsets, indices, values = map(np.asarray, (stored.offsets, stored.indices, stored.values))
    blocked = stored.layout in ("bsr", "bsc")
    if values.ndim != (3 if blocked else 1):
        expected = "blocks × block rows × block columns" if blocked else "one dimension"
        raise MatrixError(
            f"expected {expected}, got shape {values.shape}",
            source=source,
            place="values",
        )
    block = (int(values.shape[1]), int(values.shape[2])) if blocked else (1, 1)
    if 0 in block or shape[0] % block[0] or shape[1] % block[1]:
        raise MatrixError(
            f"blocks of {block} do not tile a matrix of shape {shape}", source=source, place="shape"
        )
    indices, values = _without_room(offsets, indices, values)
    given = values.dtype
    rows, columns = shape[0] // block[0], shape[1] // block[1]
    word = "block " if blocked else ""
    check_compressed(
        offsets,
        indices,
        (rows, columns) if by_row else (columns, rows),
        source=source,
        offsets_name=stored.offsets_name,
        indices_name=stored.indices_name,
        major=word + ("row" if by_row else "column"),
        minor=word + ("column" if by_row else "row"),
    )
    if values.shape[0] != indices.size:
        raise MatrixError(
            f"expected {indices.size} values, one for each index, got shape {values.shape}",
            source=source,
            place="values",
        )
    values = as_real(values, source)
    if stored.layout == "csr" and is_canonical(offsets, indices):
        return CsrMatrix(shape, offsets, indices, values)
    if values.size > MAX_INDEX:
        raise MatrixError(f"{values.size} stored values are over the 32-bit index range", source=source)
    MemoryBudget.of_machine(source).require_matrix(shape, values.size)
    import scipy.sparse

    offsets, indices = offsets.astype(np.int32), indices.astype(np.int32)
    match stored.layout:
        case "csr":
            # A copy: sum_duplicates works in place, and the values may be the caller's.
            csr = scipy.sparse.csr_array((values, indices, offsets), shape=shape, copy=True)
        case "csc":
            csr = scipy.sparse.csc_array((values, indices, offsets), shape=shape).tocsr()
        case "bsr":
            csr = scipy.sparse.bsr_array((values, indices, offsets), shape=shape, blocksize=block).tocsr()
        case "bsc":
            # The transpose of a BSC matrix is a BSR matrix of transposed blocks.
            transposed = np.ascontiguousarray(values.transpose(0, 2, 1))
            csr = scipy.sparse.bsr_array(
                (transposed, indices, offsets), shape=shape[::-1], blocksize=block[::-1]
            ).T.tocsr()
    return _canonical(csr, given)


def _without_room(offsets: Array, indices: Array, values: Array) -> tuple[Array, Array]:
    """Indices and values up to the last offset: SciPy's matrices may have room behind it, which holds nothing."""
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not offsets.size or indices.ndim != 1:
        return indices, values
    last = int(offsets[-1])
    if 0 <= last < min(indices.size, values.shape[0]):
        return indices[:last], values[:last]
    return indices, values


def _from_coordinates(stored: Coordinates, source: str) -> CsrMatrix:
    shape = check_shape(stored.shape, source=source)
    values = as_real(np.asarray(stored.values), source)
    for name, indices, size in (("row", stored.rows, shape[0]), ("column", stored.columns, shape[1])):
        if indices.shape != values.shape or indices.ndim != 1:
            raise MatrixError(
                f"expected {name} indices of the values' shape {values.shape}, got {indices.shape}",
                source=source,
                place=f"{name} indices",
            )
        if indices.dtype.kind not in "iu":
            raise MatrixError(
                f"expected integers, got {indices.dtype}", source=source, place=f"{name} indices"
            )
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            at = int(((indices < 0) | (indices >= size)).argmax())
            raise MatrixError(
                f"{name} {indices[at]} is outside [0, {size})", source=source, place=f"nonzero {at}"
            )
    if values.size > MAX_INDEX:
        raise MatrixError(f"{values.size} nonzeros are over the 32-bit index range", source=source)
    MemoryBudget.of_machine(source).require_matrix(shape, values.size)
    import scipy.sparse

    rows, columns = stored.rows.astype(np.int32), stored.columns.astype(np.int32)
    csr = scipy.sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()
    return _canonical(csr, stored.values.dtype)


def as_real(values: Array, source: str) -> Array:
    """float32 and float64 as they are; float16, integers and booleans to float32.

    Raises:
        MatrixError: complex numbers, objects, text and whatever else is no real number.
    """
    if values.dtype.kind not in "fiub":
        hint = "; take its real part first" if values.dtype.kind == "c" else ""
        raise MatrixError(f"expected real numbers, got {values.dtype}{hint}", source=source, place="values")
    wide = values.dtype.kind == "f" and values.dtype.itemsize > 4
    # astype also brings a foreign byte order to the machine's own.
    return values.astype(np.float64 if wide else np.float32, copy=False)


def _canonical(csr: Any, dtype: np.dtype[Any]) -> CsrMatrix:
    """Sums duplicates and returns the matrix; duplicate booleans are true if any is.

    Args:
        dtype: type of the values as they were given.
    """
    csr.sum_duplicates()
    if dtype.kind == "b":
        csr.data = (csr.data != 0).astype(csr.data.dtype)
    return CsrMatrix(csr.shape, csr.indptr, csr.indices, csr.data)


def _without_zeros(matrix: CsrMatrix) -> CsrMatrix:
    kept = matrix.values != 0
    if kept.all():
        return matrix
    before = np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))
    return CsrMatrix(
        matrix.shape, before[matrix.row_offsets], matrix.column_indices[kept], matrix.values[kept]
    )


def _require_finite(matrix: CsrMatrix, source: str) -> None:
    finite = np.isfinite(matrix.values)
    if finite.all():
        return
    at = int(finite.argmin())
    raise MatrixError(
        f"the value is {matrix.values[at]}; correct it, or in Python allow NaN and infinities (allow_nonfinite=True)",
        source=source,
        place=f"row {row_of(matrix.row_offsets, at)}, column {matrix.column_indices[at]}, nonzero {at}",
    )


def nonzeros_by_row(
    shape: tuple[int, int], read: Callable[[int, int], Array], dtype: NumpyType
) -> tuple[Array, Array, Array]:
    """Find what is not zero, NaN included, in threads.

    Args:
        read: gives the rows from one number up to another, of any real type; it is asked twice for each.
        dtype: type of the values.

    Returns:
        Offsets (int64), columns (int32) and values as in CSR.
    """
    m, k = shape
    rows = max(1, min(m, AT_ONCE // max(1, k)))
    begins = range(0, max(1, m), rows)
    lengths = in_threads(
        lambda first: np.count_nonzero(_is_held(read(first, min(m, first + rows))), axis=1), begins
    )
    offsets = np.zeros(m + 1, dtype=np.int64)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    columns, values = np.empty(offsets[-1], dtype=np.int32), np.empty(offsets[-1], dtype=dtype)
    column = np.tile(np.arange(k, dtype=np.int32), rows)

    def take(first: int) -> None:
        last = min(m, first + rows)
        part, to = read(first, last), slice(offsets[first], offsets[last])
        places = np.flatnonzero(_is_held(part))
        columns[to] = column.take(places)
        values[to] = part.reshape(-1).take(places)

    in_threads(take, begins)
    return offsets, columns, values


def _is_held(part: Array) -> Array:
    """True for each element that is not zero."""
    if part.dtype == np.float16:  # by all bits but the sign: NumPy is slow at this type
        return np.asarray(part.view(np.uint16) << 1 != 0)
    return np.asarray(part != 0)
