"""A variant that the caller names, in the place of what dispatch would choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from sparsegen import arguments
from sparsegen.dispatch import look_up
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.options import Dense, DispatchOptions
from sparsegen.errors import ConfigError
from sparsegen.kernels import require_family
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.tuning_db.records import Workload


def chooser(
    workload: Workload,
    db: str | Path | None,
    options: DispatchOptions,
    family: str | None,
    config: Mapping[str, object] | None,
) -> Callable[[Device], Choice]:
    """Returns what chooses for a device: the variant of the family that the caller names, or without one dispatch's.

    Raises:
        ConfigError: a config without its family, or a family where a dense product is always to run.
    """
    if family is None:
        if config is not None:
            raise ConfigError("config= needs family=")
        return lambda device: look_up.choose(workload, device, db, options)
    if options.dense is Dense.ALWAYS:
        raise ConfigError("family= names a variant, and dense = always wants none")
    changes = {} if config is None else config
    return lambda device: named_choice(workload.problem, workload.features, device, family, changes)


def named_choice(
    problem: Problem, features: Features, device: Device, family: str, config: Mapping[str, object]
) -> Choice:
    """A variant that the caller names: the family's heuristic config for these features, changed by ``config``.

    Raises:
        ConfigError: a family that is unknown or of another operator, an unknown tunable or value, a config that is not
            valid here, or one that does not suit a matrix of these features.
    """
    known = require_family(family, problem)
    heuristic = known.heuristic(problem, features, device).to_dict()
    chosen = known.config(**{**heuristic, **arguments.by_name(config, "config")})
    known.require_suited(problem, features, chosen, device)
    return Choice(problem, chosen, How.NAMED, "named by the caller", policy=Dense.NEVER)
