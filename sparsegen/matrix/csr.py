"""Compressed sparse rows, validated on construction, so that no unchecked index ever reaches a kernel."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from sparsegen import arguments
from sparsegen.errors import MatrixError
from sparsegen.system.numpy_types import Array

if TYPE_CHECKING:
    import scipy.sparse

MAX_INDEX = 2**31 - 1

T = TypeVar("T")


class Transposition(NamedTuple):
    """A pattern of nonzeros by columns, and which nonzero is which.

    Attributes:
        row_offsets, column_indices: int32, the transposed pattern in CSR.
        source: int32, for each nonzero of the transposed pattern its number in the CSR order of the original.
    """

    row_offsets: Array
    column_indices: Array
    source: Array


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CsrMatrix:
    """Compressed sparse rows: sorted, unique column indices in every row.

    The constructor takes index arrays of any integer type, narrows them to int32 once they are known to fit,
    and keeps read-only views: an array that already has the right type is shared, not copied, and stays
    writable for its owner (who must not change its indices any more).

    Attributes:
        shape: (rows, columns), each below 2³¹.
        row_offsets: int32, rows + 1.
        column_indices: int32, nnz.
        values: floating point, nnz; NaN and infinities are let through here (`formats.as_csr` refuses them).

    Raises:
        MatrixError: an invariant does not hold; the message names the row and the nonzero.
    """

    shape: tuple[int, int]
    row_offsets: Array
    column_indices: Array
    values: Array
    # Cached facts of the pattern, by name; matrices of one pattern that `with_values` made of each other share them.
    _known: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<CsrMatrix: {rows} × {columns}, {self.nnz} nonzeros, {self.values.dtype}>"

    def __post_init__(self) -> None:
        shape = check_shape(self.shape)
        offsets = arguments.array(self.row_offsets, "row_offsets", MatrixError)
        columns = arguments.array(self.column_indices, "column_indices", MatrixError)
        values = arguments.array(self.values, "values", MatrixError)
        check_compressed(offsets, columns, shape)
        if values.ndim != 1 or values.shape != columns.shape:
            raise MatrixError(
                f"expected one value for each of the {columns.size} column indices, got shape {values.shape}",
                place="values",
            )
        _require_floating(values)
        unsorted = _first_unsorted(offsets, columns)
        if unsorted is not None:
            row = row_of(offsets, unsorted)
            raise MatrixError(
                f"column {columns[unsorted]} follows column {columns[unsorted - 1]}; columns must increase "
                "within a row (as_csr() sorts them and sums duplicates)",
                place=f"row {row}, nonzero {unsorted}",
            )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "row_offsets", _frozen(offsets, np.dtype(np.int32)))
        object.__setattr__(self, "column_indices", _frozen(columns, np.dtype(np.int32)))
        object.__setattr__(self, "values", _frozen(values, values.dtype))

    @classmethod
    def without_nonzeros(cls, shape: tuple[int, int]) -> CsrMatrix:
        """A float32 matrix of zeros, which takes no memory however many rows it has.

        Raises:
            MatrixError: a size is negative or too large.
        """
        empty = object.__new__(cls)
        rows, columns = check_shape(shape)
        object.__setattr__(empty, "shape", (rows, columns))
        object.__setattr__(empty, "row_offsets", np.broadcast_to(np.int32(0), (rows + 1,)))
        object.__setattr__(empty, "column_indices", _frozen(np.zeros(0, np.int32), np.dtype(np.int32)))
        object.__setattr__(empty, "values", _frozen(np.zeros(0, np.float32), np.dtype(np.float32)))
        object.__setattr__(empty, "_known", {})
        return empty

    def __getstate__(self) -> list[Any]:
        """Returns the matrix without what is cached of its pattern, which takes memory and depends on the version."""
        return [self.shape, self.row_offsets, self.column_indices, self.values]

    def __setstate__(self, state: Sequence[object]) -> None:
        for name, value in zip(("shape", "row_offsets", "column_indices", "values"), state, strict=False):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_known", {})

    @property
    def nnz(self) -> int:
        return int(self.values.shape[0])

    def to_scipy(self) -> scipy.sparse.csr_array:
        import scipy.sparse

        return scipy.sparse.csr_array((self.values, self.column_indices, self.row_offsets), shape=self.shape)

    def to_dense(self) -> Array:
        """The matrix with its zeros, m × k in the values' dtype."""
        dense = np.zeros(self.shape, dtype=self.values.dtype)
        dense[np.repeat(np.arange(self.shape[0]), np.diff(self.row_offsets)), self.column_indices] = (
            self.values
        )
        return dense

    def with_values(self, values: Array) -> CsrMatrix:
        """The same pattern, which is not checked again, with other values (nnz of them)."""
        if values.shape != self.values.shape:
            raise MatrixError(f"expected {self.nnz} values on this pattern, got shape {values.shape}")
        _require_floating(values)
        other = object.__new__(CsrMatrix)
        for name in ("shape", "row_offsets", "column_indices", "_known"):
            object.__setattr__(other, name, getattr(self, name))
        object.__setattr__(other, "values", _frozen(values, values.dtype))
        return other

    def known(self, name: str, work: Callable[[], T]) -> T:
        """Returns ``work()``, cached under a name for all matrices of this pattern."""
        if name not in self._known:
            self._known[name] = work()
        found: T = self._known[name]
        return found

    def transposition(self) -> Transposition:
        """The transposed pattern; made at the first use and kept (`known`)."""
        return self.known("transposition", self._transposition)

    def _transposition(self) -> Transposition:
        import scipy.sparse

        numbered = scipy.sparse.csr_array(
            (np.arange(self.nnz, dtype=np.int32), self.column_indices, self.row_offsets), shape=self.shape
        ).tocsc()
        parts = (numbered.indptr, numbered.indices, numbered.data)
        return Transposition(*(_frozen(part, np.dtype(np.int32)) for part in parts))

    def transposed(self) -> CsrMatrix:
        """The transpose, with its nonzeros in CSR order; see `transposition`."""
        t = self.transposition()
        rows, columns = self.shape
        return CsrMatrix((columns, rows), t.row_offsets, t.column_indices, self.values[t.source])

    def fingerprint(self) -> str:
        """SHA-256 of the pattern (shape, offsets, indices), which is kept (`known`); values do not enter."""
        return self.known("fingerprint", self._fingerprint)

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(repr(self.shape).encode())
        digest.update(np.ascontiguousarray(self.row_offsets, dtype="<i4").data)
        digest.update(np.ascontiguousarray(self.column_indices, dtype="<i4").data)
        return digest.hexdigest()


