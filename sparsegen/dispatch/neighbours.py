"""What the configs measured on similar workloads say about one that was not measured.

The k nearest workloads in log-feature space each vote on every candidate with its slowdown against the best config
there, weighted by nearness. Candidates are the configs that were good there, and every family's heuristic config.
That is another config on another workload; it is rated by how good these were where they were measured. A
config that a neighbour has not tried is rated by the similar ones it has (Nadaraya-Watson regression over how
alike configs are). The winner of a single neighbour would be its noise as much as its merit.

A Gaussian process over the same measurements is asked too, and what is expected is the mean of both in logs: the vote
knows what has been good everywhere near, the process what changes with the sizes and what families differ in.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegen.dispatch.regression import Point, expected, log_slowdowns
from sparsegen.kernels import families_of, family, family_of
from sparsegen.kernels.base import Array, Device
from sparsegen.kernels.config import Config
from sparsegen.kernels.similarity import differences
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Measurement, Outcome, Tuned, Workload

NEIGHBOURS = 12  # that vote
CANDIDATES = 24  # best configs of each neighbour that are voted on
OF_EACH_FAMILY = 4  # of its best configs are known to the Gaussian process at least
REGRESSED = 0.5  # share of the Gaussian process in what is expected
OWN_WEIGHT = 0.5  # distance at which a neighbour counts half as much as an equal workload
OTHER_EPILOGUE = 0.5  # distance added for another of the near traits; an epilogue touches the result once
OTHER_DEVICE = 1.0  # distance added; same compute capability, another chip
SIMILARITY = 0.35  # weight of a config for each tunable in which it differs (`differences`)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A measured workload and its distance in octaves (a factor of two in one feature is about one)."""

    workload: Workload
    device: Device
    distance: float


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """A config and what the neighbours expect of it.

    Attributes:
        slowdown: expected time over the best one's, at least 1.
        voters, weights: the neighbours, and the shares of their votes.
        there: what stands for the config on each neighbour: itself, or the family's heuristic config there.
        log_us: log(µs) of those, measured there or inferred.
    """

    config: Config
    slowdown: float
    voters: Sequence[Neighbour]
    weights: Array
    there: Sequence[Config]
    log_us: Array

    def expected_us(self, problem: Problem, features: Features, device: Device) -> float:
        """Microseconds by the family's cost model, times what its times on the neighbours are over the model's there.

        The model knows the launch, waves and bytes, which do not grow with the FLOP from one workload to another. A
        neighbour on which it has no time for the config does not count.
        """
        model = family_of(self.config)
        logs = np.full(len(self.voters), np.nan)
        for i, (neighbour, config) in enumerate(zip(self.voters, self.there, strict=True)):
            of, on = neighbour.workload, neighbour.device
            if not model.broken_constraints(of.problem, config, on):
                logs[i] = self.log_us[i] - math.log(model.analytic_us(of.problem, of.features, config, on))
        counts = np.isfinite(logs)
        modelled = float(model.analytic_us(problem, features, self.config, device))
        if not counts.any():
            return modelled
        return modelled * math.exp(float(self.weights[counts] @ logs[counts] / self.weights[counts].sum()))


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
    """The candidates that are allowed here, the best expected one first; empty when nothing was measured.

    Args:
        workload, device: here.
        neighbours: each with everything measured on it.
        is_allowed: whether a config may run here at all.
    """
    voters = [(n, times) for n, measured in neighbours if (times := _times(measured))]
    if not voters:
        return []
    doubtful = {config for _, measurements in neighbours for config in suspects(measurements)}
    candidates: dict[Config, None] = {}  # an ordered set: equal scores go to the nearer neighbour's config
    for _, times in voters:
        candidates |= dict.fromkeys(sorted(times, key=times.__getitem__)[:CANDIDATES])
    configs = [c for c in candidates if c not in doubtful and is_allowed(c)]
    # A family's heuristic config, if its heuristic config for some neighbour was measured there.
    timed = {config.family_name for _, times in voters for config in times}
    there = [heuristic_configs(n.workload.problem, n.workload.features, n.device, timed) for n, _ in voters]
    tried = {f for g, (_, times) in zip(there, voters, strict=True) for f, c in g.items() if c in times}
    mine = heuristic_configs(workload.problem, workload.features, device, timed)
    heuristics = {f: c for f, c in mine.items() if f in tried and c not in doubtful and is_allowed(c)}
    listed = [*configs, *heuristics.values()]
    if not listed:
        return []
    weights = np.array([1.0 / (n.distance**2 + OWN_WEIGHT**2) for n, _ in voters])
    weights /= weights.sum()
    stands = [[*configs, *(theirs[f] for f in heuristics)] for theirs in there]
    logs = np.array([_log_times(own, times) for own, (_, times) in zip(stands, voters, strict=True)])
    fastest = np.log([min(times.values()) for _, times in voters])
    slowdown = weights @ (logs - fastest[:, None])
    processed = _regressed(workload, mine, voters, there, listed)
    slowdown = (1 - REGRESSED) * slowdown + REGRESSED * processed
    asked = [neighbour for neighbour, _ in voters]
    best: dict[Config, Prediction] = {}  # a heuristic config may be one of the others
    for i in np.argsort(slowdown, kind="stable").tolist():
        if listed[i] not in best:
            expected_slowdown = math.exp(max(0.0, slowdown[i]))
            own = [config[i] for config in stands]
            best[listed[i]] = Prediction(listed[i], expected_slowdown, asked, weights, own, logs[:, i])
    return list(best.values())


def _regressed(
    workload: Workload,
    mine: dict[str, Config],
    voters: Sequence[tuple[Neighbour, dict[Config, float]]],
    heuristics: Sequence[dict[str, Config]],
    listed: Sequence[Config],
) -> Array:
    """The logs of the slowdowns that a Gaussian process expects of some configs here.

    Args:
        mine, heuristics: the families' heuristic configs here, and on each voter.
    """
    known: list[Point] = []
    logs: list[Array] = []
    for (neighbour, times), theirs in zip(voters, heuristics, strict=True):
        place = position(neighbour.workload.problem, neighbour.workload.features)
        kept = _telling(times)
        known += [_point(place, config, theirs) for config in kept]
        logs.append(log_slowdowns([times[config] for config in kept]))
    here = position(workload.problem, workload.features)
    return expected(known, np.concatenate(logs), [_point(here, config, mine) for config in listed])


def _point(place: Array, config: Config, heuristics: dict[str, Config]) -> Point:
    return Point(place, config, heuristics.get(config.family_name) == config)


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


def _log_times(candidates: Sequence[Config], times: dict[Config, float]) -> Array:
    """log(µs) of each candidate on one neighbour, measured or inferred from similar ones."""
    logs = np.full(len(candidates), math.log(max(times.values())))  # of a family that was not tried at all
    tried = list(times)
    weights = SIMILARITY ** differences(candidates, tried)
    alike = weights.sum(axis=1)
    is_inferred = alike > 0
    logs[is_inferred] = (weights @ np.log(list(times.values())))[is_inferred] / alike[is_inferred]
    for i, config in enumerate(candidates):
        if config in times:
            logs[i] = math.log(times[config])
    return logs
