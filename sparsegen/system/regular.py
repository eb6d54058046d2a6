"""Files that are read: regular ones, as a pipe or a device may never end, and opening a pipe waits for its writer."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file, open for reading; nothing else is waited for.

    Raises:
        OSError: it is not there, cannot be opened, or is a folder, a pipe or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, "this is no file but a folder")
    raise OSError(errno.EINVAL, "this is no file but a pipe or a device")
