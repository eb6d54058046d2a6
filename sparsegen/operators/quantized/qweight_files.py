"""Quantised weights of one module in a safetensors file as AutoGPTQ and AutoAWQ store them: ``qweight`` and ``qzeros``.

Both hold the transposed weight, in-features × out-features, as unsigned codes in 32-bit words, with a zero point for
each scale. GPTQ packs codes along the in-features, and zero points less 1 (its format ``gptq_v2``: as they are) along
the out-features; AWQ packs both along the out-features, in an order of its own. Weights of zero become zeros of the
pattern.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.readers.safetensors import TensorEntry, read_raw, widened
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.quantized import ValueType
from sparsegen.operators.quantized.compressed_tensors import of_weights, unpacked
from sparsegen.operators.quantized.quantized_matrix import QuantizedMatrix
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

NAMES = ("qweight", "qzeros", "scales")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of the out-features in a word, from its lowest bits on
CONFIGS = ("quantize_config.json", "config.json")  # files beside the weights, the first that says counts


def read_qweight(path: Path, module: str, own: Mapping[str, TensorEntry]) -> QuantizedMatrix:
    """The weight of a module.

    Args:
        own: the module's tensors.

    Raises:
        MatrixError: tensors that are missing or do not fit each other, or groups of columns that are no neighbours.
    """
    if missing := [name for name in NAMES if name not in own]:
        raise MatrixError(f"{module}: {', '.join(missing)} is missing", source=path)
    words, zeros, scales = (read_raw(path, own[name]) for name in NAMES)
    out = scales.shape[-1]
    if own["qweight"].kind != "I32" or scales.ndim != 2 or words.ndim != 2 or zeros.ndim != 2:
        raise MatrixError(f"{module}: expected codes of 4 or 8 bits in 32-bit words", source=path)
    bits = 32 * zeros.shape[1] // max(1, out)
    if bits not in (4, 8) or zeros.shape[1] * (32 // bits) != out:
        raise MatrixError(f"{module}: qzeros of shape {zeros.shape} for {out} out-features", source=path)
    kind = ValueType.INT4 if bits == 4 else ValueType.INT8
    if words.shape[1] == out:
        codes, points = unpacked(words.T.copy(), bits), unpacked(zeros, bits)
        points = (points + (0 if _is_second_format(path) else 1)) % (1 << bits)
    elif words.shape[1] * 8 == out and bits == 4:
        codes, points = _of_awq(words).T, _of_awq(zeros)
    else:
        raise MatrixError(f"{module}: qweight of shape {words.shape} for {out} out-features", source=path)
    _require_neighbours(path, module, own, codes.shape[1], scales.shape[0])
    offset = np.float32(kind.smallest)
    numbers = widened(own["scales"], scales).astype(np.float32).T
    dtype = DType.BFLOAT16 if own["scales"].kind == "BF16" else DType.FLOAT16
    return of_weights(codes + offset, numbers, points.T + offset, kind, dtype, f"{path}, {module}")


def _of_awq(words: Array) -> Array:
    """The codes of words in AWQ's order."""
    numbers = unpacked(words, 4).reshape(words.shape[0], -1, 8)
    found = np.empty_like(numbers)
    found[:, :, AWQ_ORDER] = numbers
    return found.reshape(words.shape[0], -1)


def _require_neighbours(
    path: Path, module: str, own: Mapping[str, TensorEntry], columns: int, groups: int
) -> None:
    """Raises MatrixError where the columns of a group are no neighbours (GPTQ's ``desc_act``)."""
    entry = own.get("g_idx")
    if entry is None:
        return
    size = ceil_div(columns, groups)
    if not np.array_equal(read_raw(path, entry), np.arange(columns) // size):
        raise MatrixError(f"{module}: its groups are not of neighbouring columns (g_idx)", source=path)


def _is_second_format(path: Path) -> bool:
    """True if a config beside the file says that zero points are stored as they are."""
    for name in CONFIGS:
        beside = path.parent / name
        if beside.is_file():
            try:
                facts = json.loads(beside.read_text(encoding="utf-8"))
            except ValueError as error:
                raise MatrixError("malformed JSON beside quantised weights", source=beside) from error
            found = facts.get("quantization_config", facts).get("checkpoint_format")
            if found is not None:
                return bool(found == "gptq_v2")
    return False
