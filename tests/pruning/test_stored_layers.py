"""Checkpoints that store layers in parts, or in several files: read as the libraries that wrote them read them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.errors import MatrixError, PruningError
from sparsegen.pruning.files.open import open_weights
from sparsegen.pruning.pruned_layers import matrix_of, pruned_layers
from sparsegen.pruning.pruner import prune_file
from sparsegen.pruning.request import PruneRequest

NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL"}
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((24, 36)).astype(np.float32)
MASK = RNG.random(WEIGHT.shape) < 0.3
HALVES = np.where(MASK, WEIGHT, 0).astype(np.float16)


def _save(path: Path, tensors: dict[str, Any]) -> Path:
    header: dict[str, Any] = {}
    content = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(content), len(content) + len(raw)],
        }
        content += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


def _bits(array: Any) -> Any:
    return np.packbits(array != 0, axis=1, bitorder="little")


def _sparse_bitmask() -> dict[str, Any]:
    counts = (HALVES != 0).sum(1)
    return {
        "q.weight.compressed": HALVES[HALVES != 0],
        "q.weight.bitmask": _bits(HALVES),
        "q.weight.shape": np.array([24, 36]),
        "q.weight.row_offsets": np.cumsum(counts) - counts,
    }


def _two_of_four() -> tuple[dict[str, Any], Any]:
    groups = WEIGHT.reshape(24, 9, 4).astype(np.float16)
    np.put_along_axis(groups, np.argsort(np.abs(groups), axis=2)[:, :, :2], 0, axis=2)
    dense = groups.reshape(24, 36)
    tensors = {
        "q.weight.compressed": dense[dense != 0].reshape(24, 18),
        "q.weight.bitmask": _bits(dense),
        "q.weight.shape": np.array([[24], [36]]),
    }
    return tensors, dense


@pytest.mark.parametrize("dtype", ["float32", "bool", "uint8"])
def test_masked_weights_are_products(tmp_path: Path, dtype: str) -> None:
    tensors = {
        "fc.weight_orig": WEIGHT,
        "fc.weight_mask": MASK.astype(dtype),
        "fc.bias": np.zeros(24, np.float32),
    }
    path = _save(tmp_path / "in.safetensors", tensors)
    (layer,) = pruned_layers(open_weights(path)).layers
    np.testing.assert_array_equal(matrix_of(open_weights(path), layer).to_dense(), WEIGHT * MASK)
    made = tmp_path / "out.safetensors"
    report = prune_file(path, PruneRequest.parse("unstructured", 0.8), output=made)
    assert [one.name for one in report.copied] == ["fc.weight_mask", "fc.bias"]
    written = open_weights(made)
    left = written.read("fc.weight_orig")
    kept = np.count_nonzero(left)
    assert abs(kept / WEIGHT.size - 0.2) < 0.01
    largest = np.sort(np.abs(WEIGHT * MASK).ravel())[-kept:]
    np.testing.assert_array_equal(
        np.sort(np.abs(written.read("fc.weight_orig")[written.read("fc.weight_orig") != 0])), largest
    )


def test_masked_weights_in_memory_are_refused() -> None:
    with pytest.raises(PruningError, match=r"prune\.remove"):
        sparsegen.prune({"w_orig": WEIGHT, "w_mask": MASK}, sparsity=0.5)


def test_a_mask_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = _save(tmp_path / "a.safetensors", {"w_orig": WEIGHT, "w_mask": MASK[:3].astype(np.float32)})
    with pytest.raises(MatrixError, match="another shape"):
        open_weights(path)


@pytest.mark.parametrize("of_four", [False, True])
def test_bitmask_checkpoints(tmp_path: Path, of_four: bool) -> None:
    tensors, dense = _two_of_four() if of_four else (_sparse_bitmask(), HALVES)
    weights = open_weights(_save(tmp_path / "a.safetensors", tensors))
    (layer,) = pruned_layers(weights, least_sparsity=0.4).layers
    assert layer.name == "q.weight"
    np.testing.assert_array_equal(matrix_of(weights, layer).to_dense(), dense.astype(np.float32))
    with pytest.raises(PruningError, match="decompress"):
        prune_file(
            tmp_path / "a.safetensors",
            PruneRequest.parse("unstructured", 0.8),
            output=tmp_path / "b.safetensors",
        )


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("bitmask", np.zeros((24, 4), np.uint8), "a bit for each weight"),
        ("compressed", np.ones(3, np.float16), "bits are set"),
        ("shape", np.array([24]), "2 sizes"),
        ("shape", np.array([24, 2**40]), "index range"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, part: str, value: Any, said: str) -> None:
    path = _save(tmp_path / "a.safetensors", {**_sparse_bitmask(), f"q.weight.{part}": value})
    with pytest.raises(MatrixError, match=said):
        open_weights(path).read("q.weight")


def _sharded(folder: Path) -> Path:
    one, two = np.where(MASK, WEIGHT, 0), np.where(MASK, 2 * WEIGHT, 0)
    _save(folder / "m-1.safetensors", {"a.weight": one, "b.weight": one})  # b's is stale
    _save(folder / "m-2.safetensors", {"b.weight": two})
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a.weight": "m-1.safetensors", "b.weight": "m-2.safetensors"}})
    )
    return index


def test_sharded_checkpoints(tmp_path: Path) -> None:
    index = _sharded(tmp_path)
    for path in (index, tmp_path):
        weights = open_weights(path)
        assert [spec.name for spec in weights.specs] == ["a.weight", "b.weight"]
        np.testing.assert_array_equal(weights.read("b.weight"), 2 * weights.read("a.weight"))
    with pytest.raises(PruningError, match="file by file"):
        open_weights(index).write(None, [], None)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[]", "weight_map"),
        ("{", "weight_map"),
        ('{"weight_map": {"a.weight": "../x.safetensors"}}', "beside the index"),
        ('{"weight_map": {"c.weight": "m-1.safetensors"}}', "should be in m-1"),
        ('{"weight_map": {"a.weight": "m-3.safetensors"}}', "m-3"),
    ],
)
def test_indices_that_lead_nowhere_are_refused(tmp_path: Path, written: str, said: str) -> None:
    index = _sharded(tmp_path)
    index.write_text(written)
    with pytest.raises(MatrixError, match=said):
        open_weights(index)


def test_a_folder_without_one_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PruningError, match="name the file"):
        open_weights(tmp_path)