def below_each_other(matrices: Sequence[CsrMatrix]) -> CsrMatrix:
    """The rows of one matrix after the other, all with equal numbers of columns.

    Raises:
        MatrixError: there is none, other numbers of columns, or too many rows or nonzeros together.
    """
    columns = {matrix.shape[1] for matrix in matrices}
    if len(columns) != 1:
        raise MatrixError(f"expected matrices with one number of columns, got {sorted(columns)}")
    lengths = np.concatenate([np.diff(matrix.row_offsets) for matrix in matrices])
    joined = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    return CsrMatrix(
        (joined.size - 1, columns.pop()),
        joined,
        np.concatenate([matrix.column_indices for matrix in matrices]),
        np.concatenate([matrix.values for matrix in matrices]),
    )


def check_shape(shape: Any, *, source: str | None = None) -> tuple[int, int]:
    """Two sizes from 0 to 2³¹ - 1 as Python integers; by arithmetic alone, nothing is allocated.

    Raises:
        MatrixError: another number of dimensions, a size that is no integer, or one out of range.
    """
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise MatrixError(
            f"expected two integer sizes, got {shape!r}", source=source, place="shape"
        ) from None
    if len(sizes) != 2:
        raise MatrixError(
            f"expected a matrix of 2 dimensions, got {len(sizes)} {sizes}", source=source, place="shape"
        )
    for size, word in zip(sizes, ("rows", "columns"), strict=True):
        if not 0 <= size <= MAX_INDEX:
            raise MatrixError(
                f"{size} {word} are outside the 32-bit index range [0, {MAX_INDEX}]",
                source=source,
                place="shape",
            )
    return sizes[0], sizes[1]


