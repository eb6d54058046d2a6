"""Quantised weights of one module as the package compressed-tensors stores them in a safetensors file.

Formats: ``pack-quantized`` (4 or 8 bits in 32-bit words, the first in the lowest bits), ``float-quantized`` and
``int-quantized`` (8 bits each), and ``sparse-bitmask`` over such 8-bit codes. Zeros become zeros of the pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.readers.safetensors import TensorEntry, read_entries, read_raw, widened
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.float8 import Float8
from sparsegen.operators.base.quantized import ScaleGroup, ValueType
from sparsegen.operators.quantized.quantization import QuantizedMatrix
from sparsegen.system.numpy_types import Array

KINDS = {"F8_E4M3": ValueType.E4M3, "I8": ValueType.INT8}  # by the file's word for an element
REFUSED = {
    "weight_zero_point": "it has zero points: quantise it symmetrically",
    "weight_g_idx": "its groups are not of neighbouring columns (weight_g_idx)",
    "weight_global_scale": "it has a scale of scales",
}


def read_module(path: Path, module: str) -> QuantizedMatrix:
    """The weight of a module, such as ``"model.layers.0.mlp.down_proj"``.

    Scales of float32 are rounded to float16.

    Raises:
        MatrixError: a malformed file, no such module, or a format that is none of these.
    """
    entries = {entry.name: entry for entry in read_entries(path)}
    own = {name.removeprefix(f"{module}."): e for name, e in entries.items() if name.startswith(f"{module}.")}
    if "weight_scale" not in own:
        some = sorted(n.removesuffix(".weight_scale") for n in entries if n.endswith(".weight_scale"))
        raise MatrixError(
            f"no quantised module {module!r}; there are {', '.join(some[:10]) or 'none'}", source=path
        )
    for name, why in REFUSED.items():
        if name in own:
            raise MatrixError(f"{module}: {why}", source=path)
    kind, codes = _codes(path, module, own)
    scale = own["weight_scale"]
    m, k = codes.shape
    scales = np.atleast_2d(widened(scale, read_raw(path, scale)).astype(np.float32))
    if scales.size == 1:
        scales = np.broadcast_to(scales, (m, 1))
    group = _group(scales.shape, m, k)
    if group is None:
        raise MatrixError(
            f"{module}: scales of shape {scales.shape} for {m} × {k} weights are not of groups of 32, 64 or 128 "
            "columns or of rows",
            source=path,
        )
    dtype = DType.BFLOAT16 if scale.kind == "BF16" else DType.FLOAT16
    csr = as_csr(codes, source=f"{path}, {module}")
    return QuantizedMatrix(csr, np.ascontiguousarray(dtype.rounded(scales).T), kind, group, dtype)


def _codes(path: Path, module: str, own: Mapping[str, TensorEntry]) -> tuple[ValueType, Array]:
    """The codes of all weights as numbers, float32."""
    if packed := own.get("weight_packed"):
        m, k = (int(size) for size in read_raw(path, own["weight_shape"]).ravel())
        bits = 4 if packed.shape == (m, -(-k // 8)) else 8
        if packed.kind != "I32" or packed.shape != (m, -(-k * bits // 32)):
            raise MatrixError(f"{module}: {packed.shape} words do not hold {m} × {k} weights", source=path)
        words = read_raw(path, packed).view(np.uint32)[:, :, None] >> np.arange(0, 32, bits, dtype=np.uint32)
        kind = ValueType.INT4 if bits == 4 else ValueType.INT8
        numbers = (words & ((1 << bits) - 1)).astype(np.float32) - np.float32(1 << bits - 1)
        return kind, numbers.reshape(m, -1)[:, :k]
    stored = own.get("compressed") or own.get("weight")
    if stored is None or stored.kind not in KINDS:
        found = "no weight" if stored is None else stored.kind
        raise MatrixError(f"{module}: expected codes of 4 or 8 bits, got {found}", source=path)
    kind = KINDS[stored.kind]
    raw = read_raw(path, replace(stored, kind="U8") if kind is ValueType.E4M3 else stored)
    numbers = Float8.E4M3.from_storage(raw) if kind is ValueType.E4M3 else raw.astype(np.float32)
    if "compressed" not in own:
        return kind, numbers
    m, k = (int(size) for size in read_raw(path, own["shape"]).ravel())
    mask = np.unpackbits(read_raw(path, own["bitmask"]).view(np.uint8), axis=-1, count=k, bitorder="little")
    if mask.shape != (m, k) or int(mask.sum()) != numbers.size:
        raise MatrixError(f"{module}: its bitmask is not of its {numbers.size} weights", source=path)
    dense = np.zeros((m, k), dtype=np.float32)
    dense[mask.astype(bool)] = numbers
    return kind, dense


def _group(shape: tuple[int, ...], m: int, k: int) -> ScaleGroup | None:
    """Returns the extent of scales of this shape; None if there is no such one."""
    return next((group for group in ScaleGroup if shape == (m, group.number(k))), None)
