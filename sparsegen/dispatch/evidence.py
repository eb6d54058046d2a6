"""Evidence that one workload's measurements give for others: its good configs, and the model's error on each of
them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sparsegen.dispatch.places import Neighbour, position
from sparsegen.dispatch.regression import Point, Regression
from sparsegen.kernels import family_of, is_of_operator
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.records import Measurement, Outcome, Workload

CANDIDATES = 24  # best configs of each workload
OF_EACH_FAMILY = 4  # number of each family's best configs that are known at least


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Summary of one workload's measurements on one device, independent of the question and immutable.

    Attributes:
        fastest: the best configs, the best one first; empty where nothing ran.
        doubtful: configs that were wrong, crashed or hung.
        points: the best configs and some of each family, for which the model holds; and ``logs``, of each of them the
            log of its time over the modelled one.
    """

    fastest: tuple[Config, ...]
    doubtful: frozenset[Config]
    points: tuple[Point, ...]
    logs: tuple[float, ...]

    @classmethod
    def of(cls, workload: Workload, device: Device, measured: Sequence[Measurement]) -> Evidence:
        """Summarises everything measured of a workload.

        Args:
            device: the device that measured it, with its known rates.
        """
        times = _times(measured)
        ordered = sorted(times, key=times.__getitem__)
        place = position(workload.problem, workload.features)
        points, logs = [], []
        for config in _telling(ordered):
            modelled = _log_modelled(workload.problem, workload.features, config, device)
            if math.isfinite(modelled):
                points.append(Point(place, config))
                logs.append(math.log(times[config]) - modelled)
        doubtful = frozenset(suspects(measured))
        return cls(tuple(ordered[:CANDIDATES]), doubtful, tuple(points), tuple(logs))


def evidence_of(neighbour: Neighbour, device: Device, database: Layer) -> Evidence:
    """Returns the evidence of a neighbour's measurements.

    Args:
        device: the device in question, with its measured rates.
    """
    on = device if neighbour.device.key == device.key else neighbour.device
    measured = database.measurements(neighbour.workload, neighbour.device)
    return Evidence.of(neighbour.workload, on, measured)


@lru_cache(maxsize=64)
def regression_of(near: tuple[Evidence, ...]) -> Regression | None:
    """Fits the model's error to nearby evidence, the nearest first; None if the model holds for none of it.

    Layers of a model that are much alike have the same neighbours.
    """
    points = [point for each in near for point in each.points]
    return Regression(points, np.array([log for each in near for log in each.logs])) if points else None


def suspects(measurements: Iterable[Measurement]) -> set[Config]:
    """Configs that were wrong, crashed or hung and have not been put right since."""
    listed = list(measurements)
    good = {m.variant for m in ranking.dispatchable(listed)}
    bad = (Outcome.WRONG, Outcome.CRASHED, Outcome.TIMED_OUT)
    blamed = {m.variant for m in listed if m.outcome in bad} - good
    return {v.config for v in blamed}


def log_of_analytic(problem: Problem, features: Features, config: Config, device: Device) -> float:
    """The log of what the cost model says, of a config whose constraints hold."""
    return math.log(family_of(config).analytic_us(problem, features, config, device))


def _log_modelled(problem: Problem, features: Features, config: Config, device: Device) -> float:
    """The same; infinite where the config is none for such a problem."""
    if not is_of_operator(config, problem.operator):
        return math.inf
    if not family_of(config).is_valid(problem, config, device):
        return math.inf
    return log_of_analytic(problem, features, config, device)


def _telling(ordered: Sequence[Config]) -> list[Config]:
    """Selects from configs, the fastest first: the first `CANDIDATES`, and the first `OF_EACH_FAMILY` of every
    family.
    """
    of_family: Counter[str] = Counter()
    kept = []
    for place, config in enumerate(ordered):
        if place < CANDIDATES or of_family[config.family_name] < OF_EACH_FAMILY:
            kept.append(config)
            of_family[config.family_name] += 1
    return kept


def _times(measurements: Sequence[Measurement]) -> dict[Config, float]:
    """Microseconds of every dispatchable config; of several sources of one config the best-ranked counts."""
    times: dict[Config, float] = {}
    for found in ranking.ranked(measurements):
        if found.variant.config.is_known:
            times.setdefault(found.variant.config, found.time_us)
    return times
