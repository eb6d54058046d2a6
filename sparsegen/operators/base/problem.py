"""The problem: sizes, traits, operands, a result, a reference and a cost."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast, runtime_checkable

import numpy as np

from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import DType, WordType
from sparsegen.operators.base.float8 import Float8
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem_fields import ProblemFields
from sparsegen.operators.base.quantized import ValueType
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import PlainDevice
from sparsegen.system.numpy_types import Array


class LoneRow(NamedTuple):
    """One row of a problem as a problem of its own: what a sample of a device's results is computed again from.

    Attributes:
        places: places of its results among those of the whole problem, as stored.
    """

    problem: Problem
    matrix: CsrMatrix
    operands: dict[str, Array]
    places: Array


class Problem(ProblemFields):
    """One instance of an operator. Subclasses are frozen dataclasses of integers (sizes), `StrEnum`s (traits) and
    `Parameter`s, each declared with `size`, `trait` or `parameter`. What they are given becomes that: no NumPy integer
    gets in.

    A problem does not know the sparsity pattern, only its shape: what depends on the nonzeros takes their number.
    Where the sparsity comes with every call (`has_pattern` is false), it is an operand; then the matrix that every
    method takes is `without_pattern`, which has the shape alone.

    A batch is several such problems with one pattern, computed by one launch. Their operands and results are stored one
    after another, in a leading dimension of ``batch``; a batch of 1 has no such dimension.

    Attributes:
        operator: its name.
        title: its name as people read it.
        summary: its computation, in a formula or a few words.
        matrix_sizes: the names of the sizes that are the sparse matrix's rows and columns; each may be 0.
        dense_sizes: the names of the other sizes of a batch element; each is at least 1.
        keeps: the names of the operands that `sparsegen.prepare` takes too, for every call that does not bring its own.
        is_transposable: true if the matrix's transpose may take its place.
        has_pattern: true if there is a sparse matrix before the first call; else the sparsity is an operand.
        multiplies_by_b: true if it is a product with one dense matrix B, whose memory order listings tell.
        operator_type: the class of the operator objects that users call.
        reference_files: files of the plain kernels that `reference_on` runs; empty if it has none.
        magnitude_rounding: relative error of a reference's magnitudes on a device.
        batch: number of batch elements.

    Raises:
        ConfigError: a size is no whole number or out of range, or a trait has no such value.
    """

    __slots__ = ()

    title: ClassVar[str]
    summary: ClassVar[str]
    keeps: ClassVar[tuple[str, ...]] = ()
    is_transposable: ClassVar[bool] = False
    multiplies_by_b: ClassVar[bool] = False
    operator_type: ClassVar[type[Operator]]
    reference_files: ClassVar[tuple[str, ...]] = ()
    magnitude_rounding: ClassVar[float] = 1e-4  # of float32

    # --- its sparsity ---

    @property
    def without_pattern(self) -> CsrMatrix:
        """A matrix of the right shape without nonzeros, for operators whose sparsity is known only at the call."""
        return CsrMatrix.without_nonzeros(self.matrix_shape)

    @property
    def features_shape(self) -> tuple[int, int]:
        """Rows and columns of what `features` describes: of the sparse matrix, or of what a mask lies over."""
        return self.matrix_shape

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the features of the sparsity, which dispatch sees; their shape is `features_shape`."""
        return Features.of(matrix)

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """Returns the name of the sparsity in databases, SHA-256 in hexadecimal digits; equal ones have equal
        `features`.
        """
        return matrix.fingerprint()

    # --- the dense way ---

    @property
    def dense_product(self) -> tuple[int, int, int] | None:
        """Rows, contraction and columns of the dense product that may run instead; None without one."""
        return None

    @property
    def dense_over_product(self) -> float:
        """Time of what may run instead over a plain product of those sizes, where it is no plain product."""
        return 1.0

    @property
    def zeroing_bytes(self) -> float:
        """Bytes moved by the launch beside the dense product that makes dead blocks zeros; 0 where there is none."""
        return 0.0

    # --- its batch ---

    @property
    def alone(self) -> Self:
        """The problem of one batch element, as if it were alone."""
        defaults = {name: field.default for name, field in self.fields.items() if field.of_batch}
        alone: Self = replace(cast(Any, self), **defaults)
        return alone

    @property
    def heeds_values(self) -> bool:
        """True if the result depends on the matrix's values, not on its pattern alone."""
        return False

    @property
    def values_held_as(self) -> DType | ValueType:
        """The type that the matrix's values are rounded to."""
        return self.dtype

    @property
    def value_sets(self) -> int:
        """Number of sets of the matrix's values: `batch` if each batch element has its own, else 1."""
        return 1

    def own_values(self, nnz: int) -> TensorSpec | None:
        """The values of all batch elements' matrices, batch × nnz in CSR order, where each has its own; else None."""
        if self.value_sets == 1:
            return None
        return TensorSpec("values", (self.batch, nnz), self.dtype)

    def of_batch(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of as many arrays as there are batch elements, each of this shape."""
        return shape if self.batch == 1 else (self.batch, *shape)

    def batch_elements(
        self, matrix: CsrMatrix, operands: Mapping[str, Array]
    ) -> Iterator[tuple[CsrMatrix, dict[str, Array]]]:
        """The matrix and the operands of each batch element.

        Args:
            operands: operands of all batch elements, in storage form or as real numbers; with ``values`` if each
                element has its own.
        """
        if self.batch == 1:
            yield matrix, dict(operands)
            return
        mine, whole = self.alone.operands(matrix.nnz), self.operands(matrix.nnz)
        is_shared = {one.name: one.shape == all_of.shape for one, all_of in zip(mine, whole, strict=True)}
        for i in range(self.batch):
            own = {
                name: operands[name] if shared else operands[name][i] for name, shared in is_shared.items()
            }
            if self.value_sets == 1:
                yield matrix, own
            else:
                yield (
                    matrix.with_values(self.dtype.from_storage(operands["values"][i]).astype(np.float32)),
                    own,
                )

    # --- what it computes ---

    @abstractmethod
    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        """The dense inputs in call order, shapes as stored, for a pattern of nnz nonzeros."""

    @abstractmethod
    def result(self, nnz: int) -> TensorSpec:
        """The output for a pattern of nnz nonzeros."""

    @abstractmethod
    def cost(self, nnz: int) -> Cost:
        """Useful FLOP and the fewest bytes, for a pattern of nnz nonzeros."""

    @property
    def multiplied(self) -> DType | Float8:
        """The type of the numbers that are multiplied, by which the device's rate of products goes."""
        return self.dtype

    def computed_share(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> float:
        """Fraction of the FLOP of `cost` that these operands need: 1, unless inputs die or masks have another number of
        live blocks than expected.
        """
        return 1.0

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The operands for every call that does not bring its own: what `sparsegen.prepare` was given, and defaults.

        Args:
            given: arrays of any library, or what else stands for the operand; by the names in `keeps`.

        Raises:
            OperandError: this problem has no such operand.
        """
        return dict(given)

    def to_check(self) -> Self:
        """Returns the problem to verify a variant on at its first use: this one, or one of fewer independent batch
        elements.
        """
        return self

    def in_words(self, density: float) -> str:
        """The problem on a matrix of this density, for people."""
        return f"{self}, {density:.1%} dense"

    def reference(self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1) -> Reference:
        """The result in float64, and what bounds on its error are made of, in the result's stored shape.

        Args:
            operands: operands in storage form, by name; with `own_values` if each batch element has its own.
            threads: number of the host's threads to use.
        """
        if self.batch == 1:
            return self.element_reference(matrix, operands, threads=threads)
        one, parts = self.alone, self.batch_elements(matrix, operands)
        found = [one.element_reference(own, given, threads=threads) for own, given in parts]
        exact, magnitude = np.stack([r.exact for r in found]), np.stack([r.magnitude for r in found])
        return Reference(exact, magnitude, self.terms(matrix), found[0].dtype)

    @abstractmethod
    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """`reference` for a batch of 1."""

    def written_references(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> dict[str, Reference]:
        """Returns the references of operands that a call writes beside the result (`TensorSpec.is_written`), by name.

        Args:
            operands: see `reference`; those that are written may hold anything.
            threads: number of the host's threads to use.
        """
        return {}

    @abstractmethod
    def terms(self, matrix: CsrMatrix) -> Array:
        """`Reference.terms`, which the elements of a batch share."""

    def reference_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice
    ) -> DeviceReference | None:
        """`reference`, computed by plain kernels on a device, whose work need not have ended.

        None where the operator has none: the host computes then.

        Args:
            operands: see `reference`.
        """
        if not self.reference_files:
            return None
        written = self.result(matrix.nnz)
        count = written.nbytes // written.dtype.itemsize
        assert isinstance(written.dtype, DType), "a result is of numbers"
        found = DeviceReference(
            device.filled(8 * count), device.filled(4 * count), self.terms(matrix), written.dtype
        )
        each, kinds = count // self.batch, {spec.name: spec.dtype for spec in self.operands(matrix.nnz)}
        alone = self.alone
        for i, (own, given) in enumerate(self.batch_elements(matrix, operands) if count else ()):
            real = {
                name: a
                if isinstance(kind := kinds[name], WordType)
                else kind.from_storage(a).astype(np.float32, copy=False)
                for name, a in given.items()
            }
            alone.fill_on(own, real, device, found.part(i * each, each))
        return found

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        """Has a device's kernels compute the reference of a batch of 1.

        Operators with `reference_files` have it.

        Args:
            operands: numbers as float32, words as they are stored.
        """
        raise NotImplementedError(f"{self.operator} has no reference on a device")

    def checkable_rows(self, matrix: CsrMatrix) -> Array:
        """The rows that `lone_row` takes."""
        return np.flatnonzero(np.diff(matrix.row_offsets))

    def lone_row(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], row: int, rng: np.random.Generator
    ) -> LoneRow:
        """One of the `checkable_rows` of a batch of 1 for the host to compute again; of a long row some results.

        Operators with `reference_files` have it.

        Args:
            operands: operands in storage form.
        """
        raise NotImplementedError(f"{self.operator} has no reference on a device to check")

    def lone_rows(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], rows: Sequence[int], rng: np.random.Generator
    ) -> Iterator[LoneRow]:
        """Several of them, each alone unless they cost less together; see `lone_row`."""
        for row in rows:
            yield self.lone_row(matrix, operands, row, rng)

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Fresh normal inputs, rounded to their dtypes, in storage form; with `own_values` where there are any."""
        own = self.own_values(nnz)
        specs = (*self.operands(nnz), *(() if own is None else (own,)))
        return {spec.name: self.random_operand(spec, rng) for spec in specs}

    def random_operand(self, spec: TensorSpec, rng: np.random.Generator) -> Array:
        """One input of `random_operands`."""
        return normal_numbers(rng, spec)


@runtime_checkable
class HasDense(Protocol):
    """A problem whose batch elements a dense product can compute too, so that it may run instead."""

    def dense_result(self, torch: Any, sparse: Any, operands: Mapping[str, Any], out: Any, /) -> Any:
        """The result for one item, by PyTorch.

        Args:
            torch: PyTorch.
            sparse: the sparse matrix as a full tensor; of masks that come with the call what keeps their live blocks.
            operands: tensors by name, of the problem's dtype.
            out: tensor for the result; None for a new one.
        """
