"""The caller's request: a problem on a matrix, given as a problem or by an operator's name and fields."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.matrix.foreign import describe
from sparsegen.matrix.formats import Array, CsrMatrix, as_csr, as_mask
from sparsegen.operators import DEFAULT_OPERATOR, OPERATORS, Problem, fields_of, operator_named

if TYPE_CHECKING:
    from sparsegen.operators import QuantizedMatrix

QUANTIZED = "sparsegen.operators.quantized.quantized_matrix"  # the module of quantised matrices


class Wanted(NamedTuple):
    """A request: a problem on a matrix.

    Attributes:
        given: the matrix before it was transposed.
        value_order: for each nonzero of the matrix, the index of its value in the given one; None: the same order.
    """

    matrix: CsrMatrix
    problem: Problem
    given: CsrMatrix
    value_order: Array | None

    @classmethod
    def of(
        cls,
        matrix: object,
        problem: Problem | None,
        operator: str,
        transpose: bool,
        options: Mapping[str, object],
    ) -> Wanted:
        """Raises ConfigError where problem or options do not fit the operator and the matrix, or each other."""
        if _is_quantized(matrix):
            from sparsegen.operators import opened

            matrix, operator, options = opened(matrix, problem, operator, options)
        kind = kind_of(operator, problem)
        if not kind.has_pattern:
            return cls._without_pattern(matrix, problem, kind, transpose, options)
        if matrix is None:
            raise ConfigError(f"{kind.operator} needs a matrix")
        given = csr = as_csr(matrix, allow_nonfinite=True)
        order = None
        if arguments.flag(transpose, "transpose"):
            if not kind.is_transposable:
                raise _not_taken(kind, "transpose", [k for k in OPERATORS.values() if k.is_transposable])
            csr, order = csr.transposed(), csr.transposition().source
        if problem is None:
            problem = kind.of(csr.shape, **options)
            _require_values(given, problem, matrix)
            return cls(csr, problem, given, order)
        if operator not in (DEFAULT_OPERATOR, kind.operator):
            raise ConfigError(f"the problem is of {kind.operator}, not of {operator}")
        if named := [name for name, value in options.items() if value is not None]:
            raise ConfigError(f"the problem says all but the operands: drop {', '.join(named)}")
        if problem.matrix_shape != csr.shape:
            raise ConfigError(f"the matrix is {csr.shape}, but the problem's is {problem.matrix_shape}")
        _require_values(given, problem, matrix)
        return cls(csr, problem, given, order)

    @classmethod
    def _without_pattern(
        cls,
        matrix: object,
        problem: Problem | None,
        kind: type[Problem],
        transpose: bool,
        options: Mapping[str, object],
    ) -> Wanted:
        """Builds the request for an operator whose mask comes with every call."""
        if matrix is not None:
            raise ConfigError(
                f"{kind.operator} takes its mask with every call: give None for the matrix, and the sizes "
                f"{' and '.join(kind.matrix_sizes)}"
            )
        if arguments.flag(transpose, "transpose"):
            raise _not_taken(kind, "transpose", [k for k in OPERATORS.values() if k.is_transposable])
        if problem is None:
            sizes = dict(options)
            missing = [name for name in kind.matrix_sizes if sizes.get(name) is None]
            if missing:
                raise ConfigError(f"{kind.operator} needs {' and '.join(missing)}")
            rows, columns = (arguments.whole(sizes.pop(name), name) for name in kind.matrix_sizes)
            problem = kind.of((rows, columns), **sizes)
        elif given := [name for name, value in options.items() if value is not None]:
            raise ConfigError(f"the problem says all but the operands: drop {', '.join(given)}")
        return cls(problem.without_pattern, problem, problem.without_pattern, None)


def kind_of(operator: str, problem: Problem | None) -> type[Problem]:
    """The class of the problems that are meant; a problem names it, else an operator's name does."""
    if problem is None:
        return operator_named(operator)
    if isinstance(problem, int):
        raise ConfigError(f"problem = {problem} is no Problem; sizes are named, as in n={problem}")
    arguments.instance(problem, Problem, "problem")
    return type(problem)


def without_operands(
    matrix: object, problem: Problem | None, operator: str, options: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are fields of a problem, and the operands to keep; those that are None are not given.

    Scales and zero points of a quantised matrix are among the operands, unless others are given.

    Raises:
        ConfigError: an operand that is another operator's.
    """
    if _is_quantized(matrix):
        from sparsegen.operators import opened

        _, operator, options = opened(matrix, problem, operator, options)
        options = {"scales": matrix.scales, "zero_points": matrix.zero_points} | options
    kind = kind_of(operator, problem)
    given = {name: value for name, value in options.items() if value is not None}
    kept = {name: given.pop(name) for name in kind.keeps if name in given}
    for name in given.keys() - fields_of(kind).keys():
        if others := [other for other in OPERATORS.values() if name in other.keeps]:
            raise _not_taken(kind, name, others)
    return given, kept


def _is_quantized(matrix: object) -> TypeGuard[QuantizedMatrix]:
    """True for a quantised matrix; whoever made it has imported its module, which no other look-up needs."""
    module = sys.modules.get(QUANTIZED)
    return module is not None and isinstance(matrix, module.QuantizedMatrix)


def _require_values(matrix: CsrMatrix, problem: Problem, given: object) -> None:
    """Raises MatrixError for values that are not finite, or those of an additive mask where they play no part."""
    (as_csr if problem.heeds_values else as_mask)(matrix, source=describe(given))


def _not_taken(kind: type[Problem], name: str, others: Sequence[type[Problem]]) -> ConfigError:
    """The error for what other operators take."""
    names = ", ".join(other.operator for other in others)
    return ConfigError(f"{kind.operator} takes no {name}; {names} {'does' if len(others) == 1 else 'do'}")
