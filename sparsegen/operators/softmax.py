"""``sparse_softmax``: the softmax of each row over the nonzeros of a pattern; and its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.checked_rows import row_alone
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import SIGNIFICAND_BITS, DType
from sparsegen.operators.base.fields import batch_size, element_type, size
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import LoneRow, Problem
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.scale import kept_scale
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import PlainDevice
from sparsegen.system.numpy_types import Array

VECTOR_BYTES = 16  # the values are one long array that kernels read in vectors of up to this size


class SoftmaxOperator(Operator):
    """The softmax of each row of one pattern, over values in CSR order; a row without nonzeros gives nothing."""

    problem: SoftmaxProblem

    def __call__(self, values: object, out: object = None, stream: object = None) -> Any:
        """Normalise; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            values: nnz of them in CSR order (with a batch, batch × nnz), of the problem's dtype; ``out`` may be the
                same array.
        """
        return self._run((values, None), out, stream)


class SoftmaxBackwardOperator(Operator):
    """The gradient of a `SoftmaxOperator` with respect to its values, for the same pattern and scale."""

    problem: SoftmaxBackwardProblem

    def __call__(self, y: object, dy: object, out: object = None, stream: object = None) -> Any:
        """Differentiate; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            y, dy: the softmax's result, and the gradient with respect to it: nnz values each in CSR order (with a
                batch, batch × nnz), of the problem's dtype; ``out`` may be either array.
        """
        return self._run((y, dy, None), out, stream)


@dataclass(frozen=True, slots=True)
class _RowWise(Problem):
    """Base class of row-wise operators on the values of an m × n pattern."""

    matrix_sizes: ClassVar[tuple[str, str]] = ("m", "n")
    dense_sizes: ClassVar[tuple[str, ...]] = ()
    reference_files: ClassVar[tuple[str, ...]] = ("rows.cu",)
    keeps: ClassVar[tuple[str, ...]] = ("scale",)

    m: int = size("rows of the pattern", flags=("--m",))
    n: int = size("columns of the pattern")
    dtype: DType = element_type()
    batch: int = batch_size()

    def _values(self, name: str, nnz: int) -> TensorSpec:
        """A value for each nonzero."""
        return TensorSpec(name, self.of_batch((nnz,)), self.dtype, VECTOR_BYTES)

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The scale as an array; by default 1. See `Problem.kept`."""
        return kept_scale(given, 1.0)

    def _cost(self, flop_per_nonzero: int, nnz: int) -> Cost:
        dense = sum(spec.nbytes for spec in self.operands(nnz)) + self.result(nnz).nbytes
        offsets = 4 * (self.m + 1)  # the columns are not read
        return Cost(flop=flop_per_nonzero * nnz * self.batch, bytes=offsets + dense)

    def terms(self, matrix: CsrMatrix) -> Array:
        """The length of each nonzero's row."""
        lengths = np.diff(matrix.row_offsets)
        return np.repeat(lengths, lengths)

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        entry, offsets = f"rows.cu:{self.operator}", device.upload(matrix.row_offsets)
        given = (device.upload(operands[spec.name]) for spec in self.operands(matrix.nnz))
        device.run(entry, self.m, self.m, offsets, *given, into.exact, into.magnitude)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        own, part = row_alone(matrix, row)
        given = {name: array if name == "scale" else array[part] for name, array in operands.items()}
        return LoneRow(replace(self, m=1, n=own.nnz), own, given, np.arange(part.start, part.stop))


def _filled_rows(matrix: CsrMatrix) -> tuple[Array, Array]:
    """Starts and lengths of the rows with a nonzero: reduceat takes an empty row for its successor's first."""
    lengths = np.diff(matrix.row_offsets)
    return matrix.row_offsets[:-1][lengths > 0], lengths[lengths > 0]