def check_compressed(
    offsets: Array,
    indices: Array,
    shape: tuple[int, int],
    *,
    source: str | None = None,
    offsets_name: str = "row_offsets",
    indices_name: str = "column_indices",
    major: str = "row",
    minor: str = "column",
) -> None:
    """Check that compressed arrays can be walked safely; their order within a row is not looked at.

    Args:
        offsets: integers, ``shape[0] + 1``: from 0 to nnz without a decrease.
        indices: integers, nnz: each in ``[0, shape[1])``.
        shape: sizes along the compressed (major) and the indexed (minor) dimension.
        offsets_name, indices_name, major, minor: words for the messages (CSC swaps rows and columns).

    Raises:
        MatrixError: the first thing that does not hold, with its array, row and nonzero.
    """

    def refuse(message: str, place: str) -> MatrixError:
        return MatrixError(message, source=source, place=place)

    for array, name in ((offsets, offsets_name), (indices, indices_name)):
        if array.ndim != 1:
            raise refuse(f"expected 1 dimension, got shape {array.shape}", name)
        if array.dtype.kind not in "iu":
            raise refuse(f"expected integers, got {array.dtype}", name)
    majors, minors = shape
    if indices.size > MAX_INDEX:
        raise refuse(f"{indices.size} nonzeros are over the 32-bit index range ({MAX_INDEX})", indices_name)
    if offsets.size != majors + 1:
        raise refuse(f"{majors} {major}s need {majors + 1} offsets, got {offsets.size}", offsets_name)
    if offsets[0] != 0:
        raise refuse(f"the first offset must be 0, got {offsets[0]}", f"{offsets_name}[0]")
    # Compared, not subtracted: a difference of unsigned offsets would wrap around.
    decreasing = offsets[1:] < offsets[:-1]
    if decreasing.any():
        row = int(decreasing.argmax())
        raise refuse(
            f"offsets must not decrease or be negative, got {offsets[row + 1]} after {offsets[row]}",
            f"{offsets_name}[{row + 1}], the end of {major} {row}",
        )
    if offsets[-1] != indices.size:
        raise refuse(
            f"the last offset must be the number of nonzeros, {indices.size}, got {offsets[-1]}",
            f"{offsets_name}[{majors}]",
        )
    if indices.size and (indices.min() < 0 or indices.max() >= minors):
        at = int(((indices < 0) | (indices >= minors)).argmax())
        raise refuse(
            f"{minor} {indices[at]} is outside [0, {minors})",
            f"{indices_name}[{at}], {major} {row_of(offsets, at)}, nonzero {at}",
        )


def row_of(offsets: Array, nonzero: int) -> int:
    """The row that a nonzero, counted through the whole matrix, belongs to."""
    return int(np.searchsorted(offsets, nonzero, side="right")) - 1


def is_canonical(offsets: Array, columns: Array) -> bool:
    """True if the columns increase strictly within every row: sorted and without duplicates."""
    return _first_unsorted(offsets, columns) is None


def _first_unsorted(offsets: Array, columns: Array) -> int | None:
    """The first nonzero whose column does not exceed that of its predecessor in the same row."""
    if columns.size < 2:
        return None
    increases = columns[1:] > columns[:-1]
    starts = offsets[(offsets > 0) & (offsets < columns.size)]
    increases[starts - 1] = True  # the first nonzero of a row has no predecessor
    return None if increases.all() else int(increases.argmin()) + 1


def _require_floating(values: Array) -> None:
    if values.dtype.kind != "f":
        raise MatrixError(
            f"expected floating-point values, got {values.dtype}; as_csr() converts others",
            place="values",
        )


def _frozen(array: Array, dtype: np.dtype[Any]) -> Array:
    """A contiguous, read-only view (or converted copy); the caller's own array stays writable."""
    view = np.ascontiguousarray(array, dtype=dtype).view()
    view.setflags(write=False)
    return view
