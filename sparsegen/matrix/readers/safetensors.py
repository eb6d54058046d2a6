"""Tensors of a safetensors file: 8 bytes of header length, a JSON header, and the raw little-endian data.

The format is https://huggingface.co/docs/safetensors; this reads it tensor by tensor without the package.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.csr import check_shape
from sparsegen.matrix.formats import Array
from sparsegen.matrix.readers.files import clipped, hint
from sparsegen.system.json_object import Json
from sparsegen.system.numpy_types import NumpyType

_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MOST_DIMENSIONS = 32  # limit of NumPy 1
_MOST_ELEMENTS = 2**62
_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",  # the upper half of a float32
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as the header declares it.

    Attributes:
        kind: the format's word for its element type: ``F32``, ``BF16``, ...
        begin, end: its bytes, counted from the start of the file.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def dtype(self) -> NumpyType | None:
        """Type to read its raw elements as (bfloat16 as uint16); None for a type that is not read here."""
        return np.dtype(_DTYPES[self.kind]) if self.kind in _DTYPES else None


def read_safetensors(path: Path, tensor: str | None, budget: MemoryBudget) -> Array:
    """A tensor of two dimensions; bfloat16 becomes float32.

    Args:
        tensor: its name; may be left out if the file holds only one.

    Raises:
        MatrixError: with the header or the tensor's name, for what is malformed, missing or unsupported.
    """
    header, data_start = _header(path)
    entry = _entry(path, header, _choose(path, header, tensor), data_start)
    _readable_type(path, entry)
    check_shape(entry.shape, source=f"{path}, {_place(entry.name)}")
    _check_span(path, entry, data_start)
    budget.require(2 * (entry.end - entry.begin), "the tensor", _place(entry.name))  # bfloat16 is widened
    return widened(entry, read_raw(path, entry))


def read_entries(path: Path) -> list[TensorEntry]:
    """Every tensor that the header declares, in the order of its data.

    Raises:
        MatrixError: with the header or the tensor's name, for what is malformed, or two tensors that share bytes.
    """
    header, data_start = _header(path)
    entries = sorted(
        (_entry(path, header, name, data_start) for name in header), key=lambda e: (e.begin, e.end)
    )
    for entry in entries:
        _check_span(path, entry, data_start)
    for before, after in pairwise(entries):
        if after.begin < before.end:
            raise MatrixError(
                f"its data begin within those of {_place(before.name)}",
                source=path,
                place=_place(after.name),
            )
    return entries


def read_raw(path: Path, entry: TensorEntry) -> Array:
    """A tensor's elements as they are stored, in its shape.

    Raises:
        MatrixError: a type that is not read here.
    """
    dtype = _readable_type(path, entry)
    with path.open("rb") as stream:
        stream.seek(entry.begin)
        array: Array = np.fromfile(stream, dtype=dtype, count=math.prod(entry.shape))
    return array.reshape(entry.shape)


def widened(entry: TensorEntry, raw: Array) -> Array:
    """bfloat16 as float32; all else as it is."""
    return (raw.astype(np.uint32) << 16).view(np.float32) if entry.kind == "BF16" else raw


def _entry(path: Path, header: Json, name: str, data_start: int) -> TensorEntry:
    place = _place(name)
    try:
        kind, sizes, (begin, end) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
    except (KeyError, TypeError, ValueError):
        raise MatrixError(
            "its header entry needs dtype, shape and two data_offsets", source=path, place=place
        ) from None
    if not isinstance(kind, str):
        raise _unsupported(path, kind, name)
    if not isinstance(sizes, list) or not all(_is_size(size) for size in [*sizes, begin, end]):
        raise MatrixError("shape and data_offsets must be lists of sizes", source=path, place=place)
    if len(sizes) > _MOST_DIMENSIONS or math.prod(size for size in sizes if size) > _MOST_ELEMENTS:
        raise MatrixError(f"shape {clipped(sizes)} is over NumPy's limits", source=path, place=place)
    return TensorEntry(name, kind, tuple(sizes), data_start + begin, data_start + end)


def _readable_type(path: Path, entry: TensorEntry) -> NumpyType:
    if entry.dtype is None:
        raise _unsupported(path, entry.kind, entry.name)
    return entry.dtype


def _unsupported(path: Path, kind: object, name: str) -> MatrixError:
    return MatrixError(
        f"dtype {clipped(kind)} is not supported; there are {', '.join(_DTYPES)}",
        source=path,
        place=_place(name),
    )


def _place(name: str) -> str:
    return f"tensor {clipped(repr(name))}"


def _check_span(path: Path, entry: TensorEntry, data_start: int) -> None:
    """The bytes are those that type and shape need, and are there; of a type not read here only the latter."""
    begin, end, available = entry.begin - data_start, entry.end - data_start, path.stat().st_size - data_start
    expected = end - begin if entry.dtype is None else math.prod(entry.shape) * entry.dtype.itemsize
    if not begin <= end <= available or end - begin != expected:
        raise MatrixError(
            f"data_offsets [{begin}, {end}] must span {expected} bytes ({entry.kind}, shape {entry.shape}) "
            f"within the {available} bytes of data; the file is truncated or its header wrong",
            source=path,
            place=_place(entry.name),
        )


def _header(path: Path) -> tuple[Json, int]:
    """The JSON header without ``__metadata__``, and where the data starts."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > min(size - 8, _MAX_HEADER):
            raise MatrixError(
                f"the first 8 bytes declare a header of {length} bytes in a file of {size}: not a whole "
                f"safetensors file{hint(head)}",
                source=path,
                place="header length",
            )
        text = stream.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MatrixError(f"the header is no JSON: {error}", source=path, place="header") from error
    if not isinstance(header, dict):
        raise MatrixError("the header must be a JSON object", source=path, place="header")
    header.pop("__metadata__", None)
    return header, 8 + length


def _choose(path: Path, header: Json, tensor: str | None) -> str:
    if tensor is None and len(header) == 1:
        return next(iter(header))
    if tensor in header:
        return str(tensor)
    names = sorted(header)
    listed = ", ".join(clipped(name) for name in names[:10]) + (
        f", ... ({len(names)} in all)" if len(names) > 10 else ""
    )
    asked = "name a tensor (--tensor)" if tensor is None else f"there is no tensor {tensor!r}"
    raise MatrixError(f"{asked}; the file holds {listed or 'none'}", source=path)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_ELEMENTS
