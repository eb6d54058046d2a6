"""``quantized_spmm``: a sparse matrix of 8- or 4-bit codes and their scales times a dense one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparsegen.errors import OperandError
from sparsegen.matrix.chosen_columns import chosen_of
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.two_four import LEAST_DENSITY, is_two_four
from sparsegen.operators.base.checked_rows import some_columns
from sparsegen.operators.base.cost import Cost, matrix_bytes
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.epilogue import Epilogue
from sparsegen.operators.base.fields import batch_size, size, trait
from sparsegen.operators.base.layout import Layout
from sparsegen.operators.base.named_operands import NamedOperandsOperator, not_taken
from sparsegen.operators.base.problem import LoneRow, Problem
from sparsegen.operators.base.quantized import (
    QUANTIZED_OPERATOR,
    ScaleGroup,
    Symmetry,
    ValueType,
    scaled,
)
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.operators.quantized.quantized_matrix import Quantization
from sparsegen.operators.spmm import ProductProblem
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array


class QuantizedSparseOperator(NamedOperandsOperator):
    """C = epilogue(A · B) for one sparse A, whose nonzeros are codes times the scales of their groups."""

    problem: QuantizedSpmmProblem
    further = ("scales", "zero_points", "bias", "residual")

    def __call__(
        self,
        b: object,
        out: object = None,
        stream: object = None,
        scales: object = None,
        zero_points: object = None,
        bias: object = None,
        residual: object = None,
    ) -> Any:
        """Multiply; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            b: k × n (layout row) or n × k (layout column), contiguous, of the problem's dtype; C is m × n or n × m.
            scales: groups × m of b's kind; overrides those given to `prepare`.
            zero_points: likewise, for an asymmetric problem: whole numbers that are codes.
            bias: m values of b's kind, for an epilogue with a bias; overrides the one given to `prepare`.
            residual: array of C's shape and b's kind, for an epilogue with a residual; another array than ``out``.
        """
        return self._run(self._with_further(b, scales, zero_points, bias, residual), out, stream)

    def update_values(self, values: object) -> None:
        """Refuses new codes, which are packed; new scales come with each call.

        Raises:
            OperandError: always.
        """
        raise OperandError("codes are packed as they are: pass new scales= to the call, or prepare new codes")


@dataclass(frozen=True, slots=True)
class QuantizedSpmmProblem(ProductProblem):
    """C[m, n] = epilogue(A[m, k] · B[k, n]) with A sparse, A[i, j] = code[i, j] · scales[j / scale_group, i].

    The matrix's values are the codes. The scales are an operand: new ones pack nothing anew. Asymmetric codes have zero
    points too, as many as scales: A[i, j] = (code[i, j] − zero_points[j / scale_group, i]) · scales[j / scale_group, i]
    at the nonzeros, and zero elsewhere.

    Raises:
        ConfigError: a size out of range.
    """

    operator: ClassVar[str] = QUANTIZED_OPERATOR
    title: ClassVar[str] = "SpMM, quantised"
    summary: ClassVar[str] = "C = A · B, A of codes and scales"
    keeps: ClassVar[tuple[str, ...]] = ("scales", "zero_points", "bias")
    operator_type: ClassVar[type[QuantizedSparseOperator]] = QuantizedSparseOperator

    m: int = size("rows of A", flags=("--m",))
    k: int = size("columns of A", flags=("-k", "--k"))
    n: int = size("columns of B and C", usual=8)
    dtype: DType = trait(DType.FLOAT16, "element type of scales, B, C and what is added; sums are float32")
    layout: Layout = trait(Layout.COLUMN, "memory order of B and C")
    epilogue: Epilogue = trait(Epilogue.NONE, "what is done to the result before it is stored", near=True)
    batch: int = batch_size()
    value_type: ValueType = trait(ValueType.INT4, "how A's nonzeros are stored")
    scale_group: ScaleGroup = trait(ScaleGroup.OF_128, "columns of a row that share a scale")
    symmetry: Symmetry = trait(
        Symmetry.SYMMETRIC, "whether zero is the code of zero, or each scale has a zero point", unsaid=True
    )

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.scale_group.number(self.k)

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the matrix's features; whether it has 2:4 or V:N:M sparsity is found once for each pattern."""
        found = Features.of(matrix)
        is_dense_enough = found.density >= LEAST_DENSITY
        return replace(found, two_four=is_dense_enough and is_two_four(matrix), chosen_of=chosen_of(matrix))

    @property
    def matrix_operands(self) -> tuple[TensorSpec, ...]:
        """Scales, and zero points if there are any."""
        names = ("scales", "zero_points") if self.symmetry is Symmetry.ASYMMETRIC else ("scales",)
        return tuple(TensorSpec(name, (self.groups, self.m), self.dtype) for name in names)

    @property
    def rounding(self) -> Quantization:
        """Rounding that makes such codes of weights."""
        return Quantization(self.value_type, self.scale_group, self.symmetry is Symmetry.SYMMETRIC)

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """See `Problem.random_operands`; zero points are codes."""
        found = Problem.random_operands(self, rng, nnz)
        if "zero_points" in found:
            kind = self.value_type
            drawn = kind.rounded(rng.uniform(kind.smallest, kind.largest, (self.groups, self.m)))
            found["zero_points"] = self.dtype.to_storage(drawn)
        return found

    @property
    def values_held_as(self) -> DType | ValueType:
        return self.value_type

    def kept(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Scales, zero points and a bias, if they are given; see `Problem.kept`."""
        if "bias" in given and not self.epilogue.has_bias:
            raise not_taken(self, "bias")
        if "zero_points" in given and self.symmetry is Symmetry.SYMMETRIC:
            raise OperandError("zero_points= are for symmetry=asymmetric: say so, or leave them out")
        return dict(given)

    def cost(self, nnz: int) -> Cost:
        """A as CSR or bits and codes, scales, B, bias, residual and C once each."""
        dense = sum(spec.nbytes for spec in self.operands(nnz)) + self.result(nnz).nbytes
        matrix = matrix_bytes(self.m, self.k, nnz, 0) + ceil_div(nnz * self.value_type.bits, 8)
        return Cost(flop=2 * nnz * self.n * self.batch, bytes=matrix + dense)

    def weights(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> Array:
        zero_points = operands.get("zero_points")
        return scaled(matrix, operands["scales"], self.value_type, self.scale_group, zero_points)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        part = slice(matrix.row_offsets[row], matrix.row_offsets[row + 1])
        keys = matrix.column_indices[part]
        own = CsrMatrix((1, self.k), np.array([0, keys.size]), keys, matrix.values[part])
        columns = some_columns(self.n, rng)
        by_rows = self.layout is Layout.ROW
        given = {
            "b": operands["b"][:, columns] if by_rows else operands["b"][columns],
            **{spec.name: operands[spec.name][:, row : row + 1] for spec in self.matrix_operands},
        }
        alone = replace(self, m=1, n=columns.size)
        return self._lone(alone, own, given, operands, row, columns)


PROBLEMS = (QuantizedSpmmProblem,)
