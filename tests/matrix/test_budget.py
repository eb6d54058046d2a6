"""Small files never take the machine: what they declare is refused before anything is allocated for it, and at once."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from sparsegen.errors import MatrixError
from sparsegen.matrix import budget
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.load import load_matrix
from sparsegen.pruning.files.open import open_weights
from sparsegen.system import memory

ROWS = 2**31 - 1
SECONDS = 1.0  # of the process's own time: others' on a busy machine do not count
TRIES = 3  # where cores share their memory with others, own time takes up to three times as long
PEAK = 2 * budget.ALWAYS  # bytes: the text that is unpacked, and the buffer that grows with it


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def sparse_npz(form: str, shape: tuple[int, int]) -> bytes:
    """One nonzero in a matrix of this shape."""
    stream = io.BytesIO()
    if form == "csc":
        parts = {"indptr": np.array([0, 1]), "indices": np.array([0]), "data": np.ones(1)}
    else:
        parts = {"row": np.array([0]), "col": np.array([0]), "data": np.ones(1)}
    np.savez_compressed(stream, format=np.array(form.encode()), shape=np.array(shape), **parts)
    return stream.getvalue()


def header_only_npy(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def safetensors(shape: tuple[int, ...]) -> bytes:
    text = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return len(text).to_bytes(8, "little") + text


def gzipped(piece: bytes, size: int) -> bytes:
    """A text of this size, in a thousandth of it."""
    stream = io.BytesIO()
    with gzip.open(stream, "wb", compresslevel=1) as file:
        for _ in range(size // len(piece) // 4096):
            file.write(piece * 4096)
    return stream.getvalue()


def zip_bomb(size: int) -> bytes:
    """A dense array of zeros."""
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("w.npy", "w", force_zip64=True) as member,
    ):
        member.write(header_only_npy((size // 4096, 1024)))
        for _ in range(size // 2**20):
            member.write(bytes(2**20))
    return stream.getvalue()


MTX = b"%%MatrixMarket matrix coordinate real general\n"
MANY = MTX + b"9 9 1000000000\n" + b"1 1 1\n" * 1000
SYMMETRIC = MTX.replace(b"general", b"symmetric")
ARRAY = b"%%MatrixMarket matrix array real general\n"
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "rows of a .mtx": ("mtx", lambda: MTX + b"2147483647 5 1\n1 1 1\n"),
    "columns of a .mtx": ("mtx", lambda: MTX + b"5 2147483647 1\n1 1 1\n"),
    "rows of a symmetric .mtx": ("mtx", lambda: SYMMETRIC + b"2147483647 2147483647 1\n1 1 1\n"),
    "rows of an empty array .mtx": ("mtx", lambda: ARRAY + b"2147483647 0\n"),
    "rows of a .mtx.gz": ("mtx.gz", lambda: gzip.compress(MTX + b"2147483647 5 1\n1 1 1\n")),
    "a .mtx.gz of zeros": ("mtx.gz", lambda: gzipped(b"\0", 2 * budget.ALWAYS)),
    "a .mtx.gz of entries": ("mtx.gz", lambda: gzipped(MANY, 2 * budget.ALWAYS)),
    "a .mtx.gz of blank lines": ("mtx.gz", lambda: gzipped(b"\n", 2 * budget.ALWAYS)),
    "a .smtx.gz of lines": ("smtx.gz", lambda: gzipped(b"\n", 2 * budget.ALWAYS)),
    "a .smtx.gz of numbers": ("smtx.gz", lambda: gzipped(b"1 ", 2 * budget.ALWAYS)),
    "rows of a coo .npz": ("npz", lambda: sparse_npz("coo", (ROWS, 5))),
    "columns of a coo .npz": ("npz", lambda: sparse_npz("coo", (5, ROWS))),
    "rows of a csc .npz": ("npz", lambda: sparse_npz("csc", (ROWS, 1))),
    "a .npz of zeros": ("npz", lambda: zip_bomb(2 * budget.ALWAYS)),
    "rows of an empty .npy": ("npy", lambda: header_only_npy((ROWS, 0))),
    "rows of an empty tensor": ("safetensors", lambda: safetensors((ROWS, 0))),
}  # fmt: skip


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("bombs")

    def written(name: str) -> Path:
        suffix, content = BOMBS[name]
        path = folder / f"w.{suffix}"
        path.write_bytes(content())
        return path

    return written


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_cannot_take_the_machine(bombs: Callable[[str], Path], name: str) -> None:
    path = bombs(name)
    assert path.stat().st_size < 3 * 2**20
    for _ in range(TRIES):
        tracemalloc.start()
        began = time.process_time()
        try:
            with pytest.raises(MatrixError, match=str(path)) as caught:
                load_matrix(path)
            seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < PEAK, caught.value
        if seconds < SECONDS:
            break
    assert seconds < SECONDS, caught.value
    assert "would take" in str(caught.value) and "--memory-limit" in str(caught.value)


def test_the_limit_is_the_callers_to_raise_and_lower(tmp_path: Path) -> None:
    path = tmp_path / "w.mtx"
    path.write_bytes(MTX + b"20000000 5 1\n1 1 1\n")
    with pytest.raises(MatrixError, match=r"305.2 MiB of memory, over 256.0 MiB"):
        load_matrix(path)
    assert load_matrix(path, memory_limit=2**30).shape == (20_000_000, 5)
    small = tmp_path / "small.mtx"
    small.write_bytes(MTX + b"3 4 1\n1 1 1\n")
    with pytest.raises(MatrixError, match="over 60 bytes, the limit that was given"):
        load_matrix(small, memory_limit=60)
    for wrong in (0, -1, 2.5, "8G", True):
        with pytest.raises(MatrixError, match="memory_limit"):
            load_matrix(small, memory_limit=wrong)  # type: ignore[arg-type]


def test_never_more_than_the_machine_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 10**7)
    path = tmp_path / "w.mtx"
    path.write_bytes(MTX + b"1000000 5 1\n1 1 1\n")
    for limit in (None, 2**40):
        with pytest.raises(MatrixError, match=r"9\.5 MiB, which is what this machine has left"):
            load_matrix(path, memory_limit=limit)
    # Objects in memory whose conversion takes more: they have no file whose size could be asked.
    tall = (2**20, 3)
    for obj in (
        scipy.sparse.coo_array(([1.0], ([0], [0])), shape=tall),
        scipy.sparse.csc_array(([1.0], [0], [0, 1, 1, 1]), shape=tall),
        np.zeros((2**20, 0)),
    ):
        with pytest.raises(MatrixError, match="this machine has left"):
            as_csr(obj)


def test_where_the_system_does_not_say_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", Path("/nowhere"))
    monkeypatch.setattr(memory, "_GROUPS", ())
    assert memory.available_bytes() is None
    assert as_csr(scipy.sparse.coo_array(([1.0], ([0], [0])), shape=(3, 3))).nnz == 1


def test_a_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, use = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(memory, "_GROUPS", ((limit, use),))
    whole = memory.available_bytes()
    limit.write_text("5000\n")
    use.write_text("2000\n")
    assert memory.available_bytes() == 3000
    limit.write_text("max\n")
    assert (memory.available_bytes() is None) == (whole is None)
    if whole is not None:
        assert whole < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize("name", ["a .npz of zeros", "rows of a coo .npz"])
def test_weights_have_the_same_limit(bombs: Callable[[str], Path], name: str) -> None:
    path = bombs(name)
    with pytest.raises(MatrixError, match="would take"):
        weights = open_weights(path)
        weights.read(weights.specs[0].name)
    lower = open_weights(bombs("a .npz of zeros"), memory_limit=2**32)
    assert lower.specs[0].shape == (budget.ALWAYS * 2 // 4096, 1024)
