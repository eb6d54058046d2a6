"""From a problem and a matrix's features to the variant that runs: measured, inferred, or a rule of thumb.

In this order: what is pinned; the same problem and sparsity pattern; a workload of equal sizes and close features; the
vote of the nearest measured workloads; the family's own guess. What was predicted for this workload and device
(`sparsegen tune --for`) comes before the vote of other devices, and after that of this one: it is trusted less than
what was measured here, and the first `sparsegen tune` on the device measures it. Dispatch never tunes. A config from a
database was checked when it was read; whether it may run here, its family's constraints say.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from weakref import WeakKeyDictionary

from sparsegen.dispatch.dense_time import dense_time_us, is_modelled, known_products
from sparsegen.dispatch.neighbours import (
    NEIGHBOURS,
    Neighbour,
    nearest,
    predict,
    suspects,
)
from sparsegen.dispatch.predicted import fastest_predicted, predicted_us
from sparsegen.errors import ConfigError, NoVariantError, PinsError
from sparsegen.kernels import by_predicted_time, family_of, is_of_operator
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem, SpmmProblem
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layers import Layer, with_rates
from sparsegen.tuning_db.records import Measurement, Workload

log = logging.getLogger(__name__)

BUCKET_RADIUS = 0.15  # octaves: about a tenth more nonzeros
# Octaves; beyond it a rule of thumb knows better. With the packaged measurements, from which all nearer than a distance
# were left out: up to 3.5 octaves the vote's variants take 1.02 to 1.05 times the best time and the guesses 1.03 to
# 1.09; from 4 on the vote's take 1.1 to 1.5 times and the guesses 1.03 to 1.11, and many estimates are 11 times off.
FARTHEST = 3.5
DENSE = "cublas"  # the contender that a dense product is
CACHED_CHOICES = 4096
WORTH_UNTRIED = 2.0  # expected gain from which on a family is used that was tried on nothing near


class How(StrEnum):
    """Where a choice comes from, the best source first."""

    PINNED = "pinned"
    EXACT = "exact"
    BUCKET = "bucket"
    PREDICTED = "predicted"
    NEAREST = "nearest"
    DEFAULT = "default"
    NAMED = "named"  # by the caller; nothing was looked up


class OnMiss(StrEnum):
    """What to do when neither this workload nor its bucket was measured."""

    NEAREST = "nearest"  # ask the nearest measured workloads, else the family's guess
    DEFAULT = "default"  # the family's guess
    DENSE = "dense"  # a dense product, unless sparse is measured or expected to be faster
    TUNE = "tune"  # `sparsegen.prepare` tunes; `choose` itself answers as for NEAREST
    ERROR = "error"  # NoVariantError

    @classmethod
    def parse(cls, value: OnMiss | str) -> OnMiss:
        """Raises ConfigError for a word that is none of these."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"on_miss = {value!r} is none of {', '.join(cls)}") from None


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant to run, and why.

    Attributes:
        how, why: where it comes from, as a word and in a sentence.
        expected_us: measured (EXACT), or estimated from the neighbours; None where nothing is known.
        predicted_us: what the family's rule of thumb makes of the device's rates (DEFAULT), or what `sparsegen tune
            --for` predicted of the variant (PREDICTED, and EXACT where it did so before); None where neither is known.
        dense_us: the same for a dense cuBLAS product.
        use_dense: only with ``on_miss="dense"``: the dense product is to be run instead of the variant.
        neighbours: the measured workloads that were asked.
    """

    problem: Problem
    config: Config
    how: How
    why: str
    expected_us: float | None = None
    predicted_us: float | None = None
    dense_us: float | None = None
    use_dense: bool = False
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def family(self) -> AnyFamily:
        """The config's."""
        return family_of(self.config)

    @property
    def is_hit(self) -> bool:
        """Whether it is pinned, or rests on measurements of this workload or its bucket."""
        return self.how in (How.PINNED, How.EXACT, How.BUCKET)

    @property
    def dense_is_faster(self) -> bool:
        """Whether a dense product is measured or estimated to take less time."""
        return self.dense_us is not None and self.expected_us is not None and self.dense_us < self.expected_us

    def explain(self) -> str:
        """The choice in words, several lines."""
        values = self.config.settings.replace(" ", ", ")
        lines = [f"{self.family.name} ({self.how}): {self.why}", f"  {values}"]
        if self.expected_us is not None:
            verb = "measured" if self.how in (How.PINNED, How.EXACT) else "estimated"
            before = f" ({microseconds(self.predicted_us)} were predicted)" if self.predicted_us else ""
            lines.append(f"  {verb} {microseconds(self.expected_us)}{before}")
        elif self.predicted_us is not None:
            lines.append(f"  predicted {microseconds(self.predicted_us)}")
        if self.dense_us is not None and self.expected_us is not None and self.dense_is_faster:
            lines.append(
                f"  dense wins: {microseconds(self.dense_us)} (cuBLAS) against {microseconds(self.expected_us)}"
            )
        elif self.dense_us is not None:
            lines.append(f"  dense takes {microseconds(self.dense_us)} (cuBLAS)")
        if self.use_dense:
            because = "so" if self.dense_is_faster else "nothing measured is near:"
            lines.append(f"  {because} the dense product runs instead (on_miss=dense)")
        lines += [
            f"  asked: {_sizes(n.workload.problem)}, {n.workload.features.nnz} nonzeros, "
            f"{n.distance:.2f} octaves away"
            for n in self.neighbours
        ]
        return "\n".join(lines)


