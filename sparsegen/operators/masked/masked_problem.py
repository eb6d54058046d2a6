"""Products with block masks: the mask is an operand, drawn anew for every call, and there is no pattern."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from sparsegen import arguments
from sparsegen.errors import ConfigError, MatrixError, OperandError
from sparsegen.matrix.block_mask import BlockMask, BlockMaskLayout, grid
from sparsegen.matrix.csr import MAX_INDEX, CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators.base.cost import Cost
from sparsegen.operators.base.dtype import FLOAT8_CUT, TF32_CUT, DType, WordType
from sparsegen.operators.base.fields import (
    NoValueError,
    Parameter,
    batch_size,
    element_type,
    parameter,
    size,
    trait,
)
from sparsegen.operators.base.float8 import FactorType, Float8
from sparsegen.operators.base.layout import Layout
from sparsegen.operators.base.operator import Operator
from sparsegen.operators.base.problem import Problem
from sparsegen.operators.base.random_numbers import normal_numbers
from sparsegen.operators.base.reference import DeviceReference, Reference
from sparsegen.operators.base.scale import kept_scale
from sparsegen.operators.base.sides import Sides
from sparsegen.operators.base.tensor_spec import TensorSpec
from sparsegen.system.device_memory import WARP, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

UNEVEN = 1.5  # times the mean, above which attention splits a row
BLOCK_SIDES = (16, 32, 64, 128, 256)


class Block(Sides):
    """Rows and columns of the blocks of a mask; written ``128x64``."""

    __slots__ = ()
    allowed = BLOCK_SIDES
    expected = f'no block: write "128x64", rows and columns, each of {", ".join(map(str, BLOCK_SIDES))}'


@dataclass(frozen=True, slots=True)
class Density(Parameter):
    """The expected share of live blocks, above 0 and at most 1, in thousandths and at least one of them.

    Written ``0.06``, or ``0.06^1`` if some row has more than others: all of its blocks.

    Attributes:
        longest: the share of live blocks of the row that has most; 0 for rows that are alike.

    Raises:
        NoValueError: another share; the message goes on from "x is".
    """

    share: float
    longest: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0 or not 0.0 <= self.longest <= 1.0:
            raise NoValueError(
                'no density: a density is above 0 and at most 1, as is that of a longer row in "0.1^1"'
            )
        object.__setattr__(self, "share", max(0.001, round(float(self.share), 3)))
        longest = round(float(self.longest), 3)
        object.__setattr__(self, "longest", longest if longest > self.share else 0.0)

    @classmethod
    def parse(cls, value: object) -> Self:
        """The density that a number above 0 and up to 1 stands for, or that two stand for in a text."""
        if isinstance(value, cls):
            return value
        try:
            parts = value.split("^", 1) if isinstance(value, str) else [arguments.number(value, "density")]
            found = [float(part) for part in parts]
        except (ValueError, ConfigError):
            found = [math.nan]
        return cls(*found)

    def __str__(self) -> str:
        return f"{self.share:g}" + (f"^{self.longest:g}" if self.longest else "")

    @property
    def json(self) -> float | str:
        return str(self) if self.longest else self.share

    @classmethod
    def of_rows(cls, live: Array, most: Array) -> Self:
        """Takes the live places in each row of a mask, and the most that there may be.

        A longest row is told where it has more than `UNEVEN` times the mean.
        """
        share, longest = max(1, live.sum()) / max(1, most.sum()), live.max() / max(1, most.max())
        return cls(share, longest if live.max() > UNEVEN * live.mean() else 0.0)

    def drawn(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Bools of independent blocks, of a row in the middle more of them if it has more; at least one is live: right
        results of no block prove nothing.
        """
        share = np.full(shape[-2:-1], self.share)
        if self.longest and share.ndim:
            share[share.size // 2] = self.longest
        live = rng.random(shape) < share[..., None]
        if not live.any():
            live.flat[rng.integers(live.size)] = True
        return live

    def live_of(self, rows: int, columns: int) -> int:
        """Elements of rows × columns that are expected to be live."""
        return round(self.share * rows * columns)

    def features(self, rows: int, columns: int, blocks: int) -> Features:
        """Features of masks over rows × columns with ``blocks`` independent blocks in a row.

        There is no array of the live elements, and they may be more than an index counts: features say no more.
        """
        return Features(
            m=rows,
            k=columns,
            nnz=min(MAX_INDEX, self.live_of(rows, columns)),
            row_mean=self.share * columns,
            row_cov=math.sqrt((1.0 - self.share) / (self.share * blocks)),
            row_max=round(self.longest * columns) or columns,
            block_fill=1.0,
        )


USUAL_BLOCK, USUAL_DENSITY = Block(128, 128), Density(0.5)


class MaskedOperator(Operator):
    """Base class of operators with a mask: takes and checks the call's mask."""

    problem: MaskedProblem

    def _words(self, mask: Any) -> object:
        """The mask's buffer, of whatever library.

        Raises:
            OperandError: a mask of other sizes or blocks, or a buffer on the host that no mask has.
        """
        problem = self.problem
        words = getattr(mask, "words", None)
        if words is None:
            if isinstance(mask, np.ndarray):
                self._check(mask)
            return mask
        wanted = (problem.m, problem.k), (problem.block.rows, problem.block.columns)
        if (mask.shape, mask.block) != wanted:
            (rows, columns), (p, q) = wanted
            raise OperandError(
                f"mask: expected {rows} × {columns} elements in blocks of {p} × {q}, got "
                f"{mask.shape[0]} × {mask.shape[1]} in blocks of {mask.block[0]} × {mask.block[1]}"
            )
        return words

    def _check(self, masks: Array) -> None:
        """Hold masks on the host against their form, as a kernel reads where they say.

        Raises:
            OperandError: parts of a buffer contradict each other. Other sizes and types are left to those who hold all
                operands against what is expected.
        """
        problem = self.problem
        words = problem.mask_layout.words
        if masks.dtype != WordType.UINT64.storage or masks.shape != problem.of_batch((words,)):
            return
        for mask in masks.reshape(-1, words):
            try:
                problem.mask_of({"mask": mask})
            except MatrixError as error:
                raise OperandError(f"mask: {error}") from error


class LiveParts(Protocol):
    """Keeps the live blocks of tensors, by the words of a mask (`sparsegen.plan.live_blocks.LiveBlocks`)."""

    def of(self, x: object, words: object) -> Any: ...

    def without_dead(self, y: object, words: object) -> Any: ...

    def into(self, out: object, x: object, words: object) -> Any: ...


@dataclass(frozen=True, slots=True)
class MaskedProblem(Problem):
    """A product with a mask over m × k elements in blocks, one for each element of a batch.

    The mask is the buffer of a `BlockMask`. Tuning draws masks with independent blocks at the expected density;
    results are right for any mask. Of float32 the tensor cores take the 19 highest bits of each factor (TF32).
    The two dense operands may have 8-bit types of their own (`factor_type`); ``dtype`` is then that of the result, bias
    and residual.
    """

    matrix_sizes: ClassVar[tuple[str, str]] = ("m", "k")
    dense_sizes: ClassVar[tuple[str, ...]] = ("n",)
    keeps: ClassVar[tuple[str, ...]] = ("scale",)
    has_pattern: ClassVar[bool] = False
    reference_files: ClassVar[tuple[str, ...]] = ("product.cu", "reference.cu")

    m: int = size("rows of the mask", flags=("--m", "-m"))
    k: int = size("columns of the mask", flags=("-k", "--k"))
    n: int = size("columns of the dense matrices", usual=128)
    dtype: DType = element_type()
    block: Block = parameter(USUAL_BLOCK, "rows and columns of a block of the mask")
    density: Density = parameter(USUAL_DENSITY, "expected share of live blocks")
    batch: int = batch_size()
    factor_type: FactorType = trait(
        FactorType.SAME, "element types of the two dense operands: the result's, or 8-bit ones", unsaid=True
    )

    # --- its sparsity ---

    @property
    def mask_layout(self) -> BlockMaskLayout:
        """Layout of the parts of a batch element's mask in its buffer."""
        return grid((self.m, self.k), (self.block.rows, self.block.columns))

    @property
    def live_elements(self) -> int:
        """Elements of live blocks that are expected, of a batch element."""
        return self.density.live_of(self.m, self.k)

    def features(self, matrix: CsrMatrix) -> Features:
        """Returns the expected features of the masks: rows differ as independent blocks make them."""
        return self.density.features(self.m, self.k, self.mask_layout.columns)

    def fingerprint(self, matrix: CsrMatrix) -> str:
        """A name of the masks that are expected; there is no pattern to have one."""
        text = f"masks of {self.m} x {self.k} in blocks of {self.block}, {self.density} live"
        return hashlib.sha256(text.encode()).hexdigest()

    def mask_of(self, operands: Mapping[str, Array]) -> BlockMask:
        """The mask among the operands of one batch element, in storage form."""
        return BlockMask((self.m, self.k), (self.block.rows, self.block.columns), operands["mask"])

    # --- its operands ---

    @property
    def factor_types(self) -> tuple[DType | Float8, DType | Float8]:
        """The element types of the two dense operands."""
        return self.factor_type.types or (self.dtype, self.dtype)

    @property
    def multiplied(self) -> DType | Float8:
        """Type of the first dense operand, which stands for both: every pair of 8-bit types has one rate."""
        return self.factor_types[0]

    @abstractmethod
    def dense_operands(self) -> tuple[TensorSpec, ...]:
        """The two matrices, as stored."""

    def operands(self, nnz: int) -> tuple[TensorSpec, ...]:
        return (
            *self.dense_operands(),
            TensorSpec("mask", self.of_batch((self.mask_layout.words,)), WordType.UINT64, 8),
            TensorSpec("scale", (1,), DType.FLOAT32),
        )

    def kept(self, given: Mapping[str, object]) -> dict[str, object]:
        """The scale as an array; by default 1. See `Problem.kept`."""
        return kept_scale(given, 1.0)

    def random_operands(self, rng: np.random.Generator, nnz: int) -> dict[str, Array]:
        """Masks at the expected density, the scale that makes up for it, and normal numbers."""
        return {spec.name: self.random_operand(spec, rng) for spec in self.operands(nnz)}

    def random_operand(self, spec: TensorSpec, rng: np.random.Generator) -> Array:
        """One of `random_operands`."""
        if spec.name == "mask":
            return np.stack([self._random_mask(rng) for _ in range(self.batch)]).reshape(spec.shape)
        if spec.name == "scale":
            return np.array([1.0 / self.density.share], np.float32)
        return normal_numbers(rng, spec)

    def _random_mask(self, rng: np.random.Generator) -> Array:
        layout = self.mask_layout
        live = self.density.drawn(rng, (layout.rows, layout.columns))
        words: Array = BlockMask.from_blocks(
            live, (self.block.rows, self.block.columns), (self.m, self.k)
        ).words
        return words

    def cost(self, nnz: int) -> Cost:
        """Products of live blocks alone; of every operand what these need."""
        needed = self.needed_shares
        moved = self.result(nnz).nbytes * needed.get("y", 1.0)
        moved += sum(spec.nbytes * needed.get(spec.name, 1.0) for spec in self.operands(nnz))
        return Cost(flop=2 * self.live_elements * self.n * self.batch, bytes=round(moved))

    @property
    @abstractmethod
    def needed_shares(self) -> Mapping[str, float]:
        """The shares of operands and of the result that are expected to be read or written, if not all: rows or columns
        that meet dead blocks alone are not.
        """

    @property
    def live_rows(self) -> float:
        """The expected share of rows of blocks with any live block."""
        return any_live(self.density.share, self.mask_layout.columns)

    @property
    def live_columns(self) -> float:
        """The expected share of columns of blocks with any live block."""
        return any_live(self.density.share, self.mask_layout.rows)

    def computed_share(self, matrix: CsrMatrix, operands: Mapping[str, Array]) -> float:
        """Live elements of the masks that were drawn over those that are expected; may be above 1."""
        masks = operands["mask"].reshape(self.batch, -1)
        live = sum(int(np.count_nonzero(self.mask_of({"mask": words}).expand())) for words in masks)
        return live / max(1, self.live_elements * self.batch)

    def in_words(self, density: float) -> str:
        """The problem for people; it knows its density itself."""
        return f"{self}, {self.density.share:.1%} of the blocks live"

    # --- the dense way ---

    @property
    @abstractmethod
    def product_sizes(self) -> tuple[int, int, int]:
        """Rows, contraction and columns of the product of whole matrices."""

    @property
    def dense_product(self) -> tuple[int, int, int] | None:
        is_dense = self.batch == 1 and self.factor_type is FactorType.SAME
        return self.product_sizes if is_dense else None

    @property
    def zeroing_bytes(self) -> float:
        """Live blocks are read, and all is written."""
        return self.m * self.k * self.dtype.itemsize * (1 + self.density.share)

    @abstractmethod
    def dense_result(self, torch: Any, live: LiveParts, operands: Mapping[str, Any], out: Any) -> Any:
        """The result by PyTorch's product of whole matrices.

        Args:
            live: keeps live blocks.
            operands: tensors by name, as stored; the scale a number or a tensor of one.
            out: tensor for the result; None for a new one.
        """

    # --- what it computes ---

    @property
    def result_layout(self) -> Layout:
        """The memory order of the result."""
        return Layout.ROW

    @abstractmethod
    def factors(self, given: Mapping[str, Array]) -> tuple[Array, Array]:
        """A and B, zeros where the mask is dead, whose product the result is but for scale and epilogue.

        Args:
            given: the operands of a batch element as real numbers, and the mask's words.
        """

    def finished(self, exact: Array, magnitude: Array, given: Mapping[str, Array]) -> tuple[Array, Array]:
        """The product and its magnitude, in rows and columns, after what is done to them before they are stored.

        Args:
            given: see `factor_type`.
        """
        return exact, magnitude

    def finish_on(
        self, given: Mapping[str, Array], device: PlainDevice, into: DeviceReference, steps: tuple[int, int]
    ) -> None:
        """`finished` of what lies on a device.

        Args:
            given: see `factor_type`.
            steps: elements from one row of the result to the next, and from one column to the next.
        """

    def element_reference(
        self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1
    ) -> Reference:
        """See `Problem.reference`; elements are sums of as many terms as the contraction is long."""
        given = {name: self._real(array, name) for name, array in operands.items()}
        (a, b), scale = self.factors(given), float(operands["scale"][0])
        widening = self._widening(given, a.shape[0])[:, None]
        magnitude = abs(scale) * widening * (np.abs(a) @ np.abs(b))
        exact, magnitude = self.finished(scale * (a @ b), magnitude, given)
        if self.result_layout is Layout.COLUMN:
            exact, magnitude = np.ascontiguousarray(exact.T), np.ascontiguousarray(magnitude.T)
        return Reference(exact, magnitude, self.terms(matrix), self.dtype)

    def _real(self, array: Array, name: str) -> Array:
        """An operand in storage form, in float64; the mask as it is."""
        kind = next(spec.dtype for spec in self.operands(0) if spec.name == name)
        if isinstance(kind, WordType):
            return array
        real: Array = kind.from_storage(array).astype(np.float64)
        return real

    def live_terms(self, given: Mapping[str, Array]) -> Array:
        """Returns the number of products in the sums of a row of the result: one number for each row, or one for all.

        Args:
            given: see `factor_type`.
        """
        return self.terms(self.without_pattern)

    def _widening(self, given: Mapping[str, Array], rows: int) -> Array:
        """Factor on each row's magnitudes for the truncation of factors (TF32) or of sums (8-bit factors) by tensor
        cores.

        It covers four typical sums of such errors.
        """
        if self.dtype is not DType.FLOAT32 and self.factor_type is FactorType.SAME:
            return np.ones(rows, np.float32)
        lost = TF32_CUT if self.factor_type is FactorType.SAME else FLOAT8_CUT
        cut = 2.0 * lost / (DType.FLOAT32.unit_roundoff * (self.live_terms(given) + 2.0))
        return np.broadcast_to(1.0 + cut, rows).astype(np.float32)

    def fill_on(
        self, matrix: CsrMatrix, operands: Mapping[str, Array], device: PlainDevice, into: DeviceReference
    ) -> None:
        a, b = (np.ascontiguousarray(factor, np.float32) for factor in self.factors(operands))
        (rows, inner), columns = a.shape, b.shape[1]
        by_rows = self.result_layout is Layout.ROW
        steps = (columns, 1) if by_rows else (1, rows)
        factors = np.asarray(operands["scale"], np.float32), self._widening(operands, rows)
        sizes, given = (rows, columns, inner), tuple(map(device.upload, (a, b, *factors)))
        warps = ceil_div(rows * columns, WARP)
        device.run("product.cu:product", warps, *sizes, *given, *steps, into.exact, into.magnitude)
        self.finish_on(operands, device, into, steps)

    def checkable_rows(self, matrix: CsrMatrix) -> Array:
        """All rows of the result: there is no pattern that would leave some empty."""
        layout = self.result_layout
        shape = self.alone.result(0).shape
        return np.arange(shape[0 if layout is Layout.ROW else 1])

    def sub_mask(
        self, operands: Mapping[str, Array], shape: tuple[int, int], rows: Any, columns: Any
    ) -> Array:
        """The buffer of the mask of some rows and columns of blocks."""
        blocks = self.mask_of(operands).blocks()[rows][:, columns]
        words: Array = BlockMask.from_blocks(blocks, (self.block.rows, self.block.columns), shape).words
        return words


def scaled_product(
    torch: Any, left: Any, right: Any, operands: Mapping[str, Any], bias: Any = None, out: Any = None
) -> Any:
    """scale · left · right + bias, rounded once; a scale that is a tensor, which the host cannot read, goes into the
    smaller factor by one launch.
    """
    scale = operands["scale"]
    if not isinstance(scale, float):
        if left.numel() <= right.numel():
            left = _scaled(torch, left, scale)
        else:
            right = _scaled(torch, right, scale)
        scale = 1.0
    if bias is not None:
        return torch.addmm(bias, left, right, alpha=scale, out=out)
    if scale == 1.0:
        return torch.mm(left, right, out=out)
    unread = left.new_empty(())
    return torch.addmm(unread, left, right, beta=0, alpha=scale, out=out)


def _scaled(torch: Any, factor: Any, scale: Any) -> Any:
    """A factor times a scale of float32, in the factor's dtype and memory order."""
    return torch.mul(factor, scale, out=torch.empty_like(factor))


def stored(array: Array, layout: Layout) -> Array:
    """A matrix in rows and columns, of one that is stored in this order."""
    return array if layout is Layout.ROW else array.T


def live_elements(mask: BlockMask, axis: int) -> Array:
    """Number of live elements along an axis, for each line across it."""
    live: Array = np.count_nonzero(mask.expand(), axis=axis)
    return live
