"""``dense_sparse_add``: a sparse matrix, scaled, added to a dense one or taken from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.cost import Cost, matrix_bytes
from sparsegen.operators.base.dtype import Array, DType
from sparsegen.operators.base.fields import batch_size, element_type, size, trait
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.reference import Reference
from sparsegen.operators.base.tensor_spec import TensorSpec


class Sign(StrEnum):
    """The sign of B in A ± B."""

    PLUS = "plus"
    MINUS = "minus"


class DenseSparseAddOperator(Operator):
    """C = B ± alpha · A for one sparse A."""

    problem: DenseSparseAddProblem

    def __call__(self, b: Any, out: Any = None, stream: Any = None) -> Any:
        """Add; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            b: m × k, contiguous, of the problem's dtype.
        """
        return self._run((b, None), out, stream)


@dataclass(frozen=True, slots=True)
class DenseSparseAddProblem(Problem):
    """C[m, k] = B[m, k] ± alpha · A[m, k] with A sparse; alpha is an operand, one float32."""

    operator: ClassVar[str] = "dense_sparse_add"
    title: ClassVar[str] = "dense plus sparse"
    summary: ClassVar[str] = "C = B ± alpha · A"
    matrix_sizes: ClassVar[tuple[str, str]] = ("m", "k")
    dense_sizes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ("alpha",)
    operator_type: ClassVar[type[DenseSparseAddOperator]] = DenseSparseAddOperator

    m: int = size("rows of A", flags=("--m",))
    k: int = size("columns of A", flags=("-k", "--k"))
    dtype: DType = element_type()
    sign: Sign = trait(Sign.PLUS, "whether A is added to B or taken from it", near=True)
    batch: int = batch_size()

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("b", self.of_batch((self.m, self.k)), self.dtype),
            TensorSpec("alpha", (1,), DType.FLOAT32),
        )

    def result(self, nnz: int) -> TensorSpec:
        return TensorSpec("c", self.of_batch((self.m, self.k)), self.dtype)

    def kept(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"alpha": np.array([given.get("alpha", 1.0)], dtype=np.float32)}

    def cost(self, nnz: int) -> Cost:
        """A product and a sum for each nonzero; A, B and C once each."""
        dense = sum(spec.nbytes for spec in self.operands(nnz)) + self.result(nnz).nbytes
        return Cost(2 * nnz * self.batch, matrix_bytes(self.m, self.k, nnz, self.dtype.itemsize) + dense)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        values = self.dtype.from_storage(self.dtype.to_storage(matrix.values)).astype(np.float64)
        scale = float(operands["alpha"][0]) * (1 if self.sign is Sign.PLUS else -1)
        a = matrix.with_values(values).to_scipy().toarray()
        b = self.dtype.from_storage(operands["b"]).astype(np.float64)
        exact, magnitude = b + scale * a, np.abs(b) + np.abs(scale * a)
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)

    def terms(self, matrix: CsrMatrix) -> Array:
        """A product and an element of B."""
        return np.full(1, 2)


PROBLEMS = (DenseSparseAddProblem,)