Key = tuple[Problem, str, str, OnMiss, bool]
_caches: WeakKeyDictionary[Layer, dict[Key, tuple[int, Choice]]] = WeakKeyDictionary()


def choose(
    problem: Problem,
    features: Features,
    fingerprint: str,
    device: Device,
    database: Layer,
    *,
    on_miss: OnMiss | str = OnMiss.NEAREST,
    deterministic: bool | None = None,
) -> Choice:
    """The variant to run for this problem on this pattern and device.

    What is pinned runs, whatever was measured (`Layer.rules`).

    An answer is kept in memory for as long as nothing is written through the same ``database`` object; what
    other processes write is seen after `forget`.

    Args:
        deterministic: only variants of which equal inputs give equal bits on every call; None for what the database's
            rules say.

    Raises:
        NoVariantError: nothing may run, or nothing was measured and ``on_miss`` is ``"error"``.
        PinsError: what is pinned may not run here.
    """
    miss = OnMiss.parse(on_miss)
    cache = _caches.setdefault(database, {})
    equal_bits = database.rules.deterministic if deterministic is None else deterministic
    key = (problem, fingerprint, device.key, miss, equal_bits)
    kept = cache.get(key)
    generation = database.generation
    if kept is not None and kept[0] == generation:
        return kept[1]
    choice = _Search(Workload(problem, fingerprint, features), device, database, equal_bits).choose(miss)
    if choice.dense_is_faster and not choice.use_dense and choice.dense_us and choice.expected_us:
        log.warning(
            "dense cuBLAS is faster here: %s against %s for %s",
            microseconds(choice.dense_us),
            microseconds(choice.expected_us),
            choice.family.name,
        )
    if len(cache) >= CACHED_CHOICES:
        cache.clear()
    cache[key] = (generation, choice)
    return choice


def forget(database: Layer) -> None:
    """Drop the answers kept for this database, so that other processes' results are seen."""
    _caches.pop(database, None)


