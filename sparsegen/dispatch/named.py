"""A variant that the caller names, in the place of what dispatch would choose."""

from __future__ import annotations

from collections.abc import Mapping

from sparsegen import arguments
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.options import Dense
from sparsegen.kernels import require_family
from sparsegen.kernels.base import Device
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem


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
