"""Operators: what is computed, apart from how. One module each, discovered by its ``PROBLEMS`` (`discovery`).

A module lies here alone, or with others that share its parts in a group, as families do in `sparsegen.kernels`.

A problem is one instance of an operator: shapes, dtype, layouts, epilogue. It knows its operands, its
result, a float64 reference and its cost, so that families only say how to compute it.

Modules are imported when one of their names is first used: a look-up needs one of all operators.
"""

from typing import Any

from sparsegen.system import lazy_names

_HOME = lazy_names.homes(__name__)

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    return lazy_names.found(__name__, _HOME, name)


def __dir__() -> list[str]:
    return sorted(__all__)
