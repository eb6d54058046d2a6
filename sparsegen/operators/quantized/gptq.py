"""Codes of weights on given scales: each to nearest, or one column after the other so that later ones make up for it.

The second way is that of Frantar et al., GPTQ, ICLR 2023, section 3.3, with the columns in the order of their inputs'
squares, largest first, and the scales of the weights as they are given; what is zero is held at zero as in Frantar and
Alistarh, SparseGPT, ICML 2023, section 3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sparsegen.errors import MatrixError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.quantized import ScaleGroup, ValueType
from sparsegen.system.numpy_types import Array

BLOCK = 128  # columns after which the others are brought up, by one product
DAMPING = 0.01  # of the mean square of an input, added to each one's


def to_nearest(values: Array, scales: Array, zero_points: Array | None, kind: ValueType) -> Array:
    """The codes nearest to weights, as numbers, float32.

    Args:
        values, scales, zero_points: of shapes that broadcast.
    """
    ratio = values.astype(np.float64) / np.where(scales > 0, scales, 1)
    if zero_points is None:
        return kind.rounded(np.clip(ratio, -kind.largest, kind.largest))
    return kind.rounded(np.rint(ratio) + zero_points)


def compensated(
    csr: CsrMatrix,
    scales: Array,
    zero_points: Array | None,
    kind: ValueType,
    group: ScaleGroup,
    calibration: npt.ArrayLike,
) -> Array:
    """Codes of a matrix's nonzeros in CSR order, as numbers, float32, for inputs like those of a calibration.

    Args:
        scales, zero_points: groups × rows.
        calibration: samples × columns.

    Raises:
        MatrixError: a calibration of another shape, or one that is not finite.
    """
    m, k = csr.shape
    try:
        inputs = np.asarray(calibration, dtype=np.float64)
    except (TypeError, ValueError) as refused:
        raise MatrixError(f"calibration: expected numbers, samples × {k}: {refused}") from refused
    if inputs.ndim != 2 or inputs.shape[1] != k or not np.isfinite(inputs).all():
        raise MatrixError(f"expected a finite calibration of samples × {k}, got one of shape {inputs.shape}")
    order = np.argsort(-np.square(inputs).sum(axis=0), kind="stable")
    factor = _inverse_factor(inputs[:, order])
    columns = np.empty(k, dtype=np.int64)
    columns[order] = np.arange(k)
    rows = np.repeat(np.arange(m), np.diff(csr.row_offsets))
    places = rows, columns[csr.column_indices]
    left, live = np.zeros((m, k)), np.zeros((m, k), dtype=bool)
    left[places], live[places] = csr.values, True
    groups = order // group.size(k)
    codes = np.zeros((m, k), dtype=np.float32)
    for first in range(0, k, BLOCK):
        block = slice(first, min(k, first + BLOCK))
        errors = np.empty((m, block.stop - first))
        for column in range(block.start, block.stop):
            scale = scales[groups[column]]
            zero = None if zero_points is None else zero_points[groups[column]]
            codes[:, column] = to_nearest(left[:, column], scale, zero, kind)
            stands_for = (codes[:, column] - (0 if zero is None else zero)) * scale.astype(np.float64)
            error = (left[:, column] - np.where(live[:, column], stands_for, 0)) / factor[column, column]
            errors[:, column - first] = error
            rest = slice(column + 1, block.stop)
            left[:, rest] -= np.outer(error, factor[column, rest])
        left[:, block.stop :] -= errors @ factor[block, block.stop :]
    found: Array = codes[places]
    return found


def _inverse_factor(inputs: Array) -> Array:
    """The upper triangle U with Uᵀ · U = (Xᵀ · X + damping)⁻¹, in float64."""
    squares = inputs.T @ inputs
    diagonal = np.einsum("ii->i", squares)
    diagonal += DAMPING * diagonal.mean() or 1.0
    inverse = np.linalg.inv(squares)
    factor: Array = np.linalg.cholesky((inverse + inverse.T) / 2).T
    return factor
