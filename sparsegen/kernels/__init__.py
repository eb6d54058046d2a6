"""Kernel families, one file each, which has the family's name and exports it as ``FAMILY``.

Families lie in groups, folders that `templates/` mirrors. A group holds what only its families use, too, and names the
operators that they compute (``OPERATORS``). A group's files are imported when one of these operators, or a family by
its name, is first asked for; `layouts` holds what families of several groups share.

Families that others write stay in their own packages: ``SPARSEGEN_FAMILIES`` names their modules, or `register` takes
them up.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sparsegen import arguments, settings
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import AnyFamily, Device, Family
from sparsegen.kernels.config import Config, UnknownConfig
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem

_loaded: dict[str, AnyFamily | None] = {}  # by name, once it was asked for
_taken_up: dict[str, str] = {}  # modules of families from outside, and the family's name


def families() -> dict[str, AnyFamily]:
    """Every family by name, in alphabetical order."""
    return {name: found for name in _names() if (found := _find(name)) is not None}


def register(family: AnyFamily) -> None:
    """Make a family from outside of sparsegen known to this process and to the processes that it starts.

    From then on `tune`, `prepare` and dispatch have it beside sparsegen's own. ``SPARSEGEN_FAMILIES=package.module``
    does the same for the command line.

    Args:
        family: its module exports it as ``FAMILY``, and child processes can import that module by its name.

    Raises:
        ConfigError: its module is the main program, or exports another; or its name is taken.
    """
    module = type(family).__module__
    if module == "__main__" or getattr(sys.modules[module], "FAMILY", None) is not family:
        raise ConfigError(
            f"{family.name} is none that other processes can import: put it into a module of its own, as FAMILY, "
            "and import that"
        )
    _take_up(module)
    settings.add_family_module(module)


def is_own(family: AnyFamily) -> bool:
    """True if a family is one of sparsegen's own, and not from outside."""
    return type(family).__module__.startswith(f"{__name__}.")


def _take_up(module: str) -> None:
    """Add the family of a module outside of sparsegen."""
    if module in _taken_up:
        return
    try:
        found = getattr(importlib.import_module(module), "FAMILY", None)
    except ImportError as error:
        raise ConfigError(
            f"the kernel family of {module} cannot be imported ({error}); SPARSEGEN_FAMILIES names modules that "
            "Python finds, separated by commas"
        ) from error
    if not isinstance(found, Family):
        raise ConfigError(f"{module} exports no kernel family as FAMILY")
    if any(found.name in modules for modules in _groups().values()) or found.name in _taken_up.values():
        raise ConfigError(
            f"there is a kernel family {found.name!r} already; that of {module} needs another name"
        )
    _taken_up[module] = found.name
    _loaded[found.name] = found


def _take_up_named() -> None:
    """Add those that ``SPARSEGEN_FAMILIES`` names."""
    for module in settings.family_modules():
        _take_up(module)


def _names() -> list[str]:
    _take_up_named()
    return sorted({name for modules in _groups().values() for name in modules} | _loaded.keys())


@cache
def _groups() -> dict[str, tuple[str, ...]]:
    """The modules of each group by the group's name."""
    groups = (module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return {group: _modules(group) for group in groups}


def _modules(group: str) -> tuple[str, ...]:
    folders = [str(Path(folder) / group) for folder in __path__]
    return tuple(module.name for module in pkgutil.iter_modules(folders))


def _find(name: str) -> AnyFamily | None:
    """The family of that name, if its file is installed."""
    if name not in _loaded:
        _take_up_named()
    if name not in _loaded:
        group = next((group for group, modules in _groups().items() if name in modules), None)
        if group is None:
            return None
        module = importlib.import_module(f"{__name__}.{group}.{name}")
        _loaded[name] = getattr(module, "FAMILY", None)
    return _loaded[name]


def family(name: str) -> AnyFamily:
    """The family of that name.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    found = _find(arguments.text(name, "family"))
    if found is None:
        raise ConfigError(f"no kernel family {arguments.unknown(name, families())}")
    return found


def family_of(config: Config) -> AnyFamily:
    """The family whose space a config is from; it must be known (`Config.is_known`)."""
    found = _find(config.family_name)
    assert found is not None, config
    return found


def is_of_operator(config: Config, operator: str) -> bool:
    """True if an installed family of the operator declares the config."""
    return config.is_known and family_of(config).problem_type.operator == operator


def read_config(family_name: str, values: Mapping[str, object]) -> Config:
    """The config that a database or a file holds; an `UnknownConfig` where no installed family declares it.

    Args:
        values: whatever JSON has by the tunables' names.
    """
    known = _find(family_name)
    if known is not None:
        try:
            return known.config_type.parse(values)  # type: ignore[no-any-return]
        except ConfigError:
            pass
    return UnknownConfig.of(family_name, values)


def require_family(name: str, problem: Problem) -> AnyFamily:
    """The family of that name, which must compute the problem.

    Raises:
        ConfigError: there is none, or it computes another operator; the message lists those there are.
    """
    named = family(name)
    if named.problem_type.operator != problem.operator:
        listed = ", ".join(f.name for f in families_of(problem.operator))
        raise ConfigError(
            f"{name} computes {named.problem_type.operator}, not {problem.operator}; for that there are {listed}"
        )
    return named


def families_of(operator: str) -> list[AnyFamily]:
    """The families that compute an operator, in alphabetical order of their names.

    Only the files of groups that name the operator are imported.
    """
    _take_up_named()
    names = _loaded.keys() | {name for group in _groups_of(operator) for name in _groups()[group]}
    found = (family for name in sorted(names) if (family := _find(name)) is not None)
    return [family for family in found if family.problem_type.operator == operator]


@cache
def _groups_of(operator: str) -> tuple[str, ...]:
    packages = ((group, importlib.import_module(f"{__name__}.{group}")) for group in _groups())
    return tuple(group for group, package in packages if operator in getattr(package, "OPERATORS", ()))


def by_predicted_time(problem: Problem, features: Features, device: Device) -> list[AnyFamily]:
    """The operator's families, the one whose heuristic config should be fastest on this device first."""
    candidates = families_of(problem.operator)
    return sorted(candidates, key=lambda f: f.predicted_us(problem, features, device))
