"""Operators: what is computed, apart from how. One frozen problem class for each operator.

A problem is one instance of an operator: shapes, dtype, layouts, epilogue. It knows its operands, its
result, a float64 reference, an error bound and its cost, so that families only say how to compute it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sparsegen.errors import ConfigError
from sparsegen.formats import CsrMatrix

Array = npt.NDArray[Any]


class DType(StrEnum):
    """Element type of the values, of B and of C; sums are kept in float32."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FLOAT32 else 2

    @property
    def storage(self) -> np.dtype[Any]:
        """The NumPy dtype that holds the bits; NumPy has no bfloat16, so ``uint16`` stands in for it."""
        return np.dtype({"float32": "f4", "float16": "f2", "bfloat16": "u2"}[self.value])

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next larger number."""
        return {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[self.value]

    def to_storage(self, array: npt.ArrayLike) -> Array:
        """Real numbers to this type's storage, rounded to nearest even."""
        if self is not DType.BFLOAT16:
            with np.errstate(over="ignore"):
                return np.ascontiguousarray(array, dtype=self.storage)
        exact = np.ascontiguousarray(array, dtype=np.float32)
        bits = exact.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(exact), np.uint32(0x7FC0), rounded).astype(np.uint16)

    def from_storage(self, stored: Array) -> Array:
        """This type's storage to float32 (exact) for bfloat16; other types are returned as they are."""
        if self is not DType.BFLOAT16:
            return stored
        return (np.ascontiguousarray(stored, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)


class Layout(StrEnum):
    """Memory order of the dense operands B and C.

    ``ROW``: B is k × n and C is m × n, both row-major. ``COLUMN``: the same matrices column-major, which
    is n × k and n × m row-major: activations as tokens × features, so a linear layer needs no transpose.
    """

    ROW = "row"
    COLUMN = "column"


class Epilogue(StrEnum):
    """What is done to C before it is stored; the bias has one value per row of C."""

    NONE = "none"
    BIAS = "bias"
    BIAS_RELU = "bias_relu"

    @property
    def has_bias(self) -> bool:
        return self is not Epilogue.NONE


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, shape as stored (row-major) and dtype of one dense operand or result."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Cost:
    """Useful work of one call: floating-point operations and the fewest bytes moved (each operand once)."""

    flop: int
    bytes: int


MAX_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SpmmProblem:
    """C[m, n] = epilogue(A[m, k] · B[k, n]) with A sparse.

    Raises:
        ConfigError: a size is below 1 (m and k may be 0) or over the 32-bit index range.
    """

    operator: ClassVar[str] = "spmm"

    m: int
    k: int
    n: int
    dtype: DType = DType.FLOAT32
    layout: Layout = Layout.ROW
    epilogue: Epilogue = Epilogue.NONE

    def __post_init__(self) -> None:
        for name, size, least in (("m", self.m, 0), ("k", self.k, 0), ("n", self.n, 1)):
            if not least <= size <= MAX_INDEX:
                raise ConfigError(f"{name} = {size} is outside [{least}, {MAX_INDEX}]")

    def to_dict(self) -> dict[str, int | str]:
        """The fields as JSON values; `from_dict` is the inverse."""
        return {name: value if isinstance(value, int) else str(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        return cls(
            m=int(fields["m"]),
            k=int(fields["k"]),
            n=int(fields["n"]),
            dtype=DType(fields["dtype"]),
            layout=Layout(fields["layout"]),
            epilogue=Epilogue(fields["epilogue"]),
        )

    @property
    def operands(self) -> tuple[TensorSpec, ...]:
        """The dense inputs in call order, shapes as stored."""
        shape = (self.k, self.n) if self.layout is Layout.ROW else (self.n, self.k)
        b = TensorSpec("b", shape, self.dtype)
        return (b, TensorSpec("bias", (self.m,), self.dtype)) if self.epilogue.has_bias else (b,)

    @property
    def result(self) -> TensorSpec:
        shape = (self.m, self.n) if self.layout is Layout.ROW else (self.n, self.m)
        return TensorSpec("c", shape, self.dtype)

    def cost(self, nnz: int) -> Cost:
        """Useful FLOP and the fewest bytes: A as CSR with 32-bit indices, B, bias and C once each."""
        sparse = nnz * (self.dtype.itemsize + 4) + (self.m + 1) * 4
        dense = sum(spec.nbytes for spec in self.operands) + self.result.nbytes
        return Cost(flop=2 * nnz * self.n, bytes=sparse + dense)

    def random_operands(self, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh normal inputs, rounded to the problem's dtype, in storage form."""
        return {
            spec.name: spec.dtype.to_storage(rng.standard_normal(spec.shape, dtype=np.float32))
            for spec in self.operands
        }

    def reference(self, matrix: CsrMatrix, operands: dict[str, Array], *, threads: int = 1) -> Reference:
        """The result and its error bound in float64, both in the result's stored shape.

        The bound of an element is γ · (|A|·|B| + |bias|) with γ from the row's length and the float32
        sum, plus the rounding of the result (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
        """
        values = self.dtype.from_storage(self.dtype.to_storage(matrix.values)).astype(np.float64)
        a = matrix.with_values(values).to_scipy()
        stored = self.dtype.from_storage(operands["b"]).astype(np.float64)
        b = stored if self.layout is Layout.ROW else stored.T
        exact, magnitude = np.empty((self.m, self.n)), np.empty((self.m, self.n))
        absolute = abs(a)

        def columns(start: int, stop: int) -> None:
            part = np.ascontiguousarray(b[:, start:stop])
            exact[:, start:stop] = a @ part
            magnitude[:, start:stop] = absolute @ np.abs(part)

        step = max(1, -(-self.n // threads))
        with ThreadPoolExecutor(threads) as pool:
            jobs = [pool.submit(columns, s, min(s + step, self.n)) for s in range(0, self.n, step)]
            for job in jobs:
                job.result()
        if self.epilogue.has_bias:
            bias = self.dtype.from_storage(operands["bias"]).astype(np.float64)[:, None]
            exact += bias
            magnitude += np.abs(bias)
        if self.epilogue is Epilogue.BIAS_RELU:
            exact = np.maximum(exact, 0.0)
        bound = error_bound(self.dtype, exact, magnitude, np.diff(matrix.row_offsets)[:, None])
        if self.layout is Layout.COLUMN:
            exact, bound = np.ascontiguousarray(exact.T), np.ascontiguousarray(bound.T)
        return Reference(exact, bound, self.dtype)


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


OPERATORS: dict[str, type[SpmmProblem]] = {SpmmProblem.operator: SpmmProblem}
