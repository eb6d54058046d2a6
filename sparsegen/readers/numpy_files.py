"""NumPy's ``.npy`` and ``.npz`` of dense arrays, and the ``.npz`` that ``scipy.sparse.save_npz`` writes."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse

from sparsegen.csr import check_shape
from sparsegen.errors import MatrixError
from sparsegen.formats import Array, Compressed, Coordinates
from sparsegen.readers.files import hint

Stored = Array | Compressed | Coordinates

_PARTS: dict[str, tuple[str, ...]] = {
    "csr": ("indptr", "indices", "data"),
    "csc": ("indptr", "indices", "data"),
    "bsr": ("indptr", "indices", "data"),
    "coo": ("row", "col", "data"),
    "dia": ("offsets", "data"),
}
# Deflate expands at most 1032-fold: a member that declares more lies.
_DEFLATE_LIMIT = 1032


def read_npy(path: Path) -> Array:
    """One array of two dimensions.

    Raises:
        MatrixError: no .npy file, truncated, of objects, or not of two dimensions.
    """
    with path.open("rb") as stream:
        return _matrix(path, _array(path, stream, path.stat().st_size, None), None)


def read_npz(path: Path, tensor: str | None) -> Stored:
    """A sparse matrix of any format that SciPy saves, or a dense array: the only one, or the one named.

    Raises:
        MatrixError: with the array's name, for what is malformed, missing or unsupported.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if {"format", "shape", "data"} <= members.keys():
                if tensor is not None:
                    raise MatrixError("this file holds one sparse matrix; leave out --tensor", source=path)
                return _sparse(path, archive, members)
            name = _choose(path, list(members), tensor)
            return _matrix(path, _member(path, archive, members[name], name), name)
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
        with path.open("rb") as stream:
            found = hint(stream.read(16))
        raise MatrixError(f"not a whole .npz (zip) file: {error}{found}", source=path) from error


def _sparse(path: Path, archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo]) -> Stored:
    def part(name: str) -> Array:
        return _member(path, archive, members[name], name)

    written = part("format")
    form: Any = written.item() if written.size == 1 else written.tolist()
    form = form.decode("latin-1") if isinstance(form, bytes) else str(form)
    if form not in _PARTS:
        raise MatrixError(
            f"sparse format {form!r} is none of {', '.join(_PARTS)}", source=path, place="array 'format'"
        )
    missing = [name for name in _PARTS[form] if name not in members]
    if missing:
        raise MatrixError(f"a {form} matrix needs the array {missing[0]!r}, which is not there", source=path)
    shape = check_shape(np.atleast_1d(part("shape")), source=str(path))
    data = part("data")
    if form == "coo":
        return Coordinates(shape, part("row"), part("col"), data)
    if form != "dia":
        return Compressed(form, shape, part("indptr"), part("indices"), data)
    offsets = part("offsets")
    try:
        coordinates = scipy.sparse.dia_array((data, offsets), shape=shape).tocoo()
    except ValueError as error:
        raise MatrixError(f"not a dia matrix: {error}", source=path, place="array 'offsets'") from error
    return Coordinates(shape, coordinates.row, coordinates.col, coordinates.data)


def _choose(path: Path, names: list[str], tensor: str | None) -> str:
    if tensor is None and len(names) == 1:
        return names[0]
    if tensor in names:
        return str(tensor)
    listed = ", ".join(sorted(names)[:10]) or "none"
    asked = "name one array (--tensor)" if tensor is None else f"there is no array {tensor!r}"
    raise MatrixError(f"{asked}; the file holds {listed}", source=path)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Array:
    place = f"array {name!r}"
    if info.file_size > _DEFLATE_LIMIT * min(info.compress_size, path.stat().st_size) + 64:
        raise MatrixError(f"{info.file_size} bytes cannot come from so few", source=path, place=place)
    try:
        with archive.open(info) as stream:
            return _array(path, stream, info.file_size, name)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # RuntimeError: an encrypted member; NotImplementedError: a compression that Python does not know.
        raise MatrixError(f"cannot be unpacked: {error}", source=path, place=place) from error


def _array(path: Path, stream: IO[bytes], size: int, name: str | None) -> Array:
    """The array in a .npy stream of ``size`` bytes, read only if its header and the size agree."""
    place = None if name is None else f"array {name!r}"
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"version {version} is only for structured arrays")
    except (ValueError, tokenize.TokenError) as error:
        stream.seek(0)
        raise MatrixError(
            f"not a NumPy array: {error}{hint(stream.read(16))}", source=path, place=place
        ) from error
    if dtype.hasobject:
        raise MatrixError(
            "an array of Python objects would have to be unpickled, which can run code; save numbers",
            source=path,
            place=place,
        )
    declared, held = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or declared > held:
        raise MatrixError(
            f"the header declares shape {shape} of {dtype}, {declared} bytes, but {held} are there; "
            "the file is truncated or its header wrong",
            source=path,
            place=place,
        )
    stream.seek(0)
    try:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
    except ValueError as error:
        raise MatrixError(f"not a whole NumPy array: {error}", source=path, place=place) from error


def _matrix(path: Path, array: Array, name: str | None) -> Array:
    if array.ndim != 2:
        raise MatrixError(
            f"expected an array of 2 dimensions, got shape {array.shape}",
            source=path,
            place=None if name is None else f"array {name!r}",
        )
    return array
