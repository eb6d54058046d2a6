"""Finite numbers that an element type holds as infinities: refused, or counted where that was asked for."""

from __future__ import annotations

import logging

import numpy as np

from sparsegen.errors import MatrixError, OperandError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.float8 import Float8
from sparsegen.operators.base.problem import Problem
from sparsegen.system.numpy_types import Array

log = logging.getLogger(__name__)


def require_held(problem: Problem, matrix: CsrMatrix, *, allow_overflow: bool) -> None:
    """Check a matrix's values where the problem's result depends on them.

    Raises:
        MatrixError: finite values that become infinite, and ``allow_overflow`` is not set; else a warning counts them.
    """
    if not problem.heeds_values:
        return
    message = _lost(matrix.values, problem.dtype)
    if message and not allow_overflow:
        raise MatrixError(
            f"{message}; scale the matrix, take another dtype, or allow it (--allow-overflow, allow_overflow=)"
        )
    if message:
        log.warning("%s", message)


def require_values(values: Array, dtype: DType | Float8, name: str) -> None:
    """Check the values of an operand that is converted.

    Raises:
        OperandError: finite values that become infinite.
    """
    if message := _lost(values, dtype):
        raise OperandError(f"{name}: {message}; scale them, or clip them first")


def _lost(values: Array, dtype: DType | Float8) -> str:
    lost = dtype.overflows(values)
    if not lost:
        return ""
    largest = float(np.abs(values[np.isfinite(values)]).max())
    return f"{lost} of {values.size} finite values become infinite in {dtype} (the largest is {largest:.4g})"
