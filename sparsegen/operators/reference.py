"""What a result must be, and how far from it rounding may take it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparsegen.operators.dtype import Array, DType


def error_bound(dtype: DType, exact: Array, magnitude: Array, terms: Array) -> Array:
    """How far a result of ``dtype`` with float32 sums may lie from the exact one, element by element.

    Args:
        exact: float64.
        magnitude: the same sums of absolute values.
        terms: products in each sum.
    """
    # Products, a sum of `terms` terms in any order, the bias: terms + 2 roundings at the most; the
    # typical error grows with the square root, so a bound of 4·√terms catches what γ_terms would not.
    growth = 4.0 * np.sqrt(terms + 2.0)
    bound: Array = DType.FLOAT32.unit_roundoff * growth * magnitude
    bound += 2.0 * dtype.unit_roundoff * np.abs(exact)
    bound += 2.0**-24 if dtype is DType.FLOAT16 else 2.0**-126
    return bound


@dataclass(frozen=True, slots=True)
class Reference:
    """What a result must be: ``exact`` (float64) within ``bound`` (float64), element by element."""

    exact: Array
    bound: Array
    dtype: DType

    def worst_error(self, stored: Array) -> float:
        """Largest error over its bound; at most 1 is right. NaN (an unwritten output) counts as infinite.

        Args:
            stored: the kernel's result in storage form, of the reference's shape.
        """
        if stored.size == 0:
            return 0.0
        actual = self.dtype.from_storage(stored).astype(np.float64)
        largest = float(np.finfo(np.float16).max) if self.dtype is DType.FLOAT16 else np.inf
        with np.errstate(invalid="ignore"):
            ratio = np.abs(actual - self.exact) / self.bound
            ratio[(np.abs(self.exact) > largest) & np.isinf(actual)] = 0.0
        worst = float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))
        return worst
