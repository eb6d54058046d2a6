"""NumPy's ``.npy`` and ``.npz`` of dense arrays, and the ``.npz`` that ``scipy.sparse.save_npz`` writes."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import MAX_INDEX, check_shape
from sparsegen.matrix.foreign import Compressed, CompressedLayout, Coordinates
from sparsegen.matrix.formats import Array, as_real
from sparsegen.matrix.readers.files import clipped, hint
from sparsegen.system.numpy_load import without_numpys_warnings
from sparsegen.system.numpy_types import NumpyType

Stored = Array | Compressed | Coordinates

_PARTS: dict[str, tuple[str, ...]] = {
    "csr": ("indptr", "indices", "data"),
    "csc": ("indptr", "indices", "data"),
    "bsr": ("indptr", "indices", "data"),
    "coo": ("row", "col", "data"),
    "dia": ("offsets", "data"),
    "gcxs": ("indptr", "indices", "data"),
}
# Errors of a file or an archive itself, which the callers report.
_FILE_FAULTS = (
    OSError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
# Deflate expands at most 1032-fold: a member that declares more lies.
_DEFLATE_LIMIT = 1032
_MOST_SIZES = 32  # dimensions of a shape, in NumPy 1
_KINDS = "biufcSU"  # kinds of dtypes: numbers, and the words that name a sparse format
_MOST_ELEMENTS = 2**62
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}  # bytes of the header's length field, by the format's version
_LONGEST_HEADER = 10_000  # bytes; NumPy reads no longer one
_LONGEST_WORD = 64  # bytes of the name of a sparse format


def read_npy(path: Path, budget: MemoryBudget) -> Array:
    """One array of two dimensions.

    Raises:
        MatrixError: no .npy file, truncated, of objects, or not of two dimensions.
    """
    with path.open("rb") as stream:
        return _matrix(path, read_array(path, stream, path.stat().st_size, None, budget), None)


def read_npz(path: Path, tensor: str | None, budget: MemoryBudget) -> Stored:
    """A sparse matrix of any format that SciPy saves, or a dense array: the only one, or the one named.

    Raises:
        MatrixError: with the array's name, for what is malformed, missing or unsupported.
    """
    with open_archive(path) as archive:
        members = archive_members(archive)
        if is_sparse_archive(members):
            if tensor is not None:
                raise MatrixError("this file holds one sparse matrix; leave out --tensor", source=path)
            return _sparse(path, archive, members, budget)
        name = _choose(path, list(members), tensor)
        return _matrix(path, read_member(path, archive, members[name], name, budget), name)


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """The zip file that a .npz is, open while the block runs.

    Raises:
        MatrixError: it is none, or is damaged.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        # OSError: places before the file's start; ValueError: names that are no text.
        with path.open("rb") as stream:
            found = hint(stream.read(16))
        raise MatrixError(f"not a whole .npz (zip) file: {clipped(error)}{found}", source=path) from error
    with archive:
        yield archive


def archive_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Arrays by name, in the file's order."""
    return {info.filename.removesuffix(".npy"): info for info in archive.infolist()}


def is_sparse_archive(members: Container[str]) -> bool:
    """True if the arrays are those of one matrix that ``scipy.sparse.save_npz`` wrote."""
    return all(name in members for name in ("format", "shape", "data")) or is_pydata_archive(members)


def is_pydata_archive(members: Container[str]) -> bool:
    """True if the arrays are those of one array that ``sparse.save_npz`` (pydata) wrote, of the formats COO or GCXS."""
    own = ("coords",) if "coords" in members else ("indices", "indptr", "compressed_axes")
    return "format" not in members and all(name in members for name in ("data", "shape", "fill_value", *own))


@contextmanager
def open_member(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str
) -> Iterator[IO[bytes]]:
    """One member's bytes, unpacked as they are read while the block runs.

    Raises:
        MatrixError: it cannot be unpacked, or declares more bytes than can come from what is there.
    """
    place = f"array {name!r}"
    if info.file_size > _DEFLATE_LIMIT * min(info.compress_size, path.stat().st_size) + 64:
        raise MatrixError(f"{info.file_size} bytes cannot come from so few", source=path, place=place)
    faults = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
    try:
        try:
            stream = archive.open(info)
        except (OSError, ValueError) as error:  # a place before the file's start, for one
            raise zipfile.BadZipFile(str(error)) from error
        with stream:
            yield stream
    except faults as error:  # RuntimeError: an encrypted member, or a compression that Python does not know
        raise MatrixError(f"cannot be unpacked: {clipped(error)}", source=path, place=place) from error


