"""A tuned workload once more: the commands that take it up again, and the call to paste into Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from sparsegen.cli.parts.matrix_options import MatrixOptions
from sparsegen.kernels.config import Config
from sparsegen.operators import DEFAULT_OPERATOR, Problem


@dataclass(frozen=True, slots=True)
class CalledAgain:
    """Names of the matrix, the device and the database of a tuned workload, which is called again by them.

    Attributes:
        device: None if it need not be named; the same holds for the database.
    """

    matrix: MatrixOptions
    device: str | None = None
    db: str | None = None

    def command(self, name: str, problem: Problem) -> str:
        """The command of this name on this problem; what is a default is left out, but for dense sizes."""
        operator = None if problem.operator == DEFAULT_OPERATOR else problem.operator
        given = {problem.fields[name].flags[0]: value for name, value in _given(problem).items()}
        where = {
            "--tensor": self.matrix.tensor,
            "--memory-limit": self.matrix.memory_limit,
            "--device": self.device,
            "--db": self.db,
        }
        return f"sparsegen {name}{self._matrix_options()}{_options({'--operator': operator} | given | where)}"

    def _matrix_options(self) -> str:
        matrix = self.matrix
        if matrix.file is None:
            return ""
        flags = " --drop-zeros" * matrix.drop_zeros + " --transpose" * matrix.transpose
        return _options({"--matrix": matrix.file}) + flags

    def python(self, problem: Problem, config: Config) -> str:
        """The call of `sparsegen.prepare` that runs this config, as it can be pasted; what is a default is left out.

        ``matrix`` stands for the user's own, with the zeros that it stores and not transposed.
        """
        operator = {} if problem.operator == DEFAULT_OPERATOR else {"operator": problem.operator}
        fields = {name: v if isinstance(v, int) else str(v) for name, v in _given(problem).items()}
        is_option = self.matrix.transpose and problem.is_transposable
        transpose = {"transpose": True} if is_option else {}
        variant = {"family": config.family_name, "config": config.to_dict()}
        matrix = [self._matrix_in_python(transposed=not is_option)] if problem.has_pattern else []
        options = [f"{name}={v!r}" for name, v in (operator | fields | transpose | variant).items()]
        return f"sparsegen.prepare({', '.join(matrix + options)})"

    def _matrix_in_python(self, *, transposed: bool) -> str:
        """The matrix of the options, made of ``matrix``; its transpose only if it is to be made here."""
        zeros = ", drop_zeros=True" * self.matrix.drop_zeros
        transpose = ".transposed()" * (self.matrix.transpose and transposed)
        return f"sparsegen.as_csr(matrix{zeros}){transpose}" if zeros or transpose else "matrix"


def _given(problem: Problem) -> dict[str, object]:
    """Fields of a problem that its matrix does not say and that are no defaults."""
    values = {**problem.sizes, **problem.parameters, **problem.traits, "batch": problem.batch}
    return {
        name: value
        for name, value in values.items()
        if not (problem.has_pattern and name in problem.matrix_sizes)
        and value != problem.fields[name].default
    }


def _options(values: Mapping[str, object]) -> str:
    """The options that have a value, as on a command line."""
    given = {flag: value for flag, value in values.items() if value is not None}
    return "".join(f" {flag} {shlex.quote(str(value))}" for flag, value in given.items())
