"""Prediction of a workload's best configs from those measured on similar workloads.

A config's time is its family's cost model times that model's error on the k nearest workloads in log-feature space, for
this config, for similar ones and for its family (`dispatch.regression`). Candidates are the configs that were good
there and all families' heuristic configs, even those that were not tried there: few or old measurements near do not
keep a family out that should be faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from sparsegen.dispatch.evidence import Evidence, evidence_of, log_of_analytic, regression_of
from sparsegen.dispatch.places import nearest, position
from sparsegen.dispatch.regression import Point
from sparsegen.kernels import families_of, family
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Tuned, Workload

NEIGHBOURS = 12  # number of neighbours that are asked
CAUTION = 0.5  # standard deviations by which a doubtful config has to be better
# Log by which another config has to be better than the model's own first one, for each octave to the nearest evidence:
# evidence from afar changed more choices for the worse than for the better.
WORTH_LEAVING = 0.03


class Prediction(NamedTuple):
    """A config and what is expected of it.

    Attributes:
        expected_us: microseconds by the cost model and by what the neighbours took.
    """

    config: Config
    expected_us: float


def predict(
    workload: Workload, device: Device, near: Sequence[Evidence], is_allowed: Callable[[Config], bool]
) -> list[Prediction]:
    """The candidates that are allowed here, the best one first; empty when nothing was measured.

    First comes what should be fastest even where doubts about it come true (`CAUTION`); the heuristic config that the
    model puts first gives way to what should be clearly faster (`WORTH_LEAVING`).

    Args:
        workload, device: here.
        near: evidence of the nearest workloads, the nearest first.
        is_allowed: true for a config that may run here at all.
    """
    problem, features = workload.problem, workload.features
    asked = [evidence for evidence in near if evidence.fastest]
    if not asked:
        return []
    doubtful = frozenset().union(*(evidence.doubtful for evidence in near))
    candidates: dict[Config, None] = {}  # an ordered set: equal scores go to the nearer neighbour's config
    for evidence in asked:
        candidates |= dict.fromkeys(evidence.fastest)
    heuristics: set[Config] = set()
    for each in families_of(problem.operator):
        if not each.computes(problem):  # none of its configs would be allowed
            continue
        proposed = each.proposals(problem, features, device)
        heuristics.update(proposed[:1])
        candidates |= dict.fromkeys(proposed)
    listed = [c for c in candidates if c not in doubtful and is_allowed(c)]
    modelled = np.array([log_of_analytic(problem, features, c, device) for c in listed])
    listed = [c for c, log in zip(listed, modelled.tolist(), strict=True) if math.isfinite(log)]
    if not listed:
        return []
    logs = modelled[np.isfinite(modelled)]
    score, regression = logs, regression_of(tuple(asked))
    if regression is not None:
        here = position(problem, features)
        mean, doubt = regression.expected([Point(here, config) for config in listed])
        score = logs + mean + CAUTION * doubt
        own = [i for i, config in enumerate(listed) if config in heuristics]
        if own:
            apart = min(np.linalg.norm(e.points[0].position - here) for e in asked if e.points)
            score[min(own, key=logs.__getitem__)] -= WORTH_LEAVING * apart
        logs = logs + mean
    order = np.argsort(score, kind="stable").tolist()
    return [Prediction(listed[i], math.exp(logs[i])) for i in order]


def similar_configs(
    workload: Workload,
    device: Device,
    database: Layer,
    known: Sequence[Tuned],
    is_allowed: Callable[[Config], bool],
) -> list[Config]:
    """Returns the configs that the nearest of ``known`` suggest, the best first; see `predict`.

    Args:
        database: holds all measurements of ``known``.
    """
    near = nearest(workload.problem, workload.features, device, known)[:NEIGHBOURS]
    said = [evidence_of(neighbour, device, database) for neighbour in near]
    return [prediction.config for prediction in predict(workload, device, said, is_allowed)]


def heuristic_configs(
    problem: Problem, features: Features, device: Device, names: Collection[str] | None = None
) -> dict[str, Config]:
    """The heuristic config of each family of the operator, by the family's name; ``names``: of some of them alone."""
    asked = families_of(problem.operator) if names is None else map(family, sorted(names))
    proposed = ((f.name, f.proposals(problem, features, device)) for f in asked)
    return {name: configs[0] for name, configs in proposed if configs}
