"""Weights as codes and scales, which `sparsegen.prepare`, `tune` and `lookup` take in place of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators.base.default_operator import DEFAULT_OPERATOR
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import member
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.quantized import QUANTIZED_OPERATOR, ScaleGroup, Symmetry, ValueType, scaled
from sparsegen.system.numpy_types import Array


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
