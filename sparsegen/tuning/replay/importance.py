"""Importance of tunables for whether a config is fast: PED-ANOVA over what the database recorded of a workload.

Watanabe, Bansal, Hutter: PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces,
IJCAI 2023; Optuna's implementation, which needs no further package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator

from sparsegen.kernels.config import Value
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Measurement

FEWEST_CONFIGS = 20  # below that the fastest tenth is one config, which explains nothing
FAST_SHARE = 0.1


def importances(measurements: Iterable[Measurement]) -> dict[str, dict[str, float]]:
    """The shares of each family's tunables in whether a config is among the fastest tenth.

    Args:
        measurements: measurements of one workload on one device.

    Returns:
        Family to tunable to share, largest first, each family's sum 1. A family with fewer than 20 timed configs is
            left out, and so is a tunable that never varied; a
        family all of whose configs are equally fast is left out, too.
    """
    timed: dict[str, list[ranking.Ranked]] = {}
    for ranked in ranking.ranked(measurements):
        timed.setdefault(ranked.variant.family, []).append(ranked)
    found = {name: _of_family(configs) for name, configs in timed.items() if len(configs) >= FEWEST_CONFIGS}
    return {name: shares for name, shares in found.items() if shares}


def _of_family(configs: list[ranking.Ranked]) -> dict[str, float]:
    choices = _varied([ranked.variant.config.to_dict() for ranked in configs])
    if not choices or len({ranked.time_us for ranked in configs}) == 1:
        return {}  # nothing to decide, or it made no difference
    distributions: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(values) for name, values in choices.items()
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    for ranked in configs:
        config = ranked.variant.config.to_dict()
        study.add_trial(
            optuna.trial.create_trial(
                params={name: config[name] for name in choices},
                distributions=distributions,
                value=math.log(ranked.time_us),
            )
        )
    evaluator = PedAnovaImportanceEvaluator(target_quantile=FAST_SHARE)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _varied(configs: list[dict[str, Value]]) -> Mapping[str, tuple[Value, ...]]:
    """The tunables that every config has and that take more than one value, with those values."""
    shared = set(configs[0]).intersection(*configs)
    values = {name: tuple(dict.fromkeys(c[name] for c in configs)) for name in configs[0] if name in shared}
    return {name: seen for name, seen in values.items() if len(seen) > 1}
