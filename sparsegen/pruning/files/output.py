"""Writing so that nothing is lost: a file appears whole or not at all, and is overwritten only on request."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from sparsegen.errors import OutputExistsError, PruningError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.numpy_types import Array
from sparsegen.system.output_places import output_place
from sparsegen.system.publish import made_folder, publish_file, refuse_existing, reported


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file that takes its place when the block ends well, and else is removed; see `publish_file`.

    Raises:
        OutputExistsError: ``path`` is there and ``force`` is not set, or it is a folder.
        OutputError: it cannot be written.
    """
    refuse_existing(path, force=force)
    if path.is_dir():
        raise OutputExistsError("this is a folder; name a file", path=path)
    with reported(path), publish_file(path) as stream:
        yield stream
        refuse_existing(path, force=force)


class CsrFolder:
    """A folder of SciPy ``.npz`` files, one for each layer, named for it."""

    def __init__(self, folder: Path, layers: Collection[str], shown: Path) -> None:
        self._folder, self._shown = folder, shown  # messages name the folder that this one will become
        self._names: dict[str, str] = {}
        owners: dict[str, str] = {}
        for layer in layers:
            name = re.sub(r"[^\w.-]", "_", layer) + ".npz"
            other = owners.setdefault(name.casefold(), layer)
            if other != layer:
                raise PruningError(
                    f"tensors {other!r} and {layer!r} would both be written to {name}; exclude one"
                )
            self._names[layer] = name

    def add(self, layer: str, arrays: Mapping[str, Array]) -> None:
        with reported(self._shown):
            np.savez_compressed(self._folder / self._names[layer], allow_pickle=False, **arrays)


def scipy_arrays(matrix: CsrMatrix) -> dict[str, Array]:
    """The arrays by which ``scipy.sparse.load_npz`` knows a matrix."""
    return {
        "indices": matrix.column_indices,
        "indptr": matrix.row_offsets,
        "format": np.array(b"csr"),
        "shape": np.array(matrix.shape),
        "data": matrix.values,
    }


@contextmanager
def new_csr_folder(path: Path, layers: Collection[str], *, force: bool) -> Iterator[CsrFolder]:
    """A folder beside ``path`` that takes its place when the block ends well, and else is removed.

    With ``force`` the files move into a folder that is there already; other files in it stay.

    Raises:
        OutputExistsError: ``path`` is there and ``force`` is not set, or it is no folder.
        OutputError: it cannot be written.
        PruningError: two layers would share a file.
    """
    refuse_existing(path, force=force)
    if path.exists() and not path.is_dir():
        raise OutputExistsError("this is no folder; a folder takes one file for each layer", path=path)
    place = Path(os.path.realpath(path))  # for a link, the path that it leads to
    work = place.with_name(f".sparsegen-{os.urandom(8).hex()}")
    folder = CsrFolder(work, layers, path)
    with reported(path), made_folder(place.parent):
        try:
            work.mkdir()
            yield folder
            if place.is_dir():
                refuse_existing(path, force=force)
                for file in work.iterdir():
                    _replace(place / file.name, file)
            else:
                work.rename(place)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _replace(path: Path, file: Path) -> None:
    """Move a finished file to its name, or to where a link of that name leads."""
    place = output_place(path)
    if place.is_stream:
        raise OutputExistsError("this is a device or a pipe, and no file of a layer", path=path)
    shutil.move(file, place.path)