def read_member(
    path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, budget: MemoryBudget
) -> Array:
    """One member's array.

    Raises:
        MatrixError: it cannot be unpacked, or is no array of numbers.
    """
    with open_member(path, archive, info, name) as stream:
        return read_array(path, stream, info.file_size, name, budget)


def _sparse(
    path: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], budget: MemoryBudget
) -> Stored:
    def part(name: str) -> Array:
        return read_member(path, archive, members[name], name, budget)

    if is_pydata_archive(members):
        form: Any = "coo" if "coords" in members else "gcxs"
        if part("fill_value").any():
            raise MatrixError("what is not stored must be 0", source=path, place="array 'fill_value'")
    else:
        form = _format(path, part("format"))
    has_coords = form == "coo" and "coords" in members
    missing = [name for name in _PARTS[form] if name not in members]
    if missing and not has_coords:
        raise MatrixError(f"a {form} matrix needs the array {missing[0]!r}, which is not there", source=path)
    sizes = np.atleast_1d(part("shape"))
    if sizes.size > _MOST_SIZES:
        raise MatrixError(f"{sizes.size} sizes are no shape", source=path, place="array 'shape'")
    if sizes.size != 2:
        raise MatrixError(f"expected 2 dimensions, got {sizes.size}", source=path, place="array 'shape'")
    shape = check_shape(sizes, source=str(path))
    budget.require_matrix(shape, 0, "array 'shape'")
    data = part("data")
    budget.require_matrix(shape, data.size, "array 'data'")
    if has_coords:
        coords = part("coords")
        if coords.ndim != 2 or coords.shape[0] != 2:
            raise MatrixError(
                f"expected 2 × nonzeros, got {coords.shape}", source=path, place="array 'coords'"
            )
        return Coordinates(shape, coords[0], coords[1], data)
    if form == "gcxs":
        axes = part("compressed_axes").ravel().tolist()
        if axes not in ([0], [1]):
            raise MatrixError(
                f"compressed axes {axes} are not one", source=path, place="array 'compressed_axes'"
            )
        layout: CompressedLayout = "csr" if axes == [0] else "csc"
        return Compressed(layout, shape, part("indptr"), part("indices"), data)
    if form == "coo":
        return Coordinates(shape, part("row"), part("col"), data)
    if form != "dia":
        return Compressed(
            cast(Literal["csr", "csc", "bsr"], form), shape, part("indptr"), part("indices"), data
        )
    return _from_diagonals(path, shape, part("offsets"), data)


def _format(path: Path, written: Array) -> Any:
    """The name of a sparse format, one of those of `_PARTS`."""
    form = written.item() if written.size == 1 and written.itemsize <= _LONGEST_WORD else None
    form = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if form not in _PARTS or form == "gcxs":  # GCXS names itself otherwise
        raise MatrixError(
            f"sparse format {form!r} is none of {', '.join(_PARTS)}", source=path, place="array 'format'"
        )
    return form


def _from_diagonals(path: Path, shape: tuple[int, int], offsets: Array, data: Array) -> Coordinates:
    """A dia matrix: element i of a row of ``data`` stands in column i of the diagonal that ``offsets`` names."""
    place = "array 'offsets'"
    offsets = np.atleast_1d(offsets)
    if offsets.dtype.kind not in "iu":
        raise MatrixError(f"diagonals are integers, got {offsets.dtype}", source=path, place=place)
    if offsets.ndim != 1 or data.ndim != 2 or data.shape[0] != offsets.size:
        raise MatrixError(
            f"not a dia matrix: {offsets.size} diagonals need as many rows of data, got shape {data.shape}",
            source=path,
            place=place,
        )
    if offsets.size and (offsets.max() > MAX_INDEX or offsets.min() < -MAX_INDEX):
        raise MatrixError("a diagonal is outside the 32-bit index range", source=path, place=place)
    import scipy.sparse

    try:
        coordinates = scipy.sparse.dia_array((as_real(data, str(path)), offsets), shape=shape).tocoo()
    except ValueError as error:  # a diagonal given twice, for one
        raise MatrixError(f"not a dia matrix: {error}", source=path, place=place) from error
    return Coordinates(shape, coordinates.row, coordinates.col, coordinates.data)


