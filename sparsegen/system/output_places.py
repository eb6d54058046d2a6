"""Places of outputs: links are followed, devices and pipes are written into, and no file takes their place."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from sparsegen.errors import OutputError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class Place(NamedTuple):
    """Place of an output's bytes.

    Attributes:
        path: the file's path; for a link, the path that it leads to.
        is_stream: true for a character device or a pipe, which is written into and never replaced.
        mode: the permission bits of the regular file that is there; None if there is none.
    """

    path: Path
    is_stream: bool = False
    mode: int | None = None


def output_place(path: Path) -> Place:
    """Returns the place of an output of this name.

    Raises:
        OSError: it is a folder, a block device or a socket, or its links lead in a circle.
        OutputError: it is a URL.
    """
    if URL.match(str(path)):
        raise OutputError("this is a URL; outputs are files: name a path", path=path)
    try:
        status = path.stat()
    except FileNotFoundError:
        return Place(_target(path))
    kind = status.st_mode
    if stat.S_ISREG(kind):
        return Place(_target(path), mode=stat.S_IMODE(kind))
    if stat.S_ISCHR(kind) or stat.S_ISFIFO(kind):
        return Place(
            path, is_stream=True
        )  # links of /proc name pipes that no path leads to: kept as they are
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "this is a socket or a block device, and not overwritten")


def is_stream(path: Path) -> bool:
    """True if an output of this name is written into a device or a pipe, so that nothing is overwritten."""
    try:
        return output_place(path).is_stream
    except (OSError, OutputError):
        return False


def open_stream(path: Path) -> int:
    """A descriptor for writing into a character device or a pipe.

    Raises:
        OSError: it cannot be opened, or it is a pipe without a reader: waiting for one could take for ever.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads this pipe; start its reader first") from None
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def _target(path: Path) -> Path:
    """The file that a path leads to, through all links."""
    return Path(os.path.realpath(path))
