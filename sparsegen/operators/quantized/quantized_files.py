"""Quantised matrices from files: ours, and those of compressed-tensors, GPTQ and AWQ."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sparsegen.errors import MatrixError
from sparsegen.matrix.load import load_matrix
from sparsegen.matrix.readers.safetensors import read_entries
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import member
from sparsegen.operators.base.quantized import ScaleGroup, ValueType
from sparsegen.operators.quantized.compressed_tensors import read_compressed
from sparsegen.operators.quantized.quantization import QuantizedMatrix
from sparsegen.operators.quantized.qweight_files import read_qweight


def load_quantized(path: str | Path, *, module: str | None = None) -> QuantizedMatrix:
    """Read a quantised matrix; nothing is unpickled.

    Args:
        path: an ``.npz`` file that ``sparsegen prune --values`` wrote, or a ``.safetensors`` file as
            compressed-tensors, AutoGPTQ or AutoAWQ write it.
        module: of ``.safetensors`` the module's name, such as ``"model.layers.0.mlp.down_proj"``.

    Raises:
        MatrixError: no such file or module, or one without codes and scales.
    """
    if module is not None:
        return _of_module(Path(path), module)
    codes = load_matrix(path)
    with np.load(path, allow_pickle=False) as file:
        if lacking := [name for name in ("scales", "value_type", "group", "dtype") if name not in file]:
            raise MatrixError(f"no quantised matrix: {', '.join(lacking)} is missing", source=path)
        kind, group, dtype = (str(file[name]) for name in ("value_type", "group", "dtype"))
        scales = np.asarray(file["scales"], dtype=np.float32)
        zero_points = np.asarray(file["zero_points"], dtype=np.float32) if "zero_points" in file else None
    made = QuantizedMatrix(
        codes.with_values(codes.values.astype(np.float32)),
        scales,
        member(ValueType, kind, "value_type", MatrixError),
        member(ScaleGroup, group, "group", MatrixError),
        member(DType, dtype, "dtype", MatrixError),
        zero_points,
    )
    m, k = made.shape
    if scales.shape != (made.group.number(k), m) or not np.isfinite(scales).all():
        raise MatrixError(
            f"expected finite scales of shape {(made.group.number(k), m)}, got {scales.shape}", source=path
        )
    if zero_points is not None:
        fits = zero_points.shape == scales.shape and made.value_type is not ValueType.E4M3
        if not fits or not np.array_equal(made.value_type.rounded(zero_points), zero_points):
            raise MatrixError("zero points are codes of integers, one for each scale", source=path)
    if not np.array_equal(made.value_type.rounded(made.codes.values), made.codes.values):
        raise MatrixError(f"some values are no codes of {made.value_type}", source=path)
    return made


def _of_module(path: Path, module: str) -> QuantizedMatrix:
    """The weight of a module, by the names of its tensors.

    Raises:
        MatrixError: a malformed file, no such module, or a format that is not read.
    """
    entries = {entry.name: entry for entry in read_entries(path)}
    own = {name.removeprefix(f"{module}."): e for name, e in entries.items() if name.startswith(f"{module}.")}
    if "qweight" in own:
        return read_qweight(path, module, own)
    if "weight_scale" in own:
        return read_compressed(path, module, own)
    ends = (".weight_scale", ".qweight")
    some = sorted({name.rpartition(".")[0] for name in entries if name.endswith(ends)})
    raise MatrixError(
        f"no quantised module {module!r}; there are {', '.join(some[:10]) or 'none'}", source=path
    )
