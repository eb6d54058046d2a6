"""``spmm``: a sparse matrix times a dense one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from sparsegen.errors import ConfigError
from sparsegen.matrix.column_sets import shared_fill
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators.base.checked_rows import row_alone, some_columns
from sparsegen.operators.base.cost import Cost, matrix_bytes
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.epilogue import Epilogue
from sparsegen.operators.base.fields import batch_size, element_type, size, trait
from sparsegen.operators.base.layout import Layout
from sparsegen.operators.base.named_operands import NamedOperandsOperator, not_taken
from sparsegen.operators.base.problem import LoneRow, Problem
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import WARP, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array
from sparsegen.system.threads import in_threads


class ItemValues(StrEnum):
    """The values of A in a batch, whose elements share its pattern."""

    SHARED = "shared"  # all batch elements have the same, as a weight
    OWN = "own"  # each batch element has its own, as the probabilities of an attention's heads


class ProductProblem(Problem):
    """C[m, n] = epilogue(A[m, k] · B[k, n]) with A sparse, however its values are stored."""

    __slots__ = ()

    matrix_sizes: ClassVar[tuple[str, str]] = ("m", "k")
    dense_sizes: ClassVar[tuple[str, ...]] = ("n",)
    multiplies_by_b: ClassVar[bool] = True
    reference_files: ClassVar[tuple[str, ...]] = ("reference.cu",)

    m: int
    k: int
    n: int
    layout: Layout
    epilogue: Epilogue

    @property
    def matrix_operands(self) -> tuple[TensorSpec, ...]:
        """Operands that say with the matrix what A is, such as scales."""
        return ()

    @abstractmethod
    def weights(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> Array:
        """The values of A's nonzeros, with the `matrix_operands` as real numbers, float32 [nnz]."""

    @property
    def heeds_values(self) -> bool:
        return True

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        shape = (self.k, self.n) if self.layout is Layout.ROW else (self.n, self.k)
        b = TensorSpec("b", self.of_batch(shape), self.dtype)
        return (b, *self.matrix_operands, *self.epilogue.operands(self.m, self.result(nnz)))

    def result(self, nnz: int) -> TensorSpec:
        shape = (self.m, self.n) if self.layout is Layout.ROW else (self.n, self.m)
        return TensorSpec("c", self.of_batch(shape), self.dtype)

    def terms(self, matrix: CsrMatrix) -> Array:
        lengths = np.diff(matrix.row_offsets)
        return lengths[:, None] if self.layout is Layout.ROW else lengths[None, :]

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.element_reference`.

        The magnitude of an element is |A|·|B| + |bias| + |residual|, its terms are the nonzeros of the row.
        """
        real = {spec.name: self.dtype.from_storage(operands[spec.name]) for spec in self.matrix_operands}
        a = _factor(matrix, self.weights(matrix, real).astype(np.float64))
        stored = self.dtype.from_storage(operands["b"]).astype(np.float64)
        b = stored if self.layout is Layout.ROW else stored.T
        exact, magnitude = np.empty((self.m, self.n)), np.empty((self.m, self.n))
        absolute = abs(a)
        if self.m == 1:
            b = b[matrix.column_indices]

        step = max(1, ceil_div(self.n, threads))

        def columns(start: int) -> None:
            mine = slice(start, start + step)
            part = np.ascontiguousarray(b[:, mine])
            exact[:, mine] = a @ part
            magnitude[:, mine] = absolute @ np.abs(part)

        in_threads(columns, range(0, self.n, step), threads)
        if self.epilogue.has_bias:
            bias = self.dtype.from_storage(operands["bias"]).astype(np.float64)[:, None]
            exact += bias
            magnitude += np.abs(bias)
        if self.epilogue.has_residual:
            stored = self.dtype.from_storage(operands["residual"]).astype(np.float64)
            residual = stored if self.layout is Layout.ROW else stored.T
            exact += residual
            magnitude += np.abs(residual)
        exact, magnitude = self.epilogue.activated(exact, magnitude)
        if self.layout is Layout.COLUMN:
            exact, magnitude = np.ascontiguousarray(exact.T), np.ascontiguousarray(magnitude.T)
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        b_steps, c_steps = (
            ((self.n, 1), (self.n, 1)) if self.layout is Layout.ROW else ((1, self.k), (1, self.m))
        )
        pattern = device.upload(matrix.row_offsets), device.upload(matrix.column_indices)
        values, b = device.upload(self.weights(matrix, operands)), device.upload(operands["b"])
        sizes, found, warps = (
            (self.m, self.n),
            (into.exact, into.magnitude),
            ceil_div(self.m * self.n, WARP),
        )
        device.run(
            "reference.cu:spmm_reference", warps, *sizes, *pattern, values, b, *b_steps, *c_steps, *found
        )
        self.epilogue.finish_on(device, into, sizes, c_steps, operands)

    def _lone(
        self,
        alone: Problem,
        own: CsrMatrix,
        given: dict[str, Array],
        operands: Mapping[str, Array],
        row: int,
        columns: Array,
    ) -> LoneRow:
        """A row of A and some columns of B as a problem of their own, with the epilogue's part of the operands."""
        by_rows = self.layout is Layout.ROW
        if self.epilogue.has_bias:
            given["bias"] = operands["bias"][row : row + 1]
        if self.epilogue.has_residual:
            at = ([row], columns) if by_rows else (columns, [row])
            given["residual"] = operands["residual"][np.ix_(*at)]
        return LoneRow(alone, own, given, row * self.n + columns if by_rows else columns * self.m + row)


class SparseOperator(NamedOperandsOperator):
    """C = epilogue(A · B) for one sparse A, which may be the transpose of the matrix that it was prepared with."""

    problem: SpmmProblem
    instead = "write it with sparsegen.save_operator, or prepare it again where it is needed"

    further = ("bias", "residual")

    def __call__(
        self,
        b: object,
        out: object = None,
        stream: object = None,
        bias: object = None,
        residual: object = None,
    ) -> Any:
        """Multiply; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            b: k × n (layout row) or n × k (layout column), contiguous, of the problem's dtype; C is m × n or n × m.
                With a batch both have one such matrix for each element, as have residuals.
            bias: m values of b's kind, for an epilogue with a bias; overrides the one given to `prepare`.
            residual: array of C's shape and b's kind, for an epilogue with a residual; another array than ``out``.
        """
        if self._takes_one and bias is residual is None:  # most calls, of which each step is felt
            return self._run((b,), out, stream)
        return self._run(self._with_further(b, bias, residual), out, stream)

    @property
    def bias(self) -> Array | None:
        """The bias that is kept for every call, m values in storage form."""
        return self.launcher.kept_operand("bias")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SpmmProblem(ProductProblem):
    """C[m, n] = epilogue(A[m, k] · B[k, n]) with A sparse.

    The elements of a batch have the same bias, but each its own residual.

    Raises:
        ConfigError: a size out of range; values of their own for a batch of 1.
    """

    operator: ClassVar[str] = "spmm"
    title: ClassVar[str] = "SpMM"
    summary: ClassVar[str] = "C = A · B"
    keeps: ClassVar[tuple[str, ...]] = ("bias",)
    is_transposable: ClassVar[bool] = True
    operator_type: ClassVar[type[SparseOperator]] = SparseOperator

    m: int = size("rows of A", flags=("--m",))
    k: int = size("columns of A", flags=("-k", "--k"))
    n: int = size("columns of B and C", usual=128)
    dtype: DType = element_type()
    layout: Layout = trait(Layout.ROW, "memory order of B and C")
    epilogue: Epilogue = trait(Epilogue.NONE, "what is done to the result before it is stored", near=True)
    batch: int = batch_size()
    item_values: ItemValues = trait(
        ItemValues.SHARED,
        "whether all elements of a batch have the matrix's values, or each its own",
        near=True,
        unsaid=True,
        of_batch=True,
    )

    def __post_init__(self) -> None:
        Problem.__post_init__(self)
        if self.item_values is ItemValues.OWN and self.batch == 1:
            raise ConfigError(
                f"item_values = {ItemValues.OWN} is for a batch of several elements; one has its values"
            )

    @property
    def value_sets(self) -> int:
        return self.batch if self.item_values is ItemValues.OWN else 1

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the matrix's features; with its shared columns where tensor cores may multiply 16 rows at a time."""
        found = Features.of(matrix)
        if self.dtype is DType.FLOAT32 or self.batch > 1 or self.layout is not Layout.ROW:
            return found
        given = matrix.row_offsets, matrix.column_indices
        return replace(found, shared_fill=matrix.known("shared_fill", lambda: shared_fill(*given)))

    def cost(self, nnz: int) -> Cost:
        """A as CSR or bits and values, B, bias, residual and C once each."""
        dense = sum(spec.nbytes for spec in self.operands(nnz)) + self.result(nnz).nbytes
        matrix = matrix_bytes(self.m, self.k, nnz, self.value_sets * self.dtype.itemsize)
        return Cost(flop=2 * nnz * self.n * self.batch, bytes=matrix + dense)

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """A bias of m values, if one is given; see `Problem.kept`."""
        if given and not self.epilogue.has_bias:
            raise not_taken(self, "bias")
        return dict(given)

    def in_words(self, density: float) -> str:
        if self.batch > 1:
            return Problem.in_words(self, density)
        return (
            f"{self.operator}: {self.m} × {self.k} ({density:.1%} dense) by {self.k} × {self.n}, {self.dtype}, "
            f"{self.layout}-major, epilogue {self.epilogue}"
        )

    @property
    def dense_product(self) -> tuple[int, int, int] | None:
        return (self.m, self.k, self.n) if self.batch == 1 else None

    def dense_result(self, torch: Any, matrix: Any, operands: Mapping[str, Any], out: Any) -> Any:
        """See `HasDense.dense_result`."""
        b, bias, residual = (operands.get(name) for name in ("b", "bias", "residual"))
        by_rows, epilogue = self.layout is Layout.ROW, self.epilogue
        left, right = (matrix, b) if by_rows else (b, matrix.t())
        if bias is None:
            return torch.matmul(left, right, out=out)
        # Tokens by rows, cuBLASLt adds a bias and takes ReLU in its own epilogue; its GELU is another, by tanh.
        if epilogue is Epilogue.BIAS_RELU and not by_rows:
            return torch._addmm_activation(bias, left, right, out=out)
        result = torch.addmm(bias[:, None] if by_rows else bias, left, right, out=out)
        if epilogue is Epilogue.BIAS_RELU:
            result.relu_()
        if epilogue is Epilogue.BIAS_GELU:
            torch.ops.aten.gelu_(result)
        if residual is not None:
            result += residual
        return result

    def weights(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> Array:
        return self.dtype.rounded(matrix.values)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        own, part = row_alone(matrix, row)
        columns = some_columns(self.n, rng)
        by_rows, keys = self.layout is Layout.ROW, matrix.column_indices[part]
        given = {"b": operands["b"][np.ix_(*((keys, columns) if by_rows else (columns, keys)))]}
        alone = replace(self, m=1, k=own.nnz, n=columns.size)
        return self._lone(alone, own, given, operands, row, columns)


def _factor(matrix: CsrMatrix, values: Array) -> Any:
    """Returns the left factor of the product; for a single row (`Problem.lone_row`), only its nonzeros, as a dense row.

    SciPy takes longer to import than a GPU takes to be ready.
    """
    return values[None, :] if matrix.shape[0] == 1 else matrix.with_values(values).to_scipy()


PROBLEMS = (SpmmProblem,)
