"""What a row's result must be, and how far from it a result may lie.

The bound is that of `sparsegen.operators.error_bound` with two allowances for others: TF32 cuts its factors to 11
bits, and libraries may round partial sums to a 16-bit result's type (cuBLAS does when it splits k).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegen.bench.case import Operator
from sparsegen.bench.parcel import Parcel
from sparsegen.bench.results import Arithmetic
from sparsegen.bench.task import Task
from sparsegen.kernels.base import Array
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Layout, error_bound
from sparsegen.operators.sddmm import sampled_product

CHUNK = 1 << 20  # elements compared at once, so that they stay in cache
THREADS = 4
TF32_CUT = 2.0**-10  # largest relative error of a float32 factor without its last 13 bits


@dataclass(frozen=True, slots=True)
class Expected:
    """A float64 result and what its bound needs.

    Attributes:
        exact: float64, in the result's stored shape.
        magnitude: float32, the same product of absolute values.
        terms: products in each element's sum, in a shape that fits an item's result by broadcasting.
        batch: items, along the first dimension of results where they are several.
    """

    exact: Array
    magnitude: Array
    terms: Array
    batch: int = 1

    def keep(self, parcel: Parcel) -> None:
        """Write it beside the row's operands."""
        parcel.keep("exact", self.exact)
        parcel.keep("magnitude", self.magnitude)

    @classmethod
    def of(cls, parcel: Parcel) -> Expected:
        """What `keep` wrote."""
        terms = cls.terms_of(parcel.task, parcel.row_offsets)
        return cls(parcel.operand("exact"), parcel.operand("magnitude"), terms, parcel.task.batch)

    @staticmethod
    def terms_of(task: Task, row_offsets: Array) -> Array:
        """The number of products in each element's sum, in a shape that fits that of an item's result."""
        if task.operator is Operator.SDDMM:
            return np.full(1, float(task.k))
        lengths = np.diff(row_offsets).astype(np.float64)
        return lengths[:, None] if task.layout is Layout.ROW else lengths[None, :]

    def worst_error(self, stored: Array, dtype: DType, *, arithmetic: Arithmetic, is_ours: bool) -> float:
        """The largest error over its bound; at most 1 is right. NaN counts as infinite.

        Args:
            stored: the result in the stored shape and dtype.
            arithmetic: what the contender's products are taken in.
            is_ours: without the allowance for rounded partial sums.
        """
        if stored.shape != self.exact.shape:
            return float("inf")
        if not stored.size:
            return 0.0
        if self.batch > 1:
            items = (Expected(e, m, self.terms) for e, m in zip(self.exact, self.magnitude, strict=True))
            return max(
                item.worst_error(own, dtype, arithmetic=arithmetic, is_ours=is_ours)
                for item, own in zip(items, stored, strict=True)
            )
        step = max(1, CHUNK // max(1, stored[0].size))

        def worst_of(start: int) -> float:
            part = slice(start, start + step)
            terms = self.terms[part] if self.terms.shape[0] == self.exact.shape[0] else self.terms
            return _worst(
                dtype.from_storage(stored[part]).astype(np.float64),
                np.asarray(self.exact[part]),
                np.asarray(self.magnitude[part], dtype=np.float64),
                terms,
                dtype,
                arithmetic=arithmetic,
                is_ours=is_ours,
            )

        with ThreadPoolExecutor(THREADS) as pool:
            return max(pool.map(worst_of, range(0, stored.shape[0], step)))


def _worst(
    actual: Array,
    exact: Array,
    magnitude: Array,
    terms: Array,
    dtype: DType,
    *,
    arithmetic: Arithmetic,
    is_ours: bool,
) -> float:
    bound = error_bound(dtype, exact, magnitude, terms)
    typical = 4.0 * magnitude / np.sqrt(terms + 2.0)  # four times what a sum of random signs comes to
    if arithmetic is Arithmetic.TF32:
        bound += TF32_CUT * (typical + 2.0 * np.abs(exact))
    if not is_ours and dtype is not DType.FLOAT32:
        bound += 2.0 * dtype.unit_roundoff * typical
    largest = float(np.finfo(np.float16).max) if dtype is DType.FLOAT16 else np.inf
    with np.errstate(invalid="ignore"):
        ratio = np.abs(actual - exact) / bound
    ratio[(np.abs(exact) > largest) & np.isinf(actual)] = 0.0
    return float(np.max(np.where(np.isnan(ratio), np.inf, ratio)))


def expected_on_host(parcel: Parcel) -> Expected:
    """A row's result in float64 with SciPy and NumPy."""
    task, matrix = parcel.task, parcel.matrix()
    operands = {name: np.asarray(parcel.operand(name)) for name in task.operand_shapes}
    found = [_expected_of(task.item, matrix, own) for _, own in task.problem.items(matrix, operands)]
    if task.batch == 1:
        return found[0]
    exact, magnitude = np.stack([e.exact for e in found]), np.stack([e.magnitude for e in found])
    return Expected(exact, magnitude, found[0].terms, task.batch)


def _expected_of(task: Task, matrix: CsrMatrix, operands: dict[str, Array]) -> Expected:
    """The result of one item."""
    dense = {name: task.dtype.from_storage(array).astype(np.float64) for name, array in operands.items()}
    terms = Expected.terms_of(task, matrix.row_offsets)
    if task.operator is Operator.SDDMM:
        exact, magnitude = sampled_product(matrix, dense["a"], dense["b"], threads=THREADS)
        return Expected(exact, magnitude.astype(np.float32), terms)
    a: Any = matrix.with_values(matrix.values.astype(np.float64)).to_scipy()
    b = dense["b"] if task.layout is Layout.ROW else dense["b"].T
    exact, magnitude = a @ b, (abs(a) @ np.abs(b)).astype(np.float32)
    if task.layout is Layout.COLUMN:
        exact, magnitude = np.ascontiguousarray(exact.T), np.ascontiguousarray(magnitude.T)
    return Expected(exact, magnitude, terms)
