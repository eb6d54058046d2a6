"""NumPy's own reader, which unpickles nothing and never advises to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from sparsegen.system.regular import open_regular

_BEGINNINGS = (np.lib.format.MAGIC_PREFIX, b"PK\x03\x04", b"PK\x05\x06")  # of .npy, .npz and an empty .npz


def load_numpy(file: str | Path | BinaryIO) -> Any:
    """The array of a ``.npy`` file, or the open archive of a ``.npz`` file, as `numpy.load` gives it.

    `numpy.load` takes any other file for a pickle, and its error tells the reader how to run what may be inside.

    Raises:
        ValueError: neither of both, or the array holds Python objects.
        OSError: it cannot be opened or read.
    """
    if isinstance(file, str | Path):
        with open_regular(file) as opened:
            begins = opened.read(len(_BEGINNINGS[0]))
    else:
        at = file.tell()
        begins = file.read(len(_BEGINNINGS[0]))
        file.seek(at)
    if not begins.startswith(_BEGINNINGS):
        raise ValueError("neither an array of NumPy (.npy) nor an archive of arrays (.npz)")
    with without_numpys_warnings():
        return np.load(file, allow_pickle=False)


@contextmanager
def without_numpys_warnings() -> Iterator[None]:
    """Have NumPy read the headers that Python 2 wrote without telling the terminal so twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
