"""Operators in files: what comes back computes the same bits; what is damaged or foreign is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.backends.emulator import device as emulator_device
from sparsegen.errors import ConfigError, OperandError, OutputError, SavedOperatorError
from sparsegen.kernels import family
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_rows
from sparsegen.operators import SparseOperator

M, K, N = 70, 200, 5
PLACES = ["emulator", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def matrix() -> CsrMatrix:
    return random_rows(M, K, 0.4, 0.5, 0)


def prepare(matrix: CsrMatrix, device: str = "emulator", **options: Any) -> SparseOperator:
    kind = {"dtype": "float16", "layout": "column", "family": "lane_stream_spmm"} | options
    operator = sparsegen.prepare(matrix, n=N, device=device, **kind)
    assert isinstance(operator, SparseOperator)
    return operator


def tokens(dtype: type = np.float16) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal((N, K)).astype(dtype)


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16"},
        {"config": {"row_order": "balanced"}},
        {"family": "csr_spmm"},
        {"family": "panel_spmm"},
    ],
)
def test_the_same_operator_comes_back(
    matrix: CsrMatrix, device: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bias = np.linspace(-1, 1, M, dtype=np.float32)
    operator = prepare(matrix, device, epilogue="bias_relu", bias=bias, **options)
    sparsegen.save_operator(operator, tmp_path / "layer.npz")
    with monkeypatch.context() as patched:
        patched.setattr(type(operator.choice.family), "pack", lambda *_: pytest.fail("it was packed again"))
        loaded = sparsegen.load_operator(tmp_path / "layer.npz", device=device)
    assert (loaded.problem, loaded.variant) == (operator.problem, operator.variant)
    b = tokens(np.float32 if "dtype" in options else np.float16)
    np.testing.assert_array_equal(loaded(b), operator(b))
    assert "loaded from a file" in loaded.explain()
    values = np.random.default_rng(2).standard_normal(matrix.nnz).astype(np.float32)
    for one in (operator, loaded):
        one.update_values(values)
    np.testing.assert_array_equal(loaded(b), operator(b))


def test_new_values_and_a_second_generation_are_saved(matrix: CsrMatrix) -> None:
    """Through files in memory, as in a model's checkpoint."""
    operator, b = prepare(matrix), tokens()
    operator.update_values(matrix.values * 2)
    for _ in range(2):
        file = io.BytesIO()
        sparsegen.save_operator(operator, file)
        file.seek(0)
        loaded = sparsegen.load_operator(file, device="emulator")
        np.testing.assert_array_equal(loaded(b), operator(b))
        operator = loaded


def test_without_the_places_of_values_the_file_is_small(matrix: CsrMatrix, tmp_path: Path) -> None:
    operator = prepare(matrix)
    whole, small = tmp_path / "whole.npz", tmp_path / "small.npz"
    sparsegen.save_operator(operator, whole)
    sparsegen.save_operator(operator, small, updatable=False)
    packed = operator.launcher.prepared.packed.nbytes
    assert packed < small.stat().st_size < packed + 4096 < whole.stat().st_size
    loaded = sparsegen.load_operator(small, device="emulator")
    np.testing.assert_array_equal(loaded(tokens()), operator(tokens()))
    with pytest.raises(OperandError, match="saved with updatable=False"):
        loaded.update_values(matrix.values)
    with pytest.raises(OperandError, match="saved with updatable=False"):
        sparsegen.save_operator(loaded, whole)
    assert np.load(whole)["source"].size, "the file that was there is untouched"


def test_an_empty_matrix() -> None:
    empty = CsrMatrix((M, K), np.zeros(M + 1, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32))
    file = io.BytesIO()
    sparsegen.save_operator(prepare(empty, family="csr_spmm"), file)
    file.seek(0)
    loaded = sparsegen.load_operator(file, device="emulator")
    assert not loaded(tokens()).any()
    loaded.update_values(np.zeros(0))


def test_what_is_no_operator_is_refused(matrix: CsrMatrix, tmp_path: Path) -> None:
    path = tmp_path / "layer.npz"
    with pytest.raises(SavedOperatorError, match=r"layer\.npz: there is no such file$"):
        sparsegen.load_operator(path, device="emulator")
    path.write_bytes(b"not an archive")
    with pytest.raises(SavedOperatorError, match=r"layer\.npz is not an operator"):
        sparsegen.load_operator(path, device="emulator")
    np.savez(path, values=np.zeros(3))
    with pytest.raises(SavedOperatorError, match="header"):
        sparsegen.load_operator(path, device="emulator")
    sparsegen.save_operator(prepare(matrix), path)
    whole = bytearray(path.read_bytes())
    for damaged in (whole[: len(whole) // 2], whole[:-3000] + bytes([whole[-3000] ^ 1]) + whole[-2999:]):
        path.write_bytes(damaged)
        with pytest.raises(SavedOperatorError, match="damaged"):
            sparsegen.load_operator(path, device="emulator")


def test_another_version_or_device_is_refused(
    matrix: CsrMatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "layer.npz"
    sparsegen.save_operator(prepare(matrix), path)
    with monkeypatch.context() as patched:
        patched.setattr(type(family("lane_stream_spmm")), "packing_version", 1000)
        with pytest.raises(
            SavedOperatorError, match=r"another version of lane_stream_spmm.*here 1000.*again"
        ):
            sparsegen.load_operator(path, device="emulator")
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes())
    for changes, error, words in (
        ({"format": 99}, SavedOperatorError, "format 99"),
        ({"config": header["config"] | {"blocks": 7}}, ConfigError, "none of"),
        ({"config": header["config"] | {"warps_m": 8, "warps_k": 4}}, ConfigError, "it must hold"),
        ({"family": "of_the_future"}, ConfigError, "of_the_future"),
        ({"problem": {"m": 3}}, SavedOperatorError, "damaged"),
        ({"sizes": {"groups": "many"}}, SavedOperatorError, "damaged"),
    ):
        changed = json.dumps(header | changes).encode()
        np.savez(path, **arrays | {"header": np.frombuffer(changed, dtype=np.uint8)})
        with pytest.raises(error, match=words):
            sparsegen.load_operator(path, device=emulator_device())


def test_a_folder_that_is_not_there_is_made_and_one_that_cannot_be_is_told(
    matrix: CsrMatrix, tmp_path: Path
) -> None:
    operator = prepare(matrix)
    sparsegen.save_operator(operator, tmp_path / "new" / "layer.npz")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        sparsegen.save_operator(operator, tmp_path / "file" / "layer.npz")


def test_only_products_are_saved(matrix: CsrMatrix, tmp_path: Path) -> None:
    sampled = sparsegen.prepare(matrix, operator="sddmm", k=8, device="emulator")
    with pytest.raises(OperandError, match=r"only products \(spmm\) are saved"):
        sparsegen.save_operator(sampled, tmp_path / "sampled.npz")  # type: ignore[arg-type]
