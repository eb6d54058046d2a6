"""Discovery of operators: the modules of this package that have ``PROBLEMS``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property

from sparsegen import arguments, operators
from sparsegen.errors import ConfigError
from sparsegen.operators.base.default_operator import DEFAULT_OPERATOR
from sparsegen.operators.base.problem import Problem


class Operators(Mapping[str, type[Problem]]):
    """The problem class of every operator by name: the default one, then the others in the order of their modules.

    A module with the operator's name is imported alone; all of them where there is none, or all are asked for.
    """

    def __init__(self) -> None:
        self._found: dict[str, type[Problem]] = {}

    def __getitem__(self, name: str) -> type[Problem]:
        if name not in self._found and name in self._modules:
            self._found |= _problems_of(name)
        return self._found[name] if name in self._found else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _modules(self) -> tuple[str, ...]:
        return tuple(module.name for module in pkgutil.iter_modules(operators.__path__))

    @cached_property
    def _all(self) -> dict[str, type[Problem]]:
        kinds = [kind for name in self._modules for kind in _problems_of(name).values()]
        return {kind.operator: kind for kind in sorted(kinds, key=lambda k: k.operator != DEFAULT_OPERATOR)}


def _problems_of(name: str) -> dict[str, type[Problem]]:
    """The operators of a module, by name."""
    module = importlib.import_module(f"{operators.__name__}.{name}")
    return {kind.operator: kind for kind in getattr(module, "PROBLEMS", ())}


OPERATORS = Operators()


def operator_named(name: str) -> type[Problem]:
    """The problem class of an operator.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    try:
        return OPERATORS[arguments.text(name, "operator")]
    except KeyError:
        raise ConfigError(f"no operator {name!r}; there are {', '.join(OPERATORS)}") from None
