"""Readers of matrices, weights, packed networks and saved operators, whatever a file holds."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from fuzz_mutations import damaged_bytes, damaged_json, matrix_market, npy, safetensors, smtx
from fuzz_report import Fuzz
from tuning_samples import H100

import sparsegen
from sparsegen.errors import MatrixError, SavedOperatorError, SparsegenError
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_rows
from sparsegen.matrix.load import load_matrix
from sparsegen.matrix.readers.smtx import read_smtx_shape
from sparsegen.networks.files.packed_file import FIRST_LINE, MAGIC, load_packed, save_packed
from sparsegen.networks.files.packed_header import padded
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.sparse_network import SparseNetwork
from sparsegen.operators import SparseOperator
from sparsegen.plan import saved_operator
from sparsegen.pruning.files.open import open_weights

MEMORY = 2**26  # bytes that a damaged file may take


DENSE = np.array([[0, 1.5, 0, -2], [0, 0, 0, 0], [3, 0, 0.25, 0]], dtype=np.float32)
COORDINATE = b"%%MatrixMarket matrix coordinate real general\n% a comment\n3 4 2\n1 2 1.5\n3 1 3\n"


def saved(write: Callable[..., Any], *arguments: Any, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    write(stream, *arguments, **arrays)
    return stream.getvalue()


def matrix_files() -> dict[str, bytes]:
    """One sound file of each kind; names end in its suffix."""
    text = json.dumps({"w": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}).encode()
    plain = {
        "mtx": COORDINATE,
        "array.mtx": b"%%MatrixMarket matrix array integer symmetric\n2 2\n1\n2\n3\n",
        "smtx": b"3, 4, 4\n0 2 2 4\n1 3 0 2\n",
    }
    sparse = {
        f"{form}.npz": saved(
            scipy.sparse.save_npz, scipy.sparse.coo_array(DENSE).asformat(form), compressed=packed
        )
        for form, packed in (("csr", True), ("csc", False), ("coo", False), ("bsr", False), ("dia", False))
    }
    return {
        **plain,
        **{f"{name}.gz": gzip.compress(content, mtime=0) for name, content in plain.items()},
        **sparse,
        "npy": saved(np.save, DENSE),
        "npz": saved(np.savez, w=DENSE, b=DENSE[0]),
        "one.npz": saved(np.savez_compressed, w=DENSE.astype(np.float16)),
        "safetensors": len(text).to_bytes(8, "little") + text + DENSE.tobytes(),
    }


def read_matrix(folder: Path, found: tuple[str, bytes]) -> None:
    name, content = found
    path = folder / f"w.{name}"
    path.write_bytes(content)
    try:
        matrix = load_matrix(path, memory_limit=MEMORY, allow_nonfinite=True)
    except MatrixError as error:
        assert str(path) in str(error) and len(str(error)) < 1000
    else:
        assert isinstance(matrix, CsrMatrix) and len(matrix.row_offsets) == matrix.shape[0] + 1
    if name.startswith("smtx"):
        with suppress(MatrixError):
            assert len(read_smtx_shape(path)) == 2


def test_damaged_matrices(tmp_path: Path, fuzz: Fuzz) -> None:
    fuzz(damaged_bytes(matrix_files()), lambda found: read_matrix(tmp_path, found))


def test_headers_of_matrices(tmp_path: Path, fuzz: Fuzz) -> None:
    fuzz(matrix_market() | smtx() | npy() | safetensors(), lambda found: read_matrix(tmp_path, found))


def test_weights(tmp_path: Path, fuzz: Fuzz) -> None:
    def read(found: tuple[str, bytes]) -> None:
        name, content = found
        path = tmp_path / f"w.{name}"
        path.write_bytes(content)
        try:
            weights = open_weights(path, MEMORY)
            for spec in weights.specs:
                if spec.value_type is not None:
                    weights.read(spec.name)
        except MatrixError as error:
            assert str(path) in str(error) or "tensor" in str(error)

    corpus = {n: c for n, c in matrix_files().items() if n.endswith(("npy", "npz", "safetensors"))}
    fuzz(damaged_bytes(corpus) | npy() | safetensors(), read)


def test_packed_headers(tmp_path: Path, fuzz: Fuzz) -> None:
    """Headers with any values in them, whose checksums are right."""
    net = SparseNetwork(radixnet(64, 3), device="emulator", db=str(tmp_path / "tuning.db"))
    path = tmp_path / "net.packed"
    save_packed(net.pack(20, memory=60_000), path)
    content = path.read_bytes()
    length = int(content[len(MAGIC) : FIRST_LINE].split()[0])
    images = content[padded(FIRST_LINE + length) :]

    def read(text: str) -> None:
        header = text.encode("utf-8", "surrogatepass")
        first = (MAGIC + f"{len(header)} {zlib.crc32(header)}".encode()).ljust(FIRST_LINE - 1) + b"\n"
        path.write_bytes((first + header).ljust(padded(FIRST_LINE + len(header))) + images)
        try:
            found = load_packed(path)
        except SavedOperatorError as error:
            assert str(error).startswith(str(path)) and len(str(error)) < 2000
            return
        assert found.plan.batch >= 1 and found.segments and found.clip > 0

    fuzz(damaged_json(json.loads(content[FIRST_LINE : FIRST_LINE + length])), read)


def saved_bytes() -> bytes:
    """A file of an operator."""
    matrix, file = random_rows(64, 48, 0.3, 0.6, 0), io.BytesIO()
    operator = sparsegen.prepare(matrix, n=16, dtype="float16", family="csr_spmm", device="emulator")
    assert isinstance(operator, SparseOperator)
    sparsegen.save_operator(operator, file)
    return file.getvalue()


def test_saved_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fuzz: Fuzz) -> None:
    whole = saved_bytes()
    monkeypatch.setattr(saved_operator, "VariantLauncher", lambda *_, **__: None)  # nothing is compiled
    monkeypatch.setattr(saved_operator, "SparseOperator", lambda *_: None)
    monkeypatch.setattr(saved_operator, "shared_executor", lambda device: None)
    monkeypatch.setattr(saved_operator.Saved, "uploaded", lambda *_: None)

    def read(found: tuple[str, bytes]) -> None:
        path = tmp_path / "operator.npz"
        path.write_bytes(found[1])
        try:
            saved_operator.read_operator(path, H100)
        except SparsegenError as error:
            assert isinstance(error, SavedOperatorError) or error.exit_code == 3

    fuzz(damaged_bytes({"npz": whole}), read)
