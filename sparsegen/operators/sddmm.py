"""``sddmm``: a dense product sampled at a sparsity pattern (Gale et al., SC 2020, section VI)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators.base.checked_rows import row_alone
from sparsegen.operators.base.cost import Cost, matrix_bytes
from sparsegen.operators.base.dtype import DType
from sparsegen.operators.base.fields import batch_size, element_type, size, trait
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import LoneRow, Problem
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import WARP, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array
from sparsegen.system.threads import in_threads

CHECKED_NONZEROS = 64  # nonzeros of a row that are computed again
CHUNK = 1 << 20  # elements of a float64 intermediate, so that it stays in cache
SPARSE = 16  # with fewer than one nonzero in this many places, rows are gathered rather than multiplied whole


class SddmmEpilogue(StrEnum):
    """The operation on D before it is stored."""

    NONE = "none"
    SCALE = "scale"  # each element times the pattern's own value there


class SddmmOperator(Operator):
    """D = epilogue((A · Bᵀ) at the nonzeros of one pattern); D has a value for each nonzero, in CSR order."""

    problem: SddmmProblem

    def __call__(self, a: object, b: object, out: object = None, stream: object = None) -> Any:
        """Multiply and sample; see `Operator` for ``out``, ``stream``, the result and the errors.

        Args:
            a, b: m × k and n × k, contiguous, of the problem's dtype; D has nnz values. With a batch all three have a
                leading batch dimension.
        """
        return self._run((a, b), out, stream)


@dataclass(frozen=True, slots=True)
class SddmmProblem(Problem):
    """D = epilogue((A · Bᵀ) at the nonzeros of a pattern m × n), with A m × k and B n × k, both row-major.

    D has a value for each nonzero, in CSR order. Without `SddmmEpilogue.SCALE` the values of the pattern play no part;
    with it all elements of a batch are scaled by the same.
    """

    operator: ClassVar[str] = "sddmm"
    title: ClassVar[str] = "SDDMM"
    summary: ClassVar[str] = "A · Bᵀ at the matrix's nonzeros"
    matrix_sizes: ClassVar[tuple[str, str]] = ("m", "n")
    dense_sizes: ClassVar[tuple[str, ...]] = ("k",)
    multiplies_by_b: ClassVar[bool] = True
    operator_type: ClassVar[type[SddmmOperator]] = SddmmOperator
    reference_files: ClassVar[tuple[str, ...]] = ("reference.cu",)

    m: int = size("rows of A and of the pattern", flags=("--m",))
    n: int = size("rows of B, columns of the pattern")
    k: int = size("columns of A and B", usual=128, flags=("-k", "--k"))
    dtype: DType = element_type()
    epilogue: SddmmEpilogue = trait(
        SddmmEpilogue.NONE, "what is done to the result before it is stored", near=True
    )
    batch: int = batch_size()

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("a", self.of_batch((self.m, self.k)), self.dtype),
            TensorSpec("b", self.of_batch((self.n, self.k)), self.dtype),
        )

    def result(self, nnz: int) -> TensorSpec:
        return TensorSpec("d", self.of_batch((nnz,)), self.dtype, self.dtype.itemsize)

    @property
    def heeds_values(self) -> bool:
        return self.epilogue is SddmmEpilogue.SCALE

    def cost(self, nnz: int) -> Cost:
        """The pattern as CSR or bits (and its values where they scale), A, B and D once each."""
        scales = self.epilogue is SddmmEpilogue.SCALE
        pattern = matrix_bytes(self.m, self.n, nnz, self.dtype.itemsize if scales else 0)
        dense = sum(spec.nbytes for spec in self.operands(nnz)) + self.result(nnz).nbytes
        return Cost(flop=2 * nnz * self.k * self.batch, bytes=pattern + dense)

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference`; elements are dot products of k terms."""
        a, b = (self.dtype.from_storage(operands[name]).astype(np.float64) for name in ("a", "b"))
        exact, magnitude = sampled_product(matrix, a, b, threads=threads)
        if self.epilogue is SddmmEpilogue.SCALE:
            values = self.dtype.rounded(matrix.values).astype(np.float64)
            exact *= values
            magnitude *= np.abs(values)
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)

    def terms(self, matrix: CsrMatrix) -> Array:
        return np.full(1, self.k)

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        rows = device.upload(np.repeat(np.arange(self.m, dtype=np.int32), np.diff(matrix.row_offsets)))
        columns = device.upload(matrix.column_indices)
        a, b = device.upload(operands["a"]), device.upload(operands["b"])
        found, warps = (into.exact, into.magnitude), ceil_div(matrix.nnz, WARP)
        device.run("reference.cu:sddmm_reference", warps, matrix.nnz, self.k, rows, columns, a, b, *found)
        if self.epilogue is SddmmEpilogue.SCALE:
            values = device.upload(self.dtype.rounded(matrix.values))
            device.run("reference.cu:sddmm_scale", warps, matrix.nnz, values, *found)

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        own, part = row_alone(matrix, row, CHECKED_NONZEROS)
        given = {"a": operands["a"][row : row + 1], "b": operands["b"][matrix.column_indices[part]]}
        return LoneRow(replace(self, m=1, n=own.nnz), own, given, np.arange(part.start, part.stop))


def sampled_product(pattern: CsrMatrix, a: Array, b: Array, *, threads: int = 1) -> tuple[Array, Array]:
    """A · Bᵀ and |A| · |B|ᵀ at the pattern's nonzeros.

    Args:
        a, b: float64, m × k and n × k.

    Returns:
        Two float64 arrays of nnz values in CSR order.
    """
    m, n = pattern.shape
    offsets, columns = pattern.row_offsets, pattern.column_indices
    rows = np.repeat(np.arange(m), np.diff(offsets))
    exact, magnitude = np.empty(pattern.nnz), np.empty(pattern.nnz)

    def gather(span: tuple[int, int]) -> None:
        part = slice(*span)
        left, right = a[rows[part]], b[columns[part]]
        exact[part] = np.einsum("ij,ij->i", left, right)
        magnitude[part] = np.einsum("ij,ij->i", np.abs(left), np.abs(right))

    def multiply(span: tuple[int, int]) -> None:
        start, stop = span
        part = slice(offsets[start], offsets[stop])
        at = (rows[part] - start, columns[part])
        exact[part] = (a[start:stop] @ b.T)[at]
        magnitude[part] = (np.abs(a[start:stop]) @ np.abs(b.T))[at]

    def spans(length: int, step: int) -> Iterator[tuple[int, int]]:
        return ((start, min(start + step, length)) for start in range(0, length, step))

    if pattern.nnz * SPARSE < m * n:
        in_threads(gather, spans(pattern.nnz, max(1, CHUNK // max(1, a.shape[1]))), threads)
    else:
        in_threads(multiply, spans(m, max(1, CHUNK // max(1, n))), threads)
    return exact, magnitude


PROBLEMS = (SddmmProblem,)
