"""What the configs measured on similar workloads say about one that was not measured.

A config's time is what its family's cost model says, times how far the model was off on the k nearest workloads in
log-feature space, for this config, for similar ones and for its family (`dispatch.regression`). Candidates are the
configs that were good there and all families' heuristic configs, also those that nobody tried there: few or old
measurements near do not keep a family out that should be faster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.dispatch.regression import Point, expected
from sparsegen.kernels import families_of, family, family_of, is_of_operator
from sparsegen.kernels.base import Array, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Measurement, Outcome, Tuned, Workload

NEIGHBOURS = 12  # that are asked
CANDIDATES = 24  # best configs of each neighbour
OF_EACH_FAMILY = 4  # of its best configs are known of a neighbour at least
CAUTION = 0.5  # standard deviations by which a doubtful config has to be better
OTHER_EPILOGUE = 0.5  # distance added for another of the near traits; an epilogue touches the result once
OTHER_DEVICE = 1.0  # distance added; same compute capability, another chip


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A measured workload and its distance in octaves (a factor of two in one feature is about one)."""

    workload: Workload
    device: Device
    distance: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A config and what is expected of it.

    Attributes:
        expected_us: microseconds by the cost model and by what the neighbours took.
    """

    config: Config
    expected_us: float


def position(problem: Problem, features: Features) -> Array:
    """The workload's place in feature space: float64, in octaves."""
    return np.array(_place(problem, features))


def _place(problem: Problem, features: Features) -> tuple[float, ...]:
    log2 = math.log2
    return (
        log2(features.m + 1),  # with the dense sizes it says how many tiles there are
        0.5 * log2(features.k + 1),
        *(log2(getattr(problem, name)) for name in problem.dense_sizes),
        *(place for value in problem.parameters.values() for place in value.octaves),
        0.5 * log2(problem.batch),  # more tiles of the same kind: they change little once a device is full
        0.5 * log2(features.nnz + 1),
        log2(features.row_mean + 1),
        features.row_cov,
        0.5 * log2(features.row_max + 1),
        0.5 * log2(1e-3 + features.block_fill),
    )


def nearest(problem: Problem, features: Features, device: Device, known: Sequence[Tuned]) -> list[Neighbour]:
    """Measured workloads of the same kind (see `Problem.kind`), nearest first."""
    kind, traits = problem.kind, problem.traits
    kinds = {other: other.kind == kind for other in {tuned.workload.problem for tuned in known}}
    alike = [tuned for tuned in known if tuned.ok and kinds[tuned.workload.problem]]
    if not alike:
        return []
    places = np.array([_place(t.workload.problem, t.workload.features) for t in alike])
    apart = np.linalg.norm(places - position(problem, features), axis=1)
    penalties = {
        other: OTHER_EPILOGUE * (other.traits != traits) for other, is_alike in kinds.items() if is_alike
    }
    apart += [penalties[t.workload.problem] + OTHER_DEVICE * (t.device.key != device.key) for t in alike]
    order = np.argsort(apart, kind="stable").tolist()
    return [Neighbour(alike[i].workload, alike[i].device, float(apart[i])) for i in order]


def suspects(measurements: Iterable[Measurement]) -> set[Config]:
    """Configs that were wrong, crashed or hung and have not been put right since."""
    listed = list(measurements)
    good = {m.variant for m in ranking.dispatchable(listed)}
    bad = (Outcome.WRONG, Outcome.CRASHED, Outcome.TIMED_OUT)
    blamed = {m.variant for m in listed if m.outcome in bad} - good
    return {v.config for v in blamed}


