"""One row of a benchmark: an operator, its sizes, and the pattern of its sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from sparsegen.bench.patterns import Pattern, pattern_from_dict
from sparsegen.errors import SuiteError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Layout


class Operator(StrEnum):
    """What is computed."""

    SPMM = "spmm"  # C[m, n] = A[m, k] · B[k, n], A sparse
    SDDMM = "sddmm"  # C[m, n] = A[m, k] · B[k, n], only where the pattern has a nonzero


@dataclass(frozen=True, slots=True)
class Case:
    """One workload, to be measured once for each of its dtypes, without an epilogue.

    Attributes:
        suite: the suite's name; ``matrix`` for a single file of the command line.
        name: unique in the suite: sizes, sparsity as ``.70``, and what else tells cases apart. Sizes are
            m x k x n for SpMM and m x n x k for SDDMM: the shape of the sparse matrix comes first.
        m, k, n: rows of C, the inner size, columns of C.
        dtypes: element types to measure, at least one.
        layout: memory order of the dense matrices.
        pattern: of A (m × k) for SpMM, of C (m × n) for SDDMM. Cases that differ in n alone have equal
            patterns, which can be the key under which a matrix is kept.
        source: where the sizes and sparsities come from.
        batch: items with this pattern, each with its own dense matrices; those of SpMM have the same values.

    Raises:
        SuiteError: the pattern's shape does not fit the sizes, a size is below 1, or there is no dtype.
    """

    suite: str
    name: str
    operator: Operator
    m: int
    k: int
    n: int
    dtypes: tuple[DType, ...]
    layout: Layout
    pattern: Pattern
    source: str
    batch: int = 1

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise SuiteError(f"{self}: a batch has at least one item, got {self.batch}")
        if min(self.m, self.k, self.n) < 1:
            raise SuiteError(f"{self}: sizes start at 1, got m = {self.m}, k = {self.k}, n = {self.n}")
        if not self.dtypes:
            raise SuiteError(f"{self}: at least one dtype is needed")
        if self.pattern.shape != self.sparse_shape:
            raise SuiteError(
                f"{self}: the sparse matrix is {' x '.join(map(str, self.sparse_shape))}, "
                f"its pattern {' x '.join(map(str, self.pattern.shape))}"
            )

    def __str__(self) -> str:
        return f"{self.suite} {self.name}"

    @property
    def sparse_shape(self) -> tuple[int, int]:
        """Rows and columns of the sparse matrix."""
        return (self.m, self.k) if self.operator is Operator.SPMM else (self.m, self.n)

    def matrix(self) -> CsrMatrix:
        """The sparse matrix; SDDMM uses its pattern alone.

        Raises:
            MatrixError: see `Pattern.matrix`.
        """
        return self.pattern.matrix()

    def to_dict(self) -> dict[str, Any]:
        """JSON values, ``batch`` only of several items; `from_dict` is the inverse."""
        return {
            "suite": self.suite,
            "name": self.name,
            "operator": str(self.operator),
            "m": self.m,
            "k": self.k,
            "n": self.n,
            "dtypes": [str(dtype) for dtype in self.dtypes],
            "layout": str(self.layout),
            "pattern": self.pattern.to_dict(),
            "source": self.source,
            **({"batch": self.batch} if self.batch > 1 else {}),
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """
        Raises:
            SuiteError: a field is missing, unknown or has a value that it cannot have.
        """
        try:
            return cls(
                **{
                    **fields,
                    "operator": Operator(fields["operator"]),
                    "dtypes": tuple(DType(dtype) for dtype in fields["dtypes"]),
                    "layout": Layout(fields["layout"]),
                    "pattern": pattern_from_dict(fields["pattern"]),
                }
            )
        except KeyError as error:
            raise SuiteError(f"a case without {error}") from None
        except (TypeError, ValueError) as error:
            raise SuiteError(f"a case with wrong fields: {error}") from None
