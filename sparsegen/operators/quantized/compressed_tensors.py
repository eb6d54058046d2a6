"""Quantised weights of one module as the package compressed-tensors stores them in a safetensors file.

Formats: ``pack-quantized`` (4 or 8 bits in 32-bit words, the first in the lowest bits), ``float-quantized`` and
``int-quantized`` (8 bits each), and ``sparse-bitmask`` and ``sparse-24-bitmask`` over such 8-bit codes. Zero points may
be packed like weights, but along the rows. Weights of zero become zeros of the pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.readers.safetensors import TensorEntry, read_raw, widened
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.float8 import Float8
from sparsegen.operators.base.quantized import ScaleGroup, ValueType
from sparsegen.operators.quantized.quantized_matrix import QuantizedMatrix
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

KINDS = {"F8_E4M3": ValueType.E4M3, "I8": ValueType.INT8}  # by the file's word for an element
REFUSED = {
    "weight_g_idx": "its groups are not of neighbouring columns (weight_g_idx)",
    "weight_global_scale": "it has a scale of scales",
}


def read_compressed(path: Path, module: str, own: Mapping[str, TensorEntry]) -> QuantizedMatrix:
    """The weight of a module.

    Scales of float32 are rounded to float16.

    Args:
        own: the module's tensors, with ``weight_scale`` among them.

    Raises:
        MatrixError: a format that is none of these.
    """
    for name, why in REFUSED.items():
        if name in own:
            raise MatrixError(f"{module}: {why}", source=path)
    kind, codes = _codes(path, module, own)
    scale = own["weight_scale"]
    m = codes.shape[0]
    scales = np.atleast_2d(widened(scale, read_raw(path, scale)).astype(np.float32))
    if scales.size == 1:
        scales = np.broadcast_to(scales, (m, 1))
    points = own.get("weight_zero_point")
    zero_points = None if points is None else _zero_points(path, points, scales.shape, kind)
    dtype = DType.BFLOAT16 if scale.kind == "BF16" else DType.FLOAT16
    return of_weights(codes, scales, zero_points, kind, dtype, f"{path}, {module}")


def of_weights(
    codes: Array, scales: Array, zero_points: Array | None, kind: ValueType, dtype: DType, source: str
) -> QuantizedMatrix:
    """The matrix with the codes of all weights, without those that stand for zero.

    Args:
        codes: rows × columns, as numbers.
        scales, zero_points: rows × groups.
        source: where they are from, for messages.

    Raises:
        MatrixError: groups of no such size, or zero points that are none.
    """
    m, k = codes.shape
    group = _group(scales.shape, m, k)
    if group is None:
        raise MatrixError(
            f"scales of shape {scales.shape} for {m} × {k} weights are not of groups of 32, 64 or 128 columns or of "
            "rows",
            source=source,
        )
    rounded = np.ascontiguousarray(dtype.rounded(scales).T)
    if zero_points is None or not zero_points.any():
        return QuantizedMatrix(as_csr(codes, source=source), rounded, kind, group, dtype)
    if zero_points.shape != scales.shape or kind is ValueType.E4M3:
        raise MatrixError(
            f"zero points of shape {zero_points.shape} beside scales of {scales.shape} for {kind}",
            source=source,
        )
    is_live = codes != np.repeat(zero_points, group.size(k), axis=1)[:, :k]
    csr = as_csr(is_live.astype(np.float32), source=source).with_values(codes[is_live])
    return QuantizedMatrix(csr, rounded, kind, group, dtype, np.ascontiguousarray(zero_points.T))


def _zero_points(path: Path, entry: TensorEntry, shape: tuple[int, ...], kind: ValueType) -> Array:
    """Zero points as numbers, rows × groups, float32.

    Args:
        shape: the scales'.
    """
    stored = read_raw(path, entry)
    if entry.kind == "I32" and kind is not ValueType.E4M3:
        words = unpacked(np.ascontiguousarray(stored.T), kind.bits)
        return words.T[: shape[0]] + np.float32(kind.smallest)
    return np.atleast_2d(stored.astype(np.float32)).reshape(-1, shape[1])


def unpacked(words: Array, bits: int) -> Array:
    """Numbers without a sign in the words of rows, those in the lowest bits first, float32."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    numbers = words.view(np.uint32)[:, :, None] >> shifts & np.uint32((1 << bits) - 1)
    return numbers.reshape(words.shape[0], -1).astype(np.float32)


def _codes(path: Path, module: str, own: Mapping[str, TensorEntry]) -> tuple[ValueType, Array]:
    """The codes of all weights as numbers, float32."""
    if packed := own.get("weight_packed"):
        m, k = (int(size) for size in read_raw(path, own["weight_shape"]).ravel())
        bits = 4 if packed.shape == (m, ceil_div(k, 8)) else 8
        if packed.kind != "I32" or packed.shape != (m, ceil_div(k * bits, 32)):
            raise MatrixError(f"{module}: {packed.shape} words do not hold {m} × {k} weights", source=path)
        kind = ValueType.INT4 if bits == 4 else ValueType.INT8
        return kind, unpacked(read_raw(path, packed), bits)[:, :k] + np.float32(kind.smallest)
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
    dense[mask.astype(bool)] = numbers.ravel()
    return kind, dense


def _group(shape: tuple[int, ...], m: int, k: int) -> ScaleGroup | None:
    """Returns the extent of scales of this shape; None if there is no such one."""
    return next((group for group in ScaleGroup if shape == (m, group.number(k))), None)
