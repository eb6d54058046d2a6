"""Operators whose calls bring further operands by name, held against what the problem has and what is kept."""

from __future__ import annotations

from typing import Any, ClassVar

from sparsegen.errors import OperandError
from sparsegen.operators.base.operator import Launcher, Operator


class NamedOperandsOperator(Operator):
    """Operator of a first operand and of others by name, some of which `sparsegen.prepare` may have been given.

    Attributes:
        further: names of all that a call may bring beside the first, in the order of the problem's operands.
    """

    further: ClassVar[tuple[str, ...]]

    def __init__(self, problem: Any, launcher: Launcher) -> None:
        """See `Operator`."""
        super().__init__(problem, launcher)
        there = {spec.name for spec in problem.operands(0)}
        self._further = [(name, name in there, name in there - {*launcher.kept}) for name in self.further]
        self._takes_one = there.isdisjoint(self.further)

    def _with_further(self, first: object, *given: object) -> tuple[object, ...]:
        """The operands of a call in the problem's order; None stands for one that is kept.

        Args:
            given: the `further` ones, None for those that the call does not bring.

        Raises:
            OperandError: one that the problem has not, or none that it needs.
        """
        operands = [first]
        for array, (name, is_there, is_needed) in zip(given, self._further, strict=True):
            if array is None:
                if is_needed:
                    raise lacking(self.problem, name)
            elif not is_there:
                raise not_taken(self.problem, name)
            if is_there:
                operands.append(array)
        return tuple(operands)


def not_taken(problem: Any, name: str) -> OperandError:
    """The error for an operand that was given and that the problem has not."""
    return OperandError(f"{name}= was given, but the operator was prepared for {problem}, which takes none")


def lacking(problem: Any, name: str) -> OperandError:
    """The error for an operand that neither the call nor `prepare` was given."""
    shape = next(spec.shape for spec in problem.operands(0) if spec.name == name)
    return OperandError(f"{problem} needs {name}= of shape {shape}")
