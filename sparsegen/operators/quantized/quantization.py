"""Weights rounded to codes and scales, for ``quantized_spmm``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegen.errors import ConfigError
from sparsegen.matrix.formats import CsrMatrix, as_csr
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import member
from sparsegen.operators.base.quantized import ScaleGroup, ValueType
from sparsegen.operators.quantized.gptq import compensated, to_nearest
from sparsegen.operators.quantized.quantized_matrix import Quantization, QuantizedMatrix
from sparsegen.system.numpy_types import Array


def quantize(
    matrix: Any,
    value_type: ValueType | str,
    *,
    group: ScaleGroup | str | int = "row",
    dtype: DType | str = "float16",
    symmetric: bool = True,
    calibration: npt.ArrayLike | None = None,
) -> QuantizedMatrix:
    """Round a matrix's nonzeros to nearest: each group's largest becomes the largest code. Its pattern stays.

    Args:
        matrix: a `CsrMatrix`, or anything that `as_csr` takes.
        value_type: ``"e4m3"``, ``"int8"`` or ``"int4"``.
        group: columns of a row that share a scale, 32, 64 or 128; ``"row"``: all.
        dtype: element type of scales and activations, ``"float16"`` or ``"bfloat16"``.
        symmetric: zero is the code of zero; else each scale has a zero point beside it, so that the codes span from a
            group's smallest nonzero, or zero, to its largest.
        calibration: inputs of the layer whose weight this is, samples × columns: codes are then chosen one column
            after the other, and what rounding one of them changes in the layer's results the next ones make up for
            (`sparsegen.operators.quantized.gptq`). Scales stay those of the given weights.

    Raises:
        MatrixError: the matrix is malformed, or not finite; or so is the calibration.
        ConfigError: an unknown word, or zero points of floating-point codes.
    """
    rounding = Quantization.parse(value_type, group, symmetric)
    if rounding is None:
        raise ConfigError("value_type = None is no type of codes")
    element = member(DType, dtype, "dtype")
    if element.itemsize != 2:
        raise ConfigError(f"dtype = {element}: scales are float16 or bfloat16")
    csr = as_csr(matrix)
    kind, by = rounding.value_type, rounding.group
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.row_offsets))
    groups = csr.column_indices // by.size(csr.shape[1])
    scales, zero_points = _scales(csr, rounding, element, groups, rows)
    if calibration is None:
        offset = None if zero_points is None else zero_points[groups, rows]
        codes = to_nearest(csr.values, scales[groups, rows], offset, kind)
    else:
        codes = compensated(csr, scales, zero_points, kind, by, calibration)
    return QuantizedMatrix(csr.with_values(codes), scales, kind, by, element, zero_points)


def _scales(
    csr: CsrMatrix, rounding: Quantization, dtype: DType, groups: Array, rows: Array
) -> tuple[Array, Array | None]:
    """Scales, and zero points if there are any, groups × rows.

    Args:
        groups, rows: of each nonzero.
    """
    kind, m = rounding.value_type, csr.shape[0]
    shape = rounding.group.number(csr.shape[1]), m
    high, low = np.zeros(shape), np.zeros(shape)
    runs = np.flatnonzero(np.diff(groups, prepend=-1) | np.diff(rows, prepend=-1))  # begins of equal places
    places = groups[runs], rows[runs]
    np.maximum.at(high, places, np.maximum.reduceat(csr.values, runs))
    np.minimum.at(low, places, np.minimum.reduceat(csr.values, runs))
    if rounding.symmetric:
        span, steps = np.maximum(high, -low), kind.largest
    else:
        span, steps = high - low, kind.largest - kind.smallest
    # Rounded up where it would be zero beside weights that are not.
    least = float(dtype.from_storage(np.ones(1, np.uint16).view(dtype.storage))[0])
    wanted = np.where(span > 0, np.maximum(span / steps, least), 0)
    scales = dtype.rounded(wanted)
    if not np.isfinite(scales).all():
        raise ConfigError(
            f"a scale of {wanted.max():.3g} is infinite in {dtype}: scale the matrix, or take bfloat16"
        )
    if rounding.symmetric:
        return scales, None
    zero_points = np.rint(kind.smallest - low / np.where(scales > 0, scales, 1))
    return scales, np.clip(zero_points, kind.smallest, kind.largest).astype(np.float32)


def quantized_as(
    rounding: Quantization, matrix: CsrMatrix, dtype: DType, calibration: npt.ArrayLike | None = None
) -> QuantizedMatrix:
    """Round a matrix as a `Quantization` says; see `quantize`, whose errors these are."""
    return quantize(
        matrix,
        rounding.value_type,
        group=rounding.group,
        dtype=dtype,
        symmetric=rounding.symmetric,
        calibration=calibration,
    )
