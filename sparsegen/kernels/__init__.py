"""Kernel families, one file each, discovered by their ``FAMILY``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config, UnknownConfig
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem


@cache
def families() -> dict[str, AnyFamily]:
    """Every family by name, in alphabetical order."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    found = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in sorted(found, key=lambda f: f.name)}


def family(name: str) -> AnyFamily:
    """The family of that name.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    try:
        return families()[arguments.text(name, "family")]
    except KeyError:
        raise ConfigError(f"no kernel family {name!r}; there are {', '.join(families())}") from None


def family_of(config: Config) -> AnyFamily:
    """The family whose space a config is from; it must be known (`Config.is_known`)."""
    return families()[config.family_name]


def is_of_operator(config: Config, operator: str) -> bool:
    """Whether an installed family that computes the operator declares a config."""
    return config.is_known and family_of(config).problem_type.operator == operator


def read_config(family_name: str, values: Mapping[str, Any]) -> Config:
    """The config that a database or a file holds; an `UnknownConfig` where no installed family declares it.

    Args:
        values: whatever JSON has by the tunables' names.
    """
    known = families().get(family_name)
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
    """The families that compute an operator."""
    return [f for f in families().values() if f.problem_type.operator == operator]


def by_predicted_time(problem: Problem, features: Features, device: Device) -> list[AnyFamily]:
    """The operator's families, the one whose heuristic config should be fastest on this device first."""
    candidates = families_of(problem.operator)
    return sorted(candidates, key=lambda f: f.predicted_us(problem, features, device))