def predict(
    workload: Workload,
    device: Device,
    neighbours: Sequence[tuple[Neighbour, Sequence[Measurement]]],
    is_allowed: Callable[[Config], bool],
) -> list[Prediction]:
    """The candidates that are allowed here, the best one first; empty when nothing was measured.

    First comes what should be fastest even where doubts about it come true (`CAUTION`).

    Args:
        workload, device: here.
        neighbours: each with everything measured on it.
        is_allowed: whether a config may run here at all.
    """
    problem, features = workload.problem, workload.features
    asked = [(n, times) for n, measured in neighbours if (times := _times(measured))]
    if not asked:
        return []
    doubtful = {config for _, measurements in neighbours for config in suspects(measurements)}
    candidates: dict[Config, None] = {}  # an ordered set: equal scores go to the nearer neighbour's config
    for _, times in asked:
        candidates |= dict.fromkeys(sorted(times, key=times.__getitem__)[:CANDIDATES])
    for each in families_of(problem.operator):
        heuristics = (
            each.heuristic(problem, features, device),
            *each.alternatives(problem, features, device),
        )
        candidates |= dict.fromkeys(heuristics)
    listed = [c for c in candidates if c not in doubtful and is_allowed(c)]
    modelled = np.array([_log_of_analytic(problem, features, c, device) for c in listed])
    listed = [c for c, log in zip(listed, modelled.tolist(), strict=True) if math.isfinite(log)]
    if not listed:
        return []
    logs = modelled[np.isfinite(modelled)]
    known, off = _known(asked, device)
    score = logs
    if known:
        here = position(problem, features)
        mean, doubt = expected(known, off, [Point(here, config) for config in listed])
        logs, score = logs + mean, logs + mean + CAUTION * doubt
    order = np.argsort(score, kind="stable").tolist()
    return [Prediction(listed[i], math.exp(logs[i])) for i in order]


def _known(
    asked: Sequence[tuple[Neighbour, dict[Config, float]]], device: Device
) -> tuple[list[Point], Array]:
    """What was measured near, and the logs of those times over the modelled ones.

    Args:
        device: with the rates that were measured of it.
    """
    known: list[Point] = []
    logs: list[float] = []
    for neighbour, times in asked:
        of, on = neighbour.workload, neighbour.device
        on = device if on.key == device.key else on
        place = position(of.problem, of.features)
        for config in _telling(times):
            modelled = _log_modelled(of.problem, of.features, config, on)
            if math.isfinite(modelled):
                known.append(Point(place, config))
                logs.append(math.log(times[config]) - modelled)
    return known, np.array(logs)


def _log_modelled(problem: Problem, features: Features, config: Config, device: Device) -> float:
    """The log of what the cost model says; infinite where the config is none for such a problem."""
    if not is_of_operator(config, problem.operator):
        return math.inf
    if family_of(config).broken_constraints(problem, config, device):
        return math.inf
    return _log_of_analytic(problem, features, config, device)


def _log_of_analytic(problem: Problem, features: Features, config: Config, device: Device) -> float:
    """`_log_modelled` of a config whose constraints hold."""
    return math.log(family_of(config).analytic_us(problem, features, config, device))


def _telling(times: dict[Config, float]) -> list[Config]:
    """The fastest configs, and of every family the fastest few."""
    ordered = sorted(times, key=times.__getitem__)
    of_family: Counter[str] = Counter()
    kept = []
    for place, config in enumerate(ordered):
        if place < CANDIDATES or of_family[config.family_name] < OF_EACH_FAMILY:
            kept.append(config)
            of_family[config.family_name] += 1
    return kept


def heuristic_configs(
    problem: Problem, features: Features, device: Device, names: Collection[str] | None = None
) -> dict[str, Config]:
    """The heuristic config of each family of the operator, by the family's name; ``names``: of some of them alone."""
    asked = families_of(problem.operator) if names is None else map(family, sorted(names))
    return {f.name: f.heuristic(problem, features, device) for f in asked}


def _times(measurements: Sequence[Measurement]) -> dict[Config, float]:
    """Microseconds of every dispatchable config; of several sources of one config the best-ranked counts."""
    times: dict[Config, float] = {}
    for found in ranking.ranked(measurements):
        if found.variant.config.is_known:
            times.setdefault(found.variant.config, found.time_us)
    return times
