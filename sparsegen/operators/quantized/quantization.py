"""Weights rounded to codes and scales, for ``quantized_spmm``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.matrix.formats import CsrMatrix, as_csr
from sparsegen.operators.base.default_operator import DEFAULT_OPERATOR
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import member
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.quantized import QUANTIZED_OPERATOR, ScaleGroup, Symmetry, ValueType, scaled
from sparsegen.operators.quantized.gptq import compensated, to_nearest
from sparsegen.system.numpy_types import Array


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedMatrix:
    """A sparse matrix whose nonzeros are codes times scales; `sparsegen.prepare`, `tune` and `lookup` take it.

    Attributes:
        codes: the codes as numbers, float32, on the matrix's pattern.
        scales: groups × rows, float32, each a number of ``dtype``.
        value_type: how codes are stored.
        group: which weights share a scale.
        dtype: element type of the scales, and of what the matrix is multiplied with.
        zero_points: groups × rows, float32, the codes that stand for zero; None where zero does.
    """

    codes: CsrMatrix
    scales: Array
    value_type: ValueType
    group: ScaleGroup
    dtype: DType
    zero_points: Array | None = None

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"<QuantizedMatrix: {rows} × {columns}, {self.codes.nnz} nonzeros, {self.value_type}, "
            f"scales{'' if self.zero_points is None else ' and zero points'} of {self.group} in {self.dtype}>"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.codes.shape

    def dequantized(self) -> CsrMatrix:
        """The matrix that it stands for, float32 (exact)."""
        return self.codes.with_values(
            scaled(self.codes, self.scales, self.value_type, self.group, self.zero_points)
        )

    @property
    def rounding(self) -> Quantization:
        """Rounding that made it."""
        return Quantization(self.value_type, self.group, self.zero_points is None)

    def rounding_error(self, matrix: CsrMatrix) -> float:
        """Norm of what rounding changed over the norm of the matrix that was rounded, in float64; 0 of nothing.

        Args:
            matrix: on the pattern of the codes.
        """
        given = matrix.values.astype(np.float64)
        norm = float(np.linalg.norm(given))
        return float(np.linalg.norm(self.dequantized().values - given)) / norm if norm else 0.0

    def arrays(self) -> dict[str, Array]:
        """The arrays of an ``.npz`` file, which `load_quantized` reads; SciPy finds the codes in it."""
        codes, narrow = self.codes, np.float16 if self.value_type is ValueType.E4M3 else np.int8
        return {
            "indices": codes.column_indices,
            "indptr": codes.row_offsets,
            "format": np.array(b"csr"),
            "shape": np.array(self.shape),
            "data": codes.values.astype(narrow),
            "scales": self.scales,
            "value_type": np.array(self.value_type.value),
            "group": np.array(self.group.value),
            "dtype": np.array(self.dtype.value),
        } | ({} if self.zero_points is None else {"zero_points": self.zero_points.astype(np.int8)})


@dataclass(frozen=True, slots=True)
class Quantization:
    """Rounding of weights: to which codes, and which of them share a scale.

    Attributes:
        value_type, group, symmetric: see `quantize`.
    """

    value_type: ValueType
    group: ScaleGroup = ScaleGroup.ROW
    symmetric: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError for zero points of floating-point codes."""
        if self.value_type is ValueType.E4M3 and not self.symmetric:
            raise ConfigError("zero points are for integers: e4m3 is symmetric")

    @property
    def symmetry(self) -> Symmetry:
        """The problems' trait."""
        return Symmetry.SYMMETRIC if self.symmetric else Symmetry.ASYMMETRIC

    @classmethod
    def parse(
        cls,
        value_type: ValueType | str | None,
        group: ScaleGroup | str | int | None = None,
        symmetric: bool = True,
    ) -> Quantization | None:
        """Parses what a caller says; None without a type of codes.

        Raises:
            ConfigError: an unknown word, or a group or zero points without a type of codes.
        """
        is_symmetric = arguments.flag(symmetric, "symmetric")
        by = ScaleGroup.ROW if group is None else member(ScaleGroup, str(group), "group")
        if value_type is None:
            if by is not ScaleGroup.ROW:
                raise ConfigError(f"group = {by} is for codes: give value_type= too, or leave it out")
            if not is_symmetric:
                raise ConfigError("symmetric = False is for codes: give value_type= too, or leave it out")
            return None
        return cls(member(ValueType, value_type, "value_type"), by, is_symmetric)

    def __str__(self) -> str:
        what = "a scale" if self.symmetric else "a scale and a zero point"
        return f"{self.value_type}, {what} " + (
            "a row" if self.group is ScaleGroup.ROW else f"for {self.group} columns"
        )

    def of(
        self, matrix: CsrMatrix, dtype: DType, calibration: npt.ArrayLike | None = None
    ) -> QuantizedMatrix:
        """Rounds a matrix; see `quantize`, whose errors these are."""
        return quantize(
            matrix,
            self.value_type,
            group=self.group,
            dtype=dtype,
            symmetric=self.symmetric,
            calibration=calibration,
        )


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
    np.maximum.at(high, (groups, rows), csr.values)
    np.minimum.at(low, (groups, rows), csr.values)
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


def opened(
    matrix: Any, problem: Problem | None, operator: str, options: Mapping[str, Any]
) -> tuple[Any, str, dict[str, Any]]:
    """A matrix, an operator and options as given; of a quantised matrix its codes, its operator and its fields.

    Raises:
        ConfigError: a field or problem that says otherwise, or another operator.
    """
    if not isinstance(matrix, QuantizedMatrix):
        return matrix, operator, dict(options)
    if operator not in (DEFAULT_OPERATOR, QUANTIZED_OPERATOR):
        raise ConfigError(f"a quantised matrix is for {QUANTIZED_OPERATOR}, not for {operator}")
    own = {
        "dtype": matrix.dtype,
        "value_type": matrix.value_type,
        "scale_group": matrix.group,
        "symmetry": matrix.rounding.symmetry,
    }
    said = options if problem is None else problem.traits
    given = {name: value for name, value in said.items() if value is not None}
    for name, value in own.items():
        if name in given and str(given[name]) != value:
            raise ConfigError(f"{name} = {given[name]}, but the quantised matrix has {value}")
    if problem is not None:
        return matrix.codes, operator, dict(options)
    return matrix.codes, QUANTIZED_OPERATOR, dict(options) | own
