"""Weights rounded to codes and scales, for ``quantized_spmm``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.errors import ConfigError
from sparsegen.matrix.formats import CsrMatrix, as_csr
from sparsegen.operators.base.default_operator import DEFAULT_OPERATOR
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import member
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.quantized import QUANTIZED_OPERATOR, ScaleGroup, ValueType, scaled
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
    """

    codes: CsrMatrix
    scales: Array
    value_type: ValueType
    group: ScaleGroup
    dtype: DType

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"<QuantizedMatrix: {rows} × {columns}, {self.codes.nnz} nonzeros, {self.value_type}, "
            f"scales of {self.group} in {self.dtype}>"
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.codes.shape

    def dequantized(self) -> CsrMatrix:
        """The matrix that it stands for, float32 (exact)."""
        return self.codes.with_values(scaled(self.codes, self.scales, self.value_type, self.group))

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
        }


def quantize(
    matrix: Any,
    value_type: ValueType | str,
    *,
    group: ScaleGroup | str | int = "row",
    dtype: DType | str = "float16",
) -> QuantizedMatrix:
    """Round a matrix's nonzeros to nearest: each group's largest becomes the largest code. Its pattern stays.

    Args:
        matrix: a `CsrMatrix`, or anything that `as_csr` takes.
        value_type: ``"e4m3"``, ``"int8"`` or ``"int4"``.
        group: columns of a row that share a scale, 32, 64 or 128; ``"row"``: all.
        dtype: element type of scales and activations, ``"float16"`` or ``"bfloat16"``.

    Raises:
        MatrixError: the matrix is malformed, or not finite.
        ConfigError: an unknown word.
    """
    kind = member(ValueType, value_type, "value_type")
    by = member(ScaleGroup, str(group), "group")
    element = member(DType, dtype, "dtype")
    if element.itemsize != 2:
        raise ConfigError(f"dtype = {element}: scales are float16 or bfloat16")
    csr = as_csr(matrix)
    m, k = csr.shape
    rows = np.repeat(np.arange(m), np.diff(csr.row_offsets))
    place = csr.column_indices // by.size(k) * np.int64(m) + rows
    largest = np.zeros(by.number(k) * m, dtype=np.float64)
    np.maximum.at(largest, place, np.abs(csr.values))
    # Rounded up where it would be zero beside weights that are not.
    least = float(element.from_storage(np.ones(1, np.uint16).view(element.storage))[0])
    wanted = np.where(largest > 0, np.maximum(largest / kind.largest, least), 0)
    given = element.rounded(wanted)
    if not np.isfinite(given).all():
        raise ConfigError(
            f"a scale of {wanted.max():.3g} is infinite in {element}: scale the matrix, or take bfloat16"
        )
    ratio = csr.values.astype(np.float64) / np.where(given > 0, given, 1)[place]
    codes = kind.rounded(np.clip(ratio, -kind.largest, kind.largest))
    return QuantizedMatrix(csr.with_values(codes), given.reshape(by.number(k), m), kind, by, element)


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
    own = {"dtype": matrix.dtype, "value_type": matrix.value_type, "scale_group": matrix.group}
    said = options if problem is None else problem.traits
    given = {name: value for name, value in said.items() if value is not None}
    for name, value in own.items():
        if name in given and str(given[name]) != value:
            raise ConfigError(f"{name} = {given[name]}, but the quantised matrix has {value}")
    if problem is not None:
        return matrix.codes, operator, dict(options)
    return matrix.codes, QUANTIZED_OPERATOR, dict(options) | own
