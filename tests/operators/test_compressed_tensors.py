"""Weights as compressed-tensors stores them: codes and scales come back, and what is not read is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparsegen
from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import Array
from sparsegen.operators import Quantization, ScaleGroup, ValueType

M, K, MODULE = 6, 72, "model.layers.0.mlp.down_proj"
WORDS = {"int32": "I32", "int64": "I64", "float32": "F32", "uint8": "U8", "int8": "I8"}


def saved(path: Path, tensors: dict[str, tuple[str, Array]]) -> Path:
    """A safetensors file of arrays with the format's words for their types."""
    header: dict[str, Any] = {}
    data = b""
    for name, (kind, array) in tensors.items():
        end = len(data) + array.nbytes
        header[f"{MODULE}.{name}"] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def codes(kind: ValueType, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    numbers = kind.rounded(rng.uniform(kind.smallest, kind.largest, (M, K)))
    return np.where(rng.random((M, K)) < 0.5, numbers, np.float32(0))


def scales(groups: int) -> Array:
    return np.random.default_rng(1).uniform(0.01, 0.1, (M, groups)).astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_words(bits: int, tmp_path: Path) -> None:
    kind = ValueType.INT4 if bits == 4 else ValueType.INT8
    given, scale = codes(kind), scales(3)
    unsigned = np.pad((given - kind.smallest).astype(np.uint32), ((0, 0), (0, -K % (32 // bits))))
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    packed = (unsigned.reshape(M, -1, 32 // bits) << shifts).sum(axis=-1, dtype=np.uint32).view(np.int32)
    file = saved(
        tmp_path / "model.safetensors",
        {
            "weight_packed": ("I32", packed),
            "weight_shape": ("I64", np.array([M, K])),
            "weight_scale": ("F32", scale),
        },
    )
    found = sparsegen.load_quantized(file, module=MODULE)
    assert (found.value_type, found.group, found.dtype) == (kind, ScaleGroup.OF_32, "float16")
    np.testing.assert_array_equal(found.codes.to_dense(), given)
    np.testing.assert_array_equal(found.scales, scale.T)
    assert found.codes.nnz == np.count_nonzero(given)


@pytest.mark.parametrize("form", ["dense", "sparse-bitmask", "sparse-24-bitmask"])
@pytest.mark.parametrize("kind", [ValueType.E4M3, ValueType.INT8])
def test_single_bytes(kind: ValueType, form: str, tmp_path: Path) -> None:
    given = codes(kind)
    kept = given != 0
    if form == "sparse-24-bitmask":  # two of every four are stored, be they zeros
        kept = np.tile(np.arange(K) % 4 < 2, (M, 1))
        given = np.where(kept, given, 0)
    bits = np.uint16(0x3D00)  # 0.03125 in bfloat16
    stored = kind.to_codes(given) if kind is ValueType.E4M3 else given.astype(np.int8)
    word = "F8_E4M3" if kind is ValueType.E4M3 else "I8"
    tensors = {"weight_scale": ("BF16", np.full((M, 1), bits))}
    if form != "dense":
        of_rows = (M, -1) if form == "sparse-24-bitmask" else -1
        tensors["compressed"] = (word, stored[kept].reshape(of_rows))
        tensors["bitmask"] = ("U8", np.packbits(kept, axis=-1, bitorder="little"))
        tensors["shape"] = ("I64", np.array([M, K]))
    else:
        tensors["weight"] = (word, stored)
    found = sparsegen.load_quantized(saved(tmp_path / "model.safetensors", tensors), module=MODULE)
    assert (found.value_type, found.group, found.dtype) == (kind, ScaleGroup.ROW, "bfloat16")
    np.testing.assert_array_equal(found.codes.to_dense(), given)
    np.testing.assert_array_equal(found.scales, np.full((1, M), 0.03125))
    operator = sparsegen.prepare(found, n=2, device="emulator")
    b = np.ones((2, K), dtype=np.float32)
    np.testing.assert_allclose(operator(b), b @ found.dequantized().to_dense().T, rtol=1e-2, atol=1e-3)


def packed(numbers: Array, bits: int) -> Array:
    """Unsigned numbers of rows in 32-bit words, the first in the lowest bits."""
    each = 32 // bits
    filled = np.pad(numbers.astype(np.uint32), ((0, 0), (0, -numbers.shape[1] % each)))
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = (filled.reshape(numbers.shape[0], -1, each) << shifts).sum(axis=-1, dtype=np.uint32)
    return words.view(np.int32)


@pytest.mark.parametrize("is_packed", [False, True])
def test_zero_points(is_packed: bool, tmp_path: Path) -> None:
    rng, kind = np.random.default_rng(2), ValueType.INT4
    given, points = rng.integers(-8, 8, (M, K)), rng.integers(-8, 8, (M, 3))
    stored = ("I32", packed((points + 8).T, 4).T.copy()) if is_packed else ("I8", points.astype(np.int8))
    tensors = {
        "weight_packed": ("I32", packed(given + 8, 4)),
        "weight_shape": ("I64", np.array([M, K])),
        "weight_scale": ("F32", scales(3)),
        "weight_zero_point": stored,
    }
    found = sparsegen.load_quantized(saved(tmp_path / "model.safetensors", tensors), module=MODULE)
    assert found.rounding == Quantization(kind, ScaleGroup.OF_32, False)
    spread = [np.repeat(array, 32, axis=1)[:, :K] for array in (points, scales(3))]
    np.testing.assert_array_equal(found.dequantized().to_dense(), (given - spread[0]) * spread[1])
    assert found.codes.nnz == np.count_nonzero(given != spread[0]) < given.size


OUT, IN = 16, 64
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # where AWQ puts the out-features of a word


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2", "awq"])
def test_codes_of_gptq_and_awq(form: str, bits: int, tmp_path: Path) -> None:
    if form == "awq" and bits == 8:
        return
    rng = np.random.default_rng(3)
    given, points = rng.integers(0, 1 << bits, (OUT, IN)), rng.integers(1, 1 << bits, (OUT, 2))
    scale = rng.uniform(0.01, 0.1, (OUT, 2)).astype(np.float16).astype(np.float32)
    if form == "awq":
        order = np.concatenate([8 * word + np.argsort(AWQ_NIBBLES) for word in range(OUT // 8)])
        words, zeros = packed(given.T[:, order], 4), packed(points.T[:, order], 4)
    else:
        words, zeros = packed(given, bits).T.copy(), packed(points.T - (form == "gptq"), bits)
    tensors = {"qweight": ("I32", words), "qzeros": ("I32", zeros), "scales": ("F32", scale.T.copy())}
    if form != "awq":
        (tmp_path / "quantize_config.json").write_text(json.dumps({"checkpoint_format": form}))
        tensors["g_idx"] = ("I32", np.arange(IN, dtype=np.int32) // 32)
    path = saved(tmp_path / "model.safetensors", tensors)
    found = sparsegen.load_quantized(path, module=MODULE)
    kind = ValueType.INT4 if bits == 4 else ValueType.INT8
    assert found.rounding == Quantization(kind, ScaleGroup.OF_32, False)
    spread = [np.repeat(array, 32, axis=1) for array in (points, scale)]
    np.testing.assert_array_equal(found.dequantized().to_dense(), (given - spread[0]) * spread[1])
    if form != "awq":
        tensors["g_idx"] = ("I32", np.arange(IN, dtype=np.int32)[::-1] // 32)
        with pytest.raises(MatrixError, match="not of neighbouring columns"):
            sparsegen.load_quantized(saved(path, tensors), module=MODULE)


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    weight, scale = ("I8", codes(ValueType.INT8).astype(np.int8)), ("F32", scales(1))
    path = tmp_path / "model.safetensors"
    for tensors, message in (
        ({"weight": weight}, "no quantised module .* there are none"),
        ({"weight": ("F32", codes(ValueType.INT8)), "weight_scale": scale}, "codes of 4 or 8 bits, got F32"),
        ({"weight": weight, "weight_scale": scale, "weight_g_idx": scale}, "not of neighbouring columns"),
        (
            {"weight": weight, "weight_scale": scale, "weight_zero_point": ("I8", np.ones((2, 1), np.int8))},
            "zero points of shape",
        ),
        ({"qweight": weight, "scales": scale}, "qzeros is missing"),
        ({"weight": weight, "weight_scale": ("F32", scales(5))}, "not of groups of 32, 64 or 128 columns"),
    ):
        with pytest.raises(MatrixError, match=message):
            sparsegen.load_quantized(saved(path, tensors), module=MODULE)
