"""Packed networks in files, from which layers are streamed without ever being in the host's memory all at once.

A file begins with a line that names the format, the length of a header of JSON and its CRC-32; then come the segments'
images, each at a multiple of 4096 bytes, so that they can be mapped into memory. The header has their checksums, which
are compared when an image is first sent to a device.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sparsegen import kernels
from sparsegen.errors import ConfigError, SavedOperatorError
from sparsegen.matrix.csr import Array
from sparsegen.networks.packed.memory_plan import MemoryPlan
from sparsegen.networks.packed.packed_network import CHECKED_BYTES, PackedNetwork, Segment
from sparsegen.operators import DType
from sparsegen.operators.sparse_network import Activation, Readout, SparseNetworkProblem
from sparsegen.system.publish import publish_file, reported
from sparsegen.system.regular import open_regular

FORMAT = b"sparsegen packed network "
MAGIC = FORMAT + b"2 "
PAGE = 4096
FIRST_LINE = 64  # bytes


def is_packed(file: Path) -> bool:
    """Whether a file says that it holds a packed network."""
    try:
        with open_regular(file) as stream:
            return stream.read(len(FORMAT)) == FORMAT
    except (OSError, ValueError):
        return False


def save_packed(packed: PackedNetwork, file: Path) -> None:
    """Write a packed network; the file appears whole.

    Raises:
        OutputError: it cannot be written.
    """
    summed = replace(packed, segments=tuple(segment.with_checksums() for segment in packed.segments))
    header = json.dumps(header_of(summed)).encode()
    told = MAGIC + f"{len(header)} {zlib.crc32(header)}".encode()
    with reported(file), publish_file(file) as stream:
        stream.write(told.ljust(FIRST_LINE - 1) + b"\n")
        stream.write(header.ljust(_padded(FIRST_LINE + len(header)) - FIRST_LINE))
        for segment in packed.segments:
            stream.write(segment.image.data)
            stream.write(bytes(_padded(segment.image.nbytes) - segment.image.nbytes))


def load_packed(file: Path) -> PackedNetwork:
    """A packed network whose images stay in the file until they are sent to a device.

    Load only what you trust: a file that was changed on purpose can make a kernel read out of bounds.

    Raises:
        SavedOperatorError: no such file, cut off or damaged, or packed by another version.
    """
    try:
        with open_regular(file) as stream:
            header, start = _read_header(stream)
        nbytes = file.stat().st_size
        images = np.memmap(file, np.uint8, "r") if nbytes else np.zeros(0, np.uint8)
        packed = packed_of(header, images[start:])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise SavedOperatorError(f"{file} is no packed network, cut off or damaged: {error}") from error
    if packed.family.packing_version != header["packing_version"]:
        raise SavedOperatorError(
            f"{file} was packed by another version of {packed.family.name}: pack it again"
        )
    return packed


def header_of(packed: PackedNetwork) -> dict[str, Any]:
    """All but the images, as JSON values; ``nbytes`` is that of all images, each at its ``begin``."""
    begin, segments = 0, []
    for segment in packed.segments:
        segments.append(_segment_header(segment) | {"begin": begin})
        begin += _padded(segment.image.nbytes)
    return {
        "nbytes": begin,
        "segments": segments,
        "family": packed.family.name,
        "packing_version": packed.family.packing_version,
        "config": packed.config.to_dict(),
        "dtype": str(packed.dtype),
        "activation": str(packed.activation),
        "readout": str(packed.readout),
        "inputs": packed.inputs,
        "neurons": packed.neurons,
        "outputs": packed.outputs,
        "edges": packed.edges,
        "clip": packed.clip,
        "plan": asdict(packed.plan),
    }


def _segment_header(segment: Segment) -> dict[str, Any]:
    return {
        "problem": segment.problem.to_dict(),
        "layers": [segment.layers.start, segment.layers.stop],
        "sizes": {name: int(size) for name, size in segment.sizes.items()},
        "scratch": {name: int(nbytes) for name, nbytes in segment.scratch.items()},
        "nnz": segment.nnz,
        "places": {name: [int(begin), int(nbytes)] for name, (begin, nbytes) in segment.places.items()},
        "nbytes": segment.image.nbytes,
        "checksums": list(segment.checksums),
    }


def _read_header(stream: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header, and where the images begin."""
    first = stream.read(FIRST_LINE)
    if not first.startswith(MAGIC):
        raise ValueError("it does not begin as a file of this version does; pack it again")
    length, checksum = map(int, first[len(MAGIC) :].split())
    header = stream.read(length)
    if zlib.crc32(header) != checksum:
        raise ValueError("its header is not what was written; pack it again")
    found = json.loads(header)
    if not isinstance(found, dict):
        raise ValueError("its header is no object")
    return found, _padded(FIRST_LINE + length)


def packed_of(header: dict[str, Any], images: Array) -> PackedNetwork:
    """The inverse of `header_of`.

    Args:
        images: uint8, all of them.

    Raises:
        ValueError, KeyError, TypeError, ConfigError: they do not fit each other.
    """
    config = kernels.family(str(header["family"])).config(**header["config"])
    segments = tuple(_segment(one, images) for one in header["segments"])
    if not segments:
        raise ValueError("it has no segments")
    return PackedNetwork(
        config=config,
        dtype=DType(header["dtype"]),
        activation=Activation(header["activation"]),
        readout=Readout(header["readout"]),
        inputs=int(header["inputs"]),
        neurons=int(header["neurons"]),
        outputs=int(header["outputs"]),
        edges=int(header["edges"]),
        clip=float(header["clip"]),
        plan=MemoryPlan(**header["plan"]),
        segments=segments,
    )


def _segment(header: dict[str, Any], images: Array) -> Segment:
    begin, nbytes = int(header["begin"]), int(header["nbytes"])
    if begin < 0 or nbytes < 0 or begin + nbytes > images.size:
        raise ValueError(f"its images end at byte {images.size}, and one of them at {begin + nbytes}")
    places = {str(name): (int(first), int(size)) for name, (first, size) in header["places"].items()}
    if any(first < 0 or size < 0 or first + size > nbytes for first, size in places.values()):
        raise ValueError("an array lies outside of its segment")
    return Segment(
        SparseNetworkProblem.from_dict(header["problem"]),
        range(*(int(number) for number in header["layers"])),
        {str(name): int(size) for name, size in header["sizes"].items()},
        {str(name): int(size) for name, size in header["scratch"].items()},
        int(header["nnz"]),
        places,
        images[begin : begin + nbytes],
        checksums=_checksums(header, nbytes),
    )


def _checksums(header: dict[str, Any], nbytes: int) -> tuple[int, ...]:
    found = tuple(map(int, header["checksums"]))
    if found and len(found) != -(-nbytes // CHECKED_BYTES):
        raise ValueError(f"{len(found)} checksums are not those of {nbytes} bytes")
    return found


def _padded(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
