"""One row of a benchmark: a problem, and the pattern of its sparse matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from sparsegen.bench.patterns.patterns import Pattern, pattern_from_dict
from sparsegen.errors import SuiteError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import DType, Problem
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.json_reader import Node
from sparsegen.tuning_db.problem_reader import problem_dict, read_problem

TEXT = 1000  # characters


@dataclass(frozen=True, slots=True)
class Case:
    """One workload, to be measured once for each of its dtypes.

    Attributes:
        suite: the suite's name; ``matrix`` for a single file of the command line.
        name: unique in the suite: sizes, sparsity as ``.70``, and what else tells cases apart. The rows and columns of
            the sparse matrix come first: m x k x n for SpMM and m x n x k for SDDMM.
        problem: a problem of any operator, in the first of the dtypes.
        dtypes: element types to measure, at least one.
        pattern: distribution of the row's sparse input. Cases that differ in dense sizes alone have equal patterns,
            which can be the key under which a matrix is kept.
        source: source of the sizes and sparsities.

    Raises:
        SuiteError: the pattern's shape is not that of the problem's matrix, the matrix is empty, or there is no dtype.
    """

    suite: str
    name: str
    problem: Problem
    dtypes: tuple[DType, ...]
    pattern: Pattern
    source: str

    def __post_init__(self) -> None:
        if not self.dtypes or self.problem.dtype is not self.dtypes[0]:
            raise SuiteError(f"{self}: at least one dtype is needed, and the problem is in the first")
        rows, columns = self.problem.matrix_shape
        if min(rows, columns) < 1:
            raise SuiteError(f"{self}: a matrix of {rows} x {columns} has nothing to measure")
        if self.pattern.shape != (rows, columns):
            raise SuiteError(
                f"{self}: the sparse matrix is {rows} x {columns}, "
                f"its pattern {' x '.join(map(str, self.pattern.shape))}"
            )

    def __str__(self) -> str:
        return f"{self.suite} {self.name}"

    def in_dtype(self, dtype: DType) -> Problem:
        """The problem with elements of this type."""
        problem: Problem = replace(cast(Any, self.problem), dtype=dtype)
        return problem

    def of_dtypes(self, dtypes: tuple[DType, ...]) -> Self:
        """The case with these element types instead."""
        return replace(self, problem=self.in_dtype(dtypes[0]), dtypes=dtypes)

    def matrix(self) -> CsrMatrix:
        """The sparse matrix; of some operators its pattern alone counts.

        Raises:
            MatrixError: see `Pattern.matrix`.
        """
        return self.pattern.matrix()

    def to_dict(self) -> Json:
        """JSON values; `from_dict` is the inverse."""
        return {
            "suite": self.suite,
            "name": self.name,
            "problem": problem_dict(self.problem),
            "dtypes": [str(dtype) for dtype in self.dtypes],
            "pattern": self.pattern.to_dict(),
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, fields: Json) -> Self:
        """The case of a result file's fields.

        Raises:
            SuiteError: a field is missing, unknown or has a value that it cannot have.
        """
        f = Node(fields, None, "$", "a case", SuiteError).fields(
            ("suite", "name", "problem", "dtypes", "pattern", "source")
        )
        return cls(
            suite=f["suite"].text(TEXT),
            name=f["name"].text(TEXT),
            problem=read_problem(f["problem"]),
            dtypes=dtypes_of(f["dtypes"]),
            pattern=pattern_from_dict({name: node.value for name, node in f["pattern"].members().items()}),
            source=f["source"].text(TEXT),
        )


def dtypes_of(node: Node) -> tuple[DType, ...]:
    """The element types that a JSON list names."""
    return tuple(DType(word.text(40, "|".join(DType))) for word in node.items())


def variations(problem: Problem) -> Iterator[str]:
    """Yields the unusual properties of a problem besides its sizes, for its name: ``batch=4``, ``epilogue=bias``.

    Dtype and layout are no part of names: rows of one name are told apart by them.
    """
    for name, field in problem.fields.items():
        value = getattr(problem, name)
        if name not in (*problem.sizes, "dtype", "layout") and value != field.default:
            yield f"{name}={value}"