@dataclass(frozen=True, slots=True)
class SoftmaxProblem(_RowWise):
    """Y = exp(s · X) over its sum in the same row, at the nonzeros of a pattern m × n; s is a number.

    X and Y have a value for each nonzero, in CSR order. A row without nonzeros gives nothing. The pattern's own values
    play no part. The scale s is an operand, one float32 for all batch elements, so that variants serve every scale.
    """

    operator: ClassVar[str] = "sparse_softmax"
    title: ClassVar[str] = "softmax"
    summary: ClassVar[str] = "the softmax of each row"
    operator_type: ClassVar[type[SoftmaxOperator]] = SoftmaxOperator

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            self._values("x", nnz),
            TensorSpec("scale", (1,), DType.FLOAT32),
        )

    def result(self, nnz: int) -> TensorSpec:
        return self._values("y", nnz)

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Normal scores far from zero, as many powers of two as leave their differences 7 significant bits."""
        made = _RowWise.random_operands(self, rng, nnz)
        offset = 2.0 ** (SIGNIFICAND_BITS[self.dtype] - 7) * rng.choice((-1, 1))
        made["x"] = self.dtype.to_storage(self.dtype.from_storage(made["x"]) + np.float32(offset))
        return made

    def cost(self, nnz: int) -> Cost:
        """A product, a maximum, a difference, an exponential, a sum and a quotient for each nonzero."""
        return self._cost(6, nnz)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference`.

        Rounding the difference of s · x from the row's largest changes an exponent by a few units of the last place
        of that difference, which changes a result by as large a part of it, and the row's sum by as large a part as
        the differences are in the mean; the sum of positive terms adds 4 · √terms. So errors do not grow with values
        that differ by little. The magnitude is such that 4 · √(terms + 2) of it makes that bound.
        """
        z = self.dtype.from_storage(operands["x"]).astype(np.float64) * float(operands["scale"][0])
        starts, lengths = _filled_rows(matrix)
        if not starts.size:
            return Reference(z, z, self.terms(matrix), self.dtype)

        def by_row(reduced: Array) -> Array:
            return np.repeat(reduced, lengths)

        below = by_row(np.maximum.reduceat(z, starts)) - z
        exponentials = np.exp(-below)
        exact = exponentials / by_row(np.add.reduceat(exponentials, starts))
        terms = self.terms(matrix)
        of_sum = by_row(np.add.reduceat(exact * below, starts))
        roundings = 16.0 + 16.0 * (below + of_sum) + 4.0 * np.sqrt(terms)
        return Reference(exact, exact * roundings / (4.0 * np.sqrt(terms + 2.0)), terms, self.dtype)


@dataclass(frozen=True, slots=True)
class SoftmaxBackwardProblem(_RowWise):
    """The gradient of `SoftmaxProblem`: dX = s · Y · (dY - the row's sum of Y · dY), at an m × n pattern.

    Y is what the softmax gave, dY the gradient with respect to it; all have a value for each nonzero, in CSR order. The
    pattern's own values play no part. The scale s is an operand, one float32 for all batch elements.
    """

    operator: ClassVar[str] = "sparse_softmax_backward"
    title: ClassVar[str] = "softmax gradient"
    summary: ClassVar[str] = "the gradient of that softmax"
    operator_type: ClassVar[type[SoftmaxBackwardOperator]] = SoftmaxBackwardOperator

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            self._values("y", nnz),
            self._values("dy", nnz),
            TensorSpec("scale", (1,), DType.FLOAT32),
        )

    def result(self, nnz: int) -> TensorSpec:
        return self._values("dx", nnz)

    def cost(self, nnz: int) -> Cost:
        """A product and a sum for each nonzero of the row's sum; a difference and two products for its result."""
        return self._cost(5, nnz)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference`; a difference from a sum over the row, times s · Y."""
        y, dy = (self.dtype.from_storage(operands[name]).astype(np.float64) for name in ("y", "dy"))
        starts, lengths = _filled_rows(matrix)
        if not starts.size:
            return Reference(y, y, self.terms(matrix), self.dtype)

        def row_sums(values: Array) -> Array:
            return np.repeat(np.add.reduceat(values, starts), lengths)

        factor = float(operands["scale"][0]) * y
        exact = factor * (dy - row_sums(y * dy))
        magnitude = np.abs(factor) * (np.abs(dy) + row_sums(np.abs(y * dy)))
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)

    def terms(self, matrix: CsrMatrix) -> Array:
        """The length of each nonzero's row, the difference and the product."""
        return _RowWise.terms(self, matrix) + 2


PROBLEMS = (SoftmaxProblem, SoftmaxBackwardProblem)
