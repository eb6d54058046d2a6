"""Readers take regular files: all refuse pipes and devices, which may never end, at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparsegen.backends import emulator_device
from sparsegen.bench.results import result_file
from sparsegen.errors import SparsegenError
from sparsegen.matrix.load import load_matrix
from sparsegen.matrix.readers.smtx import read_smtx_shape
from sparsegen.networks.files.challenge_files import read_images
from sparsegen.networks.files.network_file import load_network
from sparsegen.networks.files.packed_file import is_packed, load_packed
from sparsegen.plan.saved_operator import read_operator
from sparsegen.pruning.files.open import open_weights
from sparsegen.system.numpy_load import load_numpy
from sparsegen.system.regular import open_regular
from sparsegen.tuning.jobs.bundle import open_bundle
from sparsegen.tuning.jobs.results import is_result
from sparsegen.tuning.prediction.targets import read_target
from sparsegen.tuning_db import exchange
from sparsegen.tuning_db.pins_file import read_pins
from sparsegen.tuning_db.sqlite_files import check_file


def _bundle(path: Path) -> None:
    with open_bundle(path):
        pass


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "matrices": ("a.npz", load_matrix),
    "arrays": ("a.npy", load_matrix),
    "texts": ("a.mtx", load_matrix),
    "shapes": ("a.smtx", read_smtx_shape),
    "tensors": ("a.safetensors", load_matrix),
    "weights": ("a.npy", open_weights),
    "networks": ("a.npz", load_network),
    "packed networks": ("a.packed", load_packed),
    "images": ("a.tsv", lambda path: read_images(path, 16)),
    "operators": ("a.npz", lambda path: read_operator(path, emulator_device())),
    "bundles": ("a.pyz", _bundle),
    "exports": ("a.json", exchange.read_export),
    "targets": ("a.json", read_target),
    "pins": ("a.json", read_pins),
    "result files": ("a.json", result_file.read),
    "databases": ("a.db", lambda path: check_file(path, read_only=True)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    file, read = READERS[name]
    os.mkfifo(tmp_path / file)
    with pytest.raises(SparsegenError):
        read(tmp_path / file)


def test_a_pipe_looks_like_nothing_of_ours(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert not is_packed(pipe)
    assert not is_result(pipe)
    for read in (open_regular, load_numpy):
        with pytest.raises(OSError, match="a pipe or a device"):
            read(pipe)


def test_devices_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a pipe or a device"):
        open_regular("/dev/zero")
    with pytest.raises(OSError, match="but a folder"):
        open_regular(tmp_path)
    (tmp_path / "file").write_bytes(b"bytes")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"bytes"
