"""One tensor of a safetensors file: 8 bytes of header length, a JSON header, and the raw little-endian data.

The format is https://huggingface.co/docs/safetensors; this reads one slice of it without the package.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen.csr import check_shape
from sparsegen.errors import MatrixError
from sparsegen.formats import Array
from sparsegen.readers.files import hint

_MAX_HEADER = 100_000_000  # bytes; the format's own limit
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


def read_safetensors(path: Path, tensor: str | None) -> Array:
    """A tensor of two dimensions; bfloat16 becomes float32.

    Args:
        tensor: its name; may be left out if the file holds only one.

    Raises:
        MatrixError: with the header or the tensor's name, for what is malformed, missing or unsupported.
    """
    header, data_start = _header(path)
    name = _choose(path, header, tensor)
    place = f"tensor {name!r}"
    entry = header[name]
    try:
        kind, sizes, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise MatrixError(
            "its header entry needs dtype, shape and two data_offsets", source=path, place=place
        ) from None
    if not isinstance(kind, str) or kind not in _DTYPES:
        raise MatrixError(
            f"dtype {kind} is not supported; there are {', '.join(_DTYPES)}", source=path, place=place
        )
    if not isinstance(sizes, list) or not all(_is_size(size) for size in [*sizes, begin, end]):
        raise MatrixError("shape and data_offsets must be lists of sizes", source=path, place=place)
    shape = check_shape(sizes, source=f"{path}, {place}")
    dtype = np.dtype(_DTYPES[kind])
    expected = math.prod(shape) * dtype.itemsize
    available = path.stat().st_size - data_start
    if end - begin != expected or end > available:
        raise MatrixError(
            f"data_offsets [{begin}, {end}] must span {expected} bytes ({kind}, shape {shape}) "
            f"within the {available} bytes of data; the file is truncated or its header wrong",
            source=path,
            place=place,
        )
    with path.open("rb") as stream:
        stream.seek(data_start + begin)
        array: Array = np.fromfile(stream, dtype=dtype, count=math.prod(shape)).reshape(shape)
    if kind == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _header(path: Path) -> tuple[dict[str, Any], int]:
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


def _choose(path: Path, header: dict[str, Any], tensor: str | None) -> str:
    if tensor is None and len(header) == 1:
        return next(iter(header))
    if tensor in header:
        return str(tensor)
    names = sorted(header)
    listed = ", ".join(names[:10]) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")
    asked = "name a tensor (--tensor)" if tensor is None else f"there is no tensor {tensor!r}"
    raise MatrixError(f"{asked}; the file holds {listed or 'none'}", source=path)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
