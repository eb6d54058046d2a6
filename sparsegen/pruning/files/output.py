"""Writing so that nothing is lost: a file appears whole or not at all, and is overwritten only on request."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sparsegen.errors import OutputExistsError, PruningError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.publish import refuse_existing, reported


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its place when the block ends well, and else is removed.

    Raises:
        OutputExistsError: ``path`` is there and ``force`` is not set, or it is a folder.
        OutputError: it cannot be written.
    """
    refuse_existing(path, force=force)
    if path.is_dir():
        raise OutputExistsError("this is a folder; name a file", path=path)
    work = _beside(path)
    try:
        with reported(path), work.open("xb+") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        with reported(path):
            refuse_existing(path, force=force)
            work.replace(path)
    finally:
        work.unlink(missing_ok=True)


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

    def add(self, layer: str, matrix: CsrMatrix) -> None:
        with reported(self._shown):
            import scipy.sparse

            scipy.sparse.save_npz(self._folder / self._names[layer], matrix.to_scipy())


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
    work = _beside(path)
    folder = CsrFolder(work, layers, path)
    try:
        with reported(path):
            work.mkdir()
        yield folder
        with reported(path):
            if path.is_dir():
                refuse_existing(path, force=force)
                for file in work.iterdir():
                    file.replace(path / file.name)
            else:
                work.rename(path)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _beside(path: Path) -> Path:
    return path.absolute().with_name(f".{path.name}-{secrets.token_hex(4)}")
