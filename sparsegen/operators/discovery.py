"""Discovery of operators: the modules of this package and of its groups that have ``PROBLEMS``."""

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
            self._found |= _problems_of(self._modules[name])
        return self._found[name] if name in self._found else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _modules(self) -> dict[str, str]:
        """Locations of modules, here or in a group, by name and in its order."""
        place, own = operators.__name__, list(pkgutil.iter_modules(operators.__path__))
        names = {module.name: f"{place}.{module.name}" for module in own if not module.ispkg}
        for group in (module.name for module in own if module.ispkg):
            folders = [f"{folder}/{group}" for folder in operators.__path__]
            names |= {m.name: f"{place}.{group}.{m.name}" for m in pkgutil.iter_modules(folders)}
        return dict(sorted(names.items()))

    @cached_property
    def _all(self) -> dict[str, type[Problem]]:
        kinds = [kind for module in self._modules.values() for kind in _problems_of(module).values()]
        return {kind.operator: kind for kind in sorted(kinds, key=lambda k: k.operator != DEFAULT_OPERATOR)}


def _problems_of(module: str) -> dict[str, type[Problem]]:
    """The operators of a module, by name."""
    found = getattr(importlib.import_module(module), "PROBLEMS", ())
    return {kind.operator: kind for kind in found}


OPERATORS = Operators()


def operator_named(name: str) -> type[Problem]:
    """The problem class of an operator.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    try:
        return OPERATORS[arguments.text(name, "operator")]
    except KeyError:
        raise ConfigError(f"no operator {arguments.unknown(name, OPERATORS)}") from None
