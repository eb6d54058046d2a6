"""New values for a prepared operator: one for each nonzero, of the pattern that was prepared."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.matrix.formats import CsrMatrix


def new_values(given: Any, shape: tuple[int, ...], pattern: str | None) -> Any:
    """The values alone.

    Args:
        given: an array, or a `CsrMatrix`.
        shape: shape that the values must have.
        pattern: the fingerprint that a matrix must have; None where it is not known, as of operators in files that an
            older sparsegen wrote.

    Raises:
        OperandError: they are of another shape, or a matrix of another pattern.
    """
    if isinstance(given, CsrMatrix):
        if pattern is not None and given.fingerprint() != pattern:
            raise OperandError(
                "values: the matrix has another pattern of nonzeros than the one that was prepared: prepare it as well"
            )
        given = given.values
    if tuple(np.shape(given)) != shape:
        raise OperandError(f"values: expected shape {shape}, got {tuple(np.shape(given))}")
    return given
