"""Packed networks in files, from which layers are streamed without ever being in the host's memory all at once.

A file begins with a line that names the format, the length of a header of JSON and its CRC-32; then come the segments'
images, each at a multiple of 4096 bytes, so that they can be mapped into memory. The header has their checksums, which
are compared when an image is first sent to a device.
"""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparsegen.errors import SavedOperatorError
from sparsegen.networks.files.packed_header import header_of, packed_of, padded
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.system.numpy_types import Array
from sparsegen.system.publish import publish_file, reported
from sparsegen.system.regular import open_regular
from sparsegen.tuning_db.json_reader import Node, parse_json

FORMAT = b"sparsegen packed network "
MAGIC = FORMAT + b"2 "
FIRST_LINE = 64  # bytes
LARGEST_HEADER = 256 * 2**20  # bytes


def is_packed(file: Path) -> bool:
    """True if a file's first bytes say that it holds a packed network."""
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
        stream.write(header.ljust(padded(FIRST_LINE + len(header)) - FIRST_LINE))
        for segment in packed.segments:
            stream.write(segment.image.data)
            stream.write(bytes(padded(segment.image.nbytes) - segment.image.nbytes))


def load_packed(file: Path) -> PackedNetwork:
    """A packed network whose images stay in the file until they are sent to a device.

    Load only what you trust: a file that was changed on purpose can make a kernel read out of bounds.

    Raises:
        SavedOperatorError: no such file, cut off or damaged, or packed by another version.
    """
    try:
        with open_regular(file) as stream:
            header, start = _read_header(stream, file)
            images: Array = np.memmap(stream, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise SavedOperatorError(f"{file} is no packed network, cut off or damaged: {error}") from error
    return packed_of(header, images[start:])


def _read_header(stream: BinaryIO, file: Path) -> tuple[Node, int]:
    """The header, and where the images begin."""
    first, nbytes = stream.read(FIRST_LINE), os.fstat(stream.fileno()).st_size
    if not first.startswith(MAGIC):
        raise ValueError("it does not begin as a file of this version does; pack it again")
    length, checksum = map(int, first[len(MAGIC) :].split())
    if not 0 < length <= min(nbytes - FIRST_LINE, LARGEST_HEADER):
        raise ValueError("it ends before its header does, or that is larger than any")
    header = stream.read(length)
    if zlib.crc32(header) != checksum:
        raise ValueError("its header is not what was written; pack it again")
    return parse_json(header.decode(), str(file), SavedOperatorError), padded(FIRST_LINE + length)
