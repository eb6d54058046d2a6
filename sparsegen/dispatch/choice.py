"""Choice of the variant that runs, from a problem and a matrix's features: measured, inferred, or a heuristic.

The sources, in order: what is pinned; the same problem and sparsity pattern, unless few variants were tried there, none
beats the dense product, and a family that was not tried should be clearly faster; a workload of equal sizes and close
features, unless something else should be clearly faster by the cost model and all that is near; what that says; the
family's heuristic. What was predicted for this workload and device (`sparsegen tune --for`) comes before what is near
on other devices, and after this one's: it is trusted less than what was measured here, and the first `sparsegen tune`
on the device measures it. Dispatch never tunes. A config from a database was checked when it was read; whether it may
run here, its family's constraints say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.dense_or_sparse import (
    Source,
    Time,
    estimated_dense,
    has_dense,
    measured_dense_us,
    probed_as,
    require_dense,
    zeroing_us,
)
from sparsegen.dispatch.dense_time import known_products
from sparsegen.dispatch.evidence import suspects
from sparsegen.dispatch.kept import Kept, speed
from sparsegen.dispatch.neighbours import NEIGHBOURS, Prediction, predict
from sparsegen.dispatch.options import DEFAULTS, Dense, DispatchOptions, OnMiss
from sparsegen.dispatch.places import Neighbour
from sparsegen.dispatch.predicted import fastest_predicted, predicted_us
from sparsegen.dispatch.untried import FEW_TRIED, untried
from sparsegen.errors import ConfigError, NoVariantError, PinsError
from sparsegen.kernels import by_predicted_time, family_of, is_of_operator
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layer import Layer, with_rates
from sparsegen.tuning_db.records import Called, Measurement, Probe, Task, Workload
from sparsegen.tuning_db.remembered import Remembered

BUCKET_RADIUS = 0.15  # octaves: about a tenth more nonzeros
# Octaves beyond which a workload has no weight (`dispatch.regression.REACH`).
FARTHEST = 3.5
WORTH_ANOTHER = 1.1  # expected gain over a workload of equal sizes and close features
# The least of many estimates is one that is too low: by so much in the mean of 870 products whose shape was left out.
LEAST_OF_MANY = 1.035

_kept: WeakKeyDictionary[Layer, Kept] = WeakKeyDictionary()


def choose(
    workload: Workload, device: Device, database: Layer, options: DispatchOptions = DEFAULTS
) -> Choice:
    """The variant to run for this workload on this device.

    What is pinned runs, whatever was measured (`Layer.rules`).

    An answer is kept in memory for as long as nothing is written through the same ``database`` object; what
    other processes write is seen after `forget`.

    Raises:
        NoVariantError: nothing may run, or nothing was measured and a miss is to be an error.
        PinsError: a pinned variant may not run here.
        ConfigError: the dense product is always to run, of a problem that none computes.
    """
    if options.dense is Dense.ALWAYS:
        require_dense(workload.problem)
    kept, generation = _kept.get(database), database.generation
    if kept is None or kept.generation != generation:
        kept = _kept[database] = Kept(generation)
    equal_bits = database.rules.deterministic if options.deterministic is None else options.deterministic
    question = (workload.problem, workload.fingerprint, device, speed(device), options, equal_bits)
    choice = kept.choices.get(question)
    if choice is None:
        asked = options._replace(deterministic=equal_bits)
        choice = _Search(workload, device, database, kept, asked).choose()
        kept.choices[question] = choice
    return choice


def forget(database: Layer) -> None:
    """Drop the answers kept for this database, so that other processes' results are seen."""
    _kept.pop(database, None)