def _choose(path: Path, names: list[str], tensor: str | None) -> str:
    if tensor is None and len(names) == 1:
        return names[0]
    if tensor in names:
        return str(tensor)
    listed = ", ".join(map(clipped, sorted(names)[:10])) or "none"
    asked = "name one array (--tensor)" if tensor is None else f"there is no array {tensor!r}"
    raise MatrixError(f"{asked}; the file holds {listed}", source=path)


class ArrayHeader(NamedTuple):
    """Declarations in the head of a .npy stream; ``length`` is its own length in bytes."""

    shape: tuple[int, ...]
    dtype: NumpyType
    length: int


def read_array_header(path: Path, stream: IO[bytes], name: str | None) -> ArrayHeader:
    """The head of a .npy stream, which is left behind it.

    Raises:
        MatrixError: it is no .npy stream.
    """
    try:
        with without_numpys_warnings():
            version = np.lib.format.read_magic(stream)
            if version not in _LENGTH_BYTES:
                raise ValueError(f"version {version} is only for structured arrays")
            count = int.from_bytes(stream.read(_LENGTH_BYTES[version]), "little")
            if count > _LONGEST_HEADER:
                raise ValueError(f"its header has {count} bytes, of which at most {_LONGEST_HEADER} are read")
            stream.seek(0)
            np.lib.format.read_magic(stream)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            shape, _, dtype = read[version](stream)
        length = stream.tell()
    except _FILE_FAULTS:
        raise
    except Exception as error:
        # NumPy evaluates the header as Python's literals; what comes of a wrong one is not documented.
        stream.seek(0)
        raise MatrixError(
            f"not a NumPy array: {clipped(error)}{hint(stream.read(16))}", source=path, place=_place(name)
        ) from error
    if not all(type(size) is int for size in shape):
        raise MatrixError(f"{clipped(shape)} is no shape", source=path, place=_place(name))
    return ArrayHeader(shape, dtype, length)


def read_array(path: Path, stream: IO[bytes], size: int, name: str | None, budget: MemoryBudget) -> Array:
    """The array in a .npy stream of ``size`` bytes, read only if its header and the size agree.

    Raises:
        MatrixError: no .npy stream, truncated, of objects, or over the budget.
    """
    header = read_array_header(path, stream, name)
    if header.dtype.hasobject:
        raise MatrixError(
            "an array of Python objects would have to be unpickled, which can run code; save numbers",
            source=path,
            place=_place(name),
        )
    if header.dtype.kind not in _KINDS:
        raise MatrixError(
            f"expected real numbers, got {clipped(header.dtype)}", source=path, place=_place(name)
        )
    declared, held = math.prod(header.shape) * header.dtype.itemsize, size - header.length
    least = math.prod(size for size in header.shape if size)  # an empty array has its other sizes, too
    if min(header.shape, default=0) < 0 or declared > held or least > _MOST_ELEMENTS:
        raise MatrixError(
            f"the header declares shape {clipped(header.shape)} of {clipped(header.dtype)}, {declared} bytes, but "
            f"{held} are there; the file is truncated or its header wrong",
            source=path,
            place=_place(name),
        )
    budget.require(declared, "the array", _place(name))
    stream.seek(0)
    try:
        with without_numpys_warnings():
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except _FILE_FAULTS:
        raise
    except Exception as error:  # a header can name dtypes that NumPy cannot make
        raise MatrixError(
            f"not a whole NumPy array: {clipped(error)}", source=path, place=_place(name)
        ) from error


def _place(name: str | None) -> str | None:
    return None if name is None else f"array {name!r}"


def _matrix(path: Path, array: Array, name: str | None) -> Array:
    if array.ndim != 2:
        raise MatrixError(
            f"expected an array of 2 dimensions, got shape {array.shape}",
            source=path,
            place=_place(name),
        )
    return array
