"""Bounds on a result's error against its reference: for us, for vendors' libraries and for TF32."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from sparsegen.operators import DType, Reference, terms_stride
from sparsegen.operators.base.dtype import TF32_CUT
from sparsegen.system.numpy_types import Array

# Two factors, each the sum of two TF32 numbers, lose up to 12 units of roundoff of their product (three of 2^-22), and
# the bound of one product is 9 without this, 13.5 with it. Of long sums it is next to nothing.
SPLIT_LOSS = 2.0**-23
CHUNK = 1 << 20  # elements compared at once, so that they stay in cache


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """Allowed error of a result against the exact one, by linear factors on a `Reference`, element by element.

    4 · magnitude · (sums · √(terms + 2) + typical / √(terms + 2)) + exact · |exact| + smallest

    Products, a sum of ``terms`` terms in any order and the bias are at most terms + 2 roundings. The typical error
    grows with the square root, so that a bound of 4 · √ catches what γ of the terms would not (Higham, Accuracy and
    Stability of Numerical Algorithms, 3.1). 4 · magnitude / √ is four times what a sum of random signs comes to.

    Attributes:
        sums: relative error of each rounding in a sum.
        typical: relative error of what sums typically come to.
        exact: relative error of the result itself.
        smallest: absolute error, of numbers below the dtype's smallest.
    """

    sums: float
    typical: float
    exact: float
    smallest: float

    @classmethod
    def ours(cls, dtype: DType) -> ErrorBound:
        """Sums in float32, rounded to the dtype at the end; of float32 maybe from factors in two TF32 numbers."""
        return cls(
            sums=DType.FLOAT32.unit_roundoff,
            typical=SPLIT_LOSS if dtype is DType.FLOAT32 else 0.0,
            exact=2.0 * dtype.unit_roundoff,
            smallest=2.0**-24 if dtype is DType.FLOAT16 else 2.0**-126,
        )

    @classmethod
    def vendors(cls, dtype: DType) -> ErrorBound:
        """The same for libraries, which may round partial sums to a result's 16 bits (cuBLAS does when it splits k)."""
        if dtype is DType.FLOAT32:
            return cls.ours(dtype)
        return replace(cls.ours(dtype), typical=2.0 * dtype.unit_roundoff)

    @classmethod
    def tf32(cls) -> ErrorBound:
        """Products of float32 factors that are cut to 11 bits."""
        ours = cls.ours(DType.FLOAT32)
        return replace(ours, typical=TF32_CUT, exact=ours.exact + 2.0 * TF32_CUT)

    def of(self, exact: Array, magnitude: Array, terms: Array) -> Array:
        """The bound of each element, float64.

        Args:
            exact, magnitude, terms: see `Reference`; or some of the elements, with as many terms as these.
        """
        root = np.sqrt(terms + 2.0)
        bound: Array = (4.0 * (self.sums * root + self.typical / root)) * magnitude
        bound += self.exact * np.abs(exact)
        bound += self.smallest
        return bound


def worst_error(reference: Reference, stored: Array, bound: ErrorBound | None = None) -> float:
    """The largest error over its bound; at most 1 is right. NaN (an unwritten output) counts as infinite, unless
    the exact result is NaN: an output that shall be left as it was.

    Args:
        stored: the result in storage form; one of another shape than the reference's is infinitely wrong.
        bound: error bound; by default ours.
    """
    if stored.shape != reference.exact.shape:
        return float("inf")
    size = stored.size
    if size <= CHUNK:
        return float(_errors(reference, stored, bound, 0, size).max(initial=0.0))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        strips = pool.map(
            lambda start: _errors(reference, stored, bound, start, min(start + CHUNK, size)).max(),
            range(0, size, CHUNK),
        )
        return float(max(strips))


def explain(reference: Reference, stored: Array, name: str) -> str:
    """Describes a wrong result: the number of wrong values, and the worst one.

    Args:
        name: the result's name.
    """
    errors = _errors(reference, stored, None, 0, stored.size)
    worst = int(np.argmax(errors))
    wrong = int(np.count_nonzero(errors > 1.0))
    index = ", ".join(str(int(i)) for i in np.unravel_index(worst, stored.shape))
    actual = reference.dtype.from_storage(stored.reshape(-1)[worst : worst + 1])[0]
    exact = reference.exact.reshape(-1)[worst]
    allowed = _bounds(reference, None, worst, worst + 1)[0]
    return (
        f"{wrong} of {errors.size} values are wrong; the worst is {name}[{index}] = {actual:.6g}, "
        f"which should be {exact:.6g} ± {allowed:.2g}"
    )


def _bounds(reference: Reference, bound: ErrorBound | None, start: int, stop: int) -> Array:
    """Returns the bounds of elements start to stop, as stored."""
    stride = terms_stride(reference.exact.shape, reference.terms.shape)
    terms = reference.terms.reshape(-1)
    if terms.size > 1:
        terms = terms[np.arange(start, stop) // stride % terms.size]
    exact, magnitude = (a.reshape(-1)[start:stop] for a in (reference.exact, reference.magnitude))
    return (bound or ErrorBound.ours(reference.dtype)).of(exact, magnitude, terms)


def _errors(reference: Reference, stored: Array, bound: ErrorBound | None, start: int, stop: int) -> Array:
    """Errors over their bounds of elements start to stop, as stored."""
    if start == stop:
        return np.zeros(0)
    actual = reference.dtype.from_storage(stored.reshape(-1)[start:stop]).astype(np.float64)
    exact = reference.exact.reshape(-1)[start:stop]
    largest = float(np.finfo(np.float16).max) if reference.dtype is DType.FLOAT16 else np.inf
    with np.errstate(invalid="ignore"):
        errors: Array = np.abs(actual - exact) / _bounds(reference, bound, start, stop)
    errors[(np.abs(exact) > largest) & np.isinf(actual)] = 0.0
    errors[np.isnan(exact) & np.isnan(actual)] = 0.0  # left as it was
    errors[actual == exact] = 0.0  # infinities too
    errors[np.isnan(errors)] = np.inf
    return errors
