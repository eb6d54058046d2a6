"""Quantised matrices from files: ours, and those of compressed-tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.load import load_matrix
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import member
from sparsegen.operators.base.quantized import ScaleGroup, ValueType
from sparsegen.operators.quantized.compressed_tensors import read_module
from sparsegen.operators.quantized.quantization import QuantizedMatrix


def load_quantized(path: str | Path, *, module: str | None = None) -> QuantizedMatrix:
    """Read a quantised matrix; nothing is unpickled.

    Args:
        path: an ``.npz`` file that ``sparsegen prune --values`` wrote, or compressed-tensors' ``.safetensors``.
        module: of ``.safetensors`` the module's name, such as ``"model.layers.0.mlp.down_proj"``.

    Raises:
        MatrixError: no such file or module, or one without codes and scales.
    """
    if module is not None:
        return read_module(Path(path), module)
    codes = load_matrix(path)
    with np.load(path, allow_pickle=False) as file:
        if lacking := [name for name in ("scales", "value_type", "group", "dtype") if name not in file]:
            raise MatrixError(f"no quantised matrix: {', '.join(lacking)} is missing", source=path)
        kind, group, dtype = (str(file[name]) for name in ("value_type", "group", "dtype"))
        scales = np.asarray(file["scales"], dtype=np.float32)
    made = QuantizedMatrix(
        codes.with_values(codes.values.astype(np.float32)),
        scales,
        member(ValueType, kind, "value_type", MatrixError),
        member(ScaleGroup, group, "group", MatrixError),
        member(DType, dtype, "dtype", MatrixError),
    )
    m, k = made.shape
    if scales.shape != (made.group.number(k), m) or not np.isfinite(scales).all():
        raise MatrixError(
            f"expected finite scales of shape {(made.group.number(k), m)}, got {scales.shape}", source=path
        )
    if not np.array_equal(made.value_type.rounded(made.codes.values), made.codes.values):
        raise MatrixError(f"some values are no codes of {made.value_type}", source=path)
    return made