class _Search:
    """One look-up that was not in memory."""

    def __init__(self, workload: Workload, device: Device, database: Layer, deterministic: bool) -> None:
        self.workload, self.database, self.deterministic = workload, database, deterministic
        self.device = with_rates(device, database)
        self.problem = workload.problem
        self.own = database.measurements(workload, device)
        self.suspects = suspects(self.own)  # whatever a neighbour says, it failed here

    def choose(self, miss: OnMiss) -> Choice:
        pinned = self.pinned()
        if pinned is not None:
            return pinned
        found = self.exact()
        if found is None:
            near = nearest(
                self.problem,
                self.workload.features,
                self.device,
                self.database.list_workloads(kind=self.problem.kind, like=self.device),
            )
            found = self.bucket(near)
            if found is None:
                found = self.on_miss(near, miss)
        if miss is OnMiss.DENSE and self.dense_pays(found):
            return replace(found, use_dense=True)
        return found

    def on_miss(self, near: Sequence[Neighbour], miss: OnMiss) -> Choice:
        if miss is OnMiss.ERROR:
            raise NoVariantError(
                f"nothing was measured for {self.problem} on this pattern and {self.device.name}; "
                "run `sparsegen tune`, or choose another on_miss"
            )
        chosen = None if miss is OnMiss.DEFAULT else self.predicted(near) or self.nearest(near)
        return chosen or self.default("a rule of thumb" if miss is OnMiss.DEFAULT else _not_near(near))

    @staticmethod
    def dense_pays(choice: Choice) -> bool:
        return choice.dense_is_faster or (choice.how is How.DEFAULT and choice.expected_us is None)

    # --- the five sources --------------------------------------------------------------------------------

    def pinned(self) -> Choice | None:
        """
        Raises:
            PinsError: what is pinned may not run here.
        """
        pin = self.database.rules.pins.find(self.workload, self.device)
        if pin is None:
            return None
        family, where = family_of(pin.config), self.database.rules.pins.place
        broken = family.broken_constraints(self.problem, pin.config, self.device)
        if self.deterministic and not family.is_deterministic(self.problem, pin.config):
            broken.append("equal inputs give equal bits on every call")
        if broken:
            raise PinsError(
                f"{where} pins {pin.config} for {self.problem} on {pin.device}, which may not run here; it must hold: "
                f"{'; '.join(broken)}. `sparsegen db unpin {pin.fingerprint[:12]}` frees the choice"
            )
        why = f"pinned in {where} on {pin.pinned_at:%Y-%m-%d}" + (f": {pin.note}" if pin.note else "")
        known = {v.config: r.time_us for v, r in ranking.times(self.own).items()}
        return self.choice(
            pin.config,
            How.PINNED,
            why,
            expected_us=known.get(pin.config),
            dense_us=self.dense_us(self.workload, self.device),
        )

    def exact(self) -> Choice | None:
        found = self.first_allowed(self.own)
        if found is None:
            return None
        config, time_us = found
        why = f"the fastest of {len(ranking.times(self.own))} variants measured on this very workload"
        choice = self.choice(
            config, How.EXACT, why, expected_us=time_us, dense_us=self.dense_us(self.workload, self.device)
        )
        return replace(choice, predicted_us=predicted_us(self.workload, self.device, self.database, config))

    def bucket(self, near: Sequence[Neighbour]) -> Choice | None:
        for neighbour in near:
            if neighbour.distance > BUCKET_RADIUS:
                return None
            if neighbour.workload.problem != self.problem or neighbour.device.key != self.device.key:
                continue
            measured = self.database.measurements(neighbour.workload, neighbour.device)
            found = self.first_allowed(measured)
            if found is not None:
                config, time_us = found
                newer = self.untried(measured, config)
                if newer is not None:
                    return newer
                why = "the fastest on a matrix of the same size with nearly the same row lengths"
                return self.estimated(
                    config, How.BUCKET, why, time_us * self.work_ratio(neighbour), [neighbour]
                )
        return None

    def nearest(self, near: Sequence[Neighbour]) -> Choice | None:
        asked = [n for n in near if n.distance <= FARTHEST][:NEIGHBOURS]
        records = [(n, self.database.measurements(n.workload, n.device)) for n in asked]
        predictions = predict(self.workload, self.device, records, self.is_allowed)
        if not predictions:
            return None
        first = predictions[0]
        newer = self.untried([m for _, measured in records for m in measured], first.config)
        if newer is not None:
            return newer
        cost = self.problem.cost(self.workload.features.nnz)
        expected_us = first.seconds_per_flop * 1e6 * max(1, cost.flop)
        from_memory = max(0, cost.bytes - self.device.l2_bytes)  # the rest may lie in L2
        least_us = self.device.expected_rates.least_us(cost.flop, from_memory, self.problem.dtype)
        if expected_us < least_us:
            return self.default(
                f"a rule of thumb: by what is near it would take {microseconds(expected_us)}, and this device cannot "
                f"do it in less than {microseconds(least_us)}"
            )
        percent = (first.slowdown - 1) * 100
        if len(asked) == 1:
            why = f"on the nearest measured workload it is within {percent:.0f} % of the best"
        else:
            why = (
                f"on the {len(asked)} nearest measured workloads it is within {percent:.0f} % of the best, "
                "on average weighted by nearness"
            )
        return self.estimated(first.config, How.NEAREST, why, expected_us, asked)

    def predicted(self, near: Sequence[Neighbour]) -> Choice | None:
        asked = [n for n in near if n.distance <= FARTHEST]
        found = fastest_predicted(self.workload, self.device, self.database, asked, self.is_allowed)
        if found is None:
            return None
        prediction, why = found
        choice = self.choice(prediction.variant.config, How.PREDICTED, why, dense_us=None)
        return replace(choice, predicted_us=prediction.predicted_us)

    def untried(self, measured: Sequence[Measurement], best: Config) -> Choice | None:
        """The guess of a family that these measurements do not know and that should be much faster than all they do.

        Otherwise a database would keep every family from being used that is newer than it.
        """
        features, tried = self.workload.features, {m.variant.family for m in measured}
        promising = by_predicted_time(self.problem, features, self.device)
        known = min(self.predicted_us(family) for family in promising if family.name in tried)
        for family in promising:
            gain = known / self.predicted_us(family)
            if not gain >= WORTH_UNTRIED:  # nor where no time is finite
                return None
            config = family.guess(self.problem, features, self.device)
            if family.name not in tried and self.is_allowed(config):
                why = (
                    f"a rule of thumb: {family.name} was tried on nothing near, and should be some {gain:.1f} × "
                    f"faster than what was, of which {best.family_name} is the fastest"
                )
                return self.choice(config, How.DEFAULT, why, dense_us=None)
        return None

    def default(self, why: str) -> Choice:
        reasons = []
        for family in by_predicted_time(self.problem, self.workload.features, self.device):
            guess = family.guess(self.problem, self.workload.features, self.device)
            try:
                family.require_suited(self.problem, self.workload.features, guess, self.device)
            except ConfigError as error:
                reasons.append(str(error))
                continue
            if self.deterministic and not family.is_deterministic(self.problem, guess):
                reasons.append(f"{family.name} need not give equal bits on every call")
                continue
            if guess in self.suspects:
                reasons.append(f"{family.name}'s guess failed on this workload")
                continue
            return self.choice(guess, How.DEFAULT, why, dense_us=None)
        raise NoVariantError(
            f"no family has a variant for {self.problem} on {self.device.name}: " + "; ".join(reasons)
        )

    # --- what they share ---------------------------------------------------------------------------------

    def predicted_us(self, family: AnyFamily) -> float:
        return family.predicted_us(self.problem, self.workload.features, self.device)

    def is_allowed(self, config: Config) -> bool:
        if config in self.suspects or not is_of_operator(config, self.problem.operator):
            return False
        if self.deterministic and not family_of(config).is_deterministic(self.problem, config):
            return False
        return family_of(config).suits(self.problem, self.workload.features, config, self.device)

    def first_allowed(self, measurements: Sequence[Measurement]) -> tuple[Config, float] | None:
        """The best-ranked config that may run here, and its time there in µs."""
        for found in ranking.ranked(measurements):
            if self.is_allowed(found.variant.config):
                return found.variant.config, found.time_us
        return None

    def choice(
        self,
        config: Config,
        how: How,
        why: str,
        *,
        expected_us: float | None = None,
        dense_us: float | None,
        neighbours: Sequence[Neighbour] = (),
    ) -> Choice:
        predicted_us = self.predicted_us(family_of(config)) if how is How.DEFAULT else None
        return Choice(
            self.problem,
            config,
            how,
            why,
            expected_us=expected_us,
            predicted_us=predicted_us,
            dense_us=dense_us,
            neighbours=tuple(neighbours),
        )

    def estimated(
        self, config: Config, how: How, why: str, expected_us: float, neighbours: Sequence[Neighbour]
    ) -> Choice:
        dense = self.dense_estimate(neighbours)
        return self.choice(config, how, why, expected_us=expected_us, dense_us=dense, neighbours=neighbours)

    def dense_estimate(self, neighbours: Sequence[Neighbour]) -> float | None:
        """A dense product depends on the sizes alone, so that neighbours of equal ones are asked once."""
        known: dict[Problem, float] = {}
        for n in neighbours:
            if n.workload.problem not in known:
                there = self.dense_us(n.workload, n.device)
                if there is not None:
                    known[n.workload.problem] = there
        if isinstance(self.problem, SpmmProblem) and is_modelled(self.problem, self.device):
            return dense_time_us(self.problem, self.device, known_products(known))
        for problem, there in known.items():  # the nearest one that knows
            return there * _volume(self.problem) / _volume(problem)
        return None

    def dense_us(self, workload: Workload, device: Device) -> float | None:
        times = [
            b.sample.median_us for b in self.database.baselines(workload, device) if b.contender == DENSE
        ]
        return times[-1] if times else None

    def work_ratio(self, neighbour: Neighbour) -> float:
        there = neighbour.workload.features.nnz
        return (self.workload.features.nnz + 1) / (there + 1)


def _not_near(near: Sequence[Neighbour]) -> str:
    """Why a rule of thumb is used."""
    reason = "a rule of thumb: nothing measured is near"
    if not near or near[0].distance <= FARTHEST:
        return reason
    return f"{reason} (the nearest is {near[0].distance:.1f} octaves away; up to {FARTHEST:g} are asked)"


def _sizes(problem: Problem) -> str:
    items = f"{problem.batch} items of " if problem.batch > 1 else ""
    return items + " × ".join(map(str, problem.sizes.values()))


def _volume(problem: Problem) -> float:
    return float(problem.batch * math.prod(max(1, size) for size in problem.sizes.values()))