class _Search:
    """One look-up that was not in memory."""

    def __init__(
        self, workload: Workload, device: Device, database: Layer, kept: Kept, options: DispatchOptions
    ) -> None:
        database = Remembered(database, kept.answers)
        self.workload, self.database, self.kept = workload, database, kept
        self.options, self.kind, self.deterministic = options, options.l2, options.deterministic
        self.device = with_rates(device, database)
        self.problem = workload.problem
        self.own = database.measurements(workload, device)
        # Whatever a neighbour says, it failed here.
        self.suspects = suspects(self.own) | self.failed_where_used()

    def choose(self) -> Choice:
        pinned = self.pinned()
        if pinned is not None:  # the user wants this variant, whatever is faster
            return self.beside_dense(replace(pinned, policy=Dense.NEVER), [])
        found = self.exact()
        near: list[Neighbour] = []
        if found is None or self.own_dense_us is None:
            near = self.kept.nearest(self.workload, self.device, self.database)
        if found is None:
            found = self.bucket(near)
        if found is None:
            found = self.on_miss(near)
        return self.beside_dense(replace(found, policy=self.options.dense), near)

    def on_miss(self, near: Sequence[Neighbour]) -> Choice:
        miss = self.options.on_miss
        if miss is OnMiss.ERROR:
            raise NoVariantError(
                f"nothing was measured for {self.problem} on this pattern and {self.device.name}; "
                "run `sparsegen tune`, or choose another on_miss"
            )
        chosen = None if miss is OnMiss.DEFAULT else self.predicted(near) or self.nearest(near)
        return chosen or self.default("a heuristic" if miss is OnMiss.DEFAULT else _not_near(near))

    # --- the five sources --------------------------------------------------------------------------------

    def pinned(self) -> Choice | None:
        """
        Raises:
            PinsError: a pinned variant may not run here.
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
        known = {v.config: r.time_us for v, r in ranking.times(self.own, self.kind).items()}
        return self.choice(pin.config, How.PINNED, why, expected_us=known.get(pin.config))

    def exact(self) -> Choice | None:
        found = self.first_allowed(self.own)
        if found is None:
            return None
        config, time_us = found
        count = len(ranking.times(self.own, self.kind))
        if self.is_free and count < FEW_TRIED and not time_us < (self.own_dense_us or 0):
            newer = untried(
                self.workload, self.device, self.own, config, time_us, self.probes, self.is_allowed
            )
            if newer is not None:
                return self.choice(newer.config, How.DEFAULT, newer.why)
        why = f"the fastest of {count} variants measured on this very workload"
        choice = self.choice(config, How.EXACT, why, expected_us=time_us)
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
                expected_us = time_us * self.work_ratio(neighbour)
                predictions = self.predictions(near) if self.is_free else []
                if predictions and predictions[0].expected_us * WORTH_ANOTHER < expected_us:
                    return None
                why = "the fastest on a matrix of the same size with nearly the same row lengths"
                return self.choice(config, How.BUCKET, why, expected_us=expected_us, neighbours=[neighbour])
        return None

    def nearest(self, near: Sequence[Neighbour]) -> Choice | None:
        predictions = self.predictions(near)
        if not predictions:
            return None
        config, expected_us = predictions[0].config, predictions[0].expected_us
        if len(predictions) > 1:
            expected_us *= LEAST_OF_MANY
        cost = self.problem.cost(self.workload.features.nnz)
        from_memory = max(0, cost.bytes - self.device.l2_bytes)  # the rest may lie in L2
        least_us = self.device.expected_rates.least_us(cost.flop, from_memory, self.problem.multiplied)
        if expected_us < least_us:
            return self.default(
                f"a heuristic: by what is near it would take {microseconds(expected_us)}, and this device cannot "
                f"do it in less than {microseconds(least_us)}"
            )
        asked = near_enough(near, self.device)
        there = (
            f"the {len(asked)} nearest measured workloads"
            if len(asked) > 1
            else "the nearest measured workload"
        )
        why = f"of {len(predictions)} variants it should be the fastest, by the cost model and {there}"
        return self.choice(config, How.NEAREST, why, expected_us=expected_us, neighbours=asked)

    def predictions(self, near: Sequence[Neighbour]) -> list[Prediction]:
        """Predictions of the cost model and the nearest measured workloads, the best first; computed once."""

        def make() -> list[Prediction]:
            asked = [
                self.kept.evidence(n, self.device, self.database) for n in near_enough(near, self.device)
            ]
            return predict(self.workload, self.device, asked, self.is_allowed)

        return self.kept.predictions(self.workload, self.device, self.deterministic, self.suspects, make)

    def predicted(self, near: Sequence[Neighbour]) -> Choice | None:
        asked = [n for n in near if n.distance <= FARTHEST]
        found = fastest_predicted(self.workload, self.device, self.database, asked, self.is_allowed)
        if found is None:
            return None
        prediction, why = found
        choice = self.choice(prediction.variant.config, How.PREDICTED, why)
        return replace(choice, predicted_us=prediction.predicted_us)

    def default(self, why: str) -> Choice:
        left_out: dict[str, list[str]] = {}  # families by what keeps them from it
        for family in by_predicted_time(self.problem, self.workload.features, self.device):
            try:
                heuristic = self.heuristic(family)
            except ConfigError as error:
                left_out.setdefault(f"its heuristic fails: {error}", []).append(family.name)
                continue
            why_not = self.why_not(family, heuristic)
            if why_not is None:
                return self.choice(heuristic, How.DEFAULT, why)
            left_out.setdefault(why_not, []).append(family.name)
        reasons = "; ".join(f"{', '.join(names)} ({why_not})" for why_not, names in left_out.items())
        raise NoVariantError(f"no family has a variant for {self.problem} on {self.device.name}: {reasons}")

    def heuristic(self, family: AnyFamily) -> Config:
        """The family's heuristic config; where equal bits are wanted that it need not give, one that does."""
        asked = self.problem, self.workload.features, self.device
        found: Config = family.heuristic(*asked)
        if not self.deterministic or family.is_deterministic(self.problem, found):
            return found
        others = (c for c in family.alternatives(*asked) if family.is_deterministic(self.problem, c))
        return next(others, found)

    def why_not(self, family: AnyFamily, config: Config) -> str | None:
        """Returns why a config may not run untried, in words; None if it may."""
        broken = family.broken_constraints(self.problem, config, self.device) or family.broken_requirements(
            self.problem, self.workload.features, config
        )
        if broken:
            return f"it must hold: {', and '.join(broken)}"
        if self.deterministic and not family.is_deterministic(self.problem, config):
            return "need not give equal bits on every call"
        return "its heuristic config failed on this workload" if config in self.suspects else None

    # --- what they share ---------------------------------------------------------------------------------

    def predicted_us(self, family: AnyFamily) -> float:
        return family.predicted_us(self.problem, self.workload.features, self.device)

    @property
    def is_free(self) -> bool:
        """True if an unmeasured config may be used."""
        return self.options.on_miss in (OnMiss.NEAREST, OnMiss.DEFAULT)

    def is_allowed(self, config: Config) -> bool:
        if config in self.suspects or not is_of_operator(config, self.problem.operator):
            return False
        family = family_of(config)
        if self.deterministic and not family.is_deterministic(self.problem, config):
            return False
        return self.kept.is_valid(self.problem, config, self.device) and family.takes_matrix(
            self.problem, self.workload.features, config
        )

    def first_allowed(self, measurements: Sequence[Measurement]) -> tuple[Config, float] | None:
        """The best-ranked config that may run here, and its time there in µs."""
        for found in ranking.ranked(measurements, self.kind):
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
        neighbours: Sequence[Neighbour] = (),
    ) -> Choice:
        # The emulator's time has nothing to do with what kernels do: there, predictions only order families.
        is_told = how is How.DEFAULT and self.device.backend != "emulator"
        predicted_us = self.predicted_us(family_of(config)) if is_told else None
        return Choice(
            self.problem,
            config,
            how,
            why,
            expected_us=expected_us,
            predicted_us=predicted_us,
            neighbours=tuple(neighbours),
        )

    def failed_where_used(self) -> set[Config]:
        """Configs that failed a check on such a device, and were not right on this workload since."""
        good = {m.variant.config: m.measured_at for m in ranking.dispatchable(self.own)}
        return {
            check.variant.config
            for check in self.database.failed_checks(self.device)
            if check.workload.problem.kind == self.problem.kind
            and not (check.variant.config in good and good[check.variant.config] > check.measured_at)
        }

    # --- the dense product -------------------------------------------------------------------------------

    def beside_dense(self, choice: Choice, near: Sequence[Neighbour]) -> Choice:
        """The choice with what is known of the dense product, and of the variant beside it; of layers, too."""
        choice = replace(choice, raced=self.raced(choice.config))
        if not has_dense(self.problem):
            return choice
        probes = self.probes
        own = next((p for p in reversed(probes) if p.variant.config == choice.config), None)
        if own is not None:  # both in turn, which compares better than times of different days
            return replace(
                choice, probed_us=own.sparse_us, dense=Time.of_dense(own.dense_us, Source.MEASURED)
            )
        us = self.own_dense_us
        if us is None and probes:
            us = probes[-1].dense_us
        if us is not None:
            beside = zeroing_us(self.problem, self.device)
            source = Source.NEAR if beside else Source.MEASURED
            return replace(choice, dense=Time.of_dense(us + beside, source))
        return replace(choice, dense=self.estimated_dense(choice.neighbours or near[:NEIGHBOURS]))

    def estimated_dense(self, neighbours: Sequence[Neighbour]) -> Time | None:
        """A dense product depends on the sizes alone, so that neighbours of equal ones are asked once."""
        known: dict[Problem, float] = {}
        for n in neighbours:
            if n.workload.problem not in known:
                there = measured_dense_us(self.database.baselines(n.workload, n.device), self.kind)
                if there is not None:
                    known[n.workload.problem] = there
        if not self.problem.has_pattern:  # a look-up of spmm imports no masks
            from sparsegen.dispatch.padded_dense import estimated_dense_or_padded

            return estimated_dense_or_padded(self.problem, self.device, known_products(known))
        return estimated_dense(self.problem, self.device, known_products(known))

    @cached_property
    def probes(self) -> list[Probe]:
        """Probes of this workload's product that count, the newest last."""
        wanted = probed_as(self.kind), Task.PRODUCT, Called.DEVICE
        return [p for p in self.all_probes if (p.measured_as, p.task, p.called) == wanted]

    @cached_property
    def all_probes(self) -> list[Probe]:
        return self.database.probes(self.workload, self.device)

    def raced(self, config: Config) -> tuple[Probe, ...]:
        """Returns the newest probe of each task that ran this config, in each context and for each way of being called;
        those of prepared products are told with their dense times.
        """
        made = {(p.task, p.context, p.called): p for p in self.all_probes if p.variant.config == config}
        # Functions on tensors ask for those of masks.
        told = has_dense(self.problem) and self.problem.has_pattern
        return tuple(p for p in made.values() if not (told and p.task is Task.PRODUCT))

    @cached_property
    def own_dense_us(self) -> float | None:
        return measured_dense_us(self.database.baselines(self.workload, self.device), self.kind)

    def work_ratio(self, neighbour: Neighbour) -> float:
        there = neighbour.workload.features.nnz
        return (self.workload.features.nnz + 1) / (there + 1)


def near_enough(near: Sequence[Neighbour], device: Device) -> list[Neighbour]:
    """Returns the neighbours that are asked: of this device all before any of another one."""
    listed = (n for n in near if n.distance <= FARTHEST)
    return sorted(listed, key=lambda n: n.device.key != device.key)[:NEIGHBOURS]


def _not_near(near: Sequence[Neighbour]) -> str:
    """Explains why a heuristic is used."""
    reason = "a heuristic: nothing measured is near"
    if not near or near[0].distance <= FARTHEST:
        return reason
    return f"{reason} (the nearest is {near[0].distance:.1f} octaves away; up to {FARTHEST:g} are asked)"
