"""Searches in Optuna's terms: configs as parameters, measurements as trials with attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from sparsegen.kernels.config import Config
from sparsegen.tuning_db.records import Measurement

FAMILY = "family"


class Parameters:
    """Configs as Optuna's parameters, and back: the family, and its tunables under the family's name.

    A trial names the tunables of its own family alone: the space is conditional.

    Args:
        kinds: the config types of the families that occur.
    """

    def __init__(self, kinds: Iterable[type[Config]]) -> None:
        self._kinds = {kind.declared_by: kind for kind in kinds}
        self.distributions: dict[str, BaseDistribution] = {FAMILY: CategoricalDistribution(list(self._kinds))}
        for name, kind in self._kinds.items():
            for t in kind.tunables():
                self.distributions[f"{name}.{t.name}"] = CategoricalDistribution(t.choices)

    def of(self, config: Config) -> dict[str, Any]:
        """A config's parameters."""
        name, values = config.key
        return {FAMILY: name} | {f"{name}.{tunable}": value for tunable, value in values}

    def suggested(self, trial: optuna.Trial) -> Config:
        """The config that a trial's sampler proposes."""
        name = trial.suggest_categorical(FAMILY, list(self._kinds))
        kind = self._kinds[name]
        return kind(
            **{t.name: trial.suggest_categorical(f"{name}.{t.name}", t.choices) for t in kind.tunables()}
        )

    def config(self, parameters: Mapping[str, Any]) -> Config | None:
        """The config of these parameters; None where they do not name one: a trial that was never begun."""
        kind = self._kinds.get(parameters.get(FAMILY, ""))
        names = [] if kind is None else [f"{kind.declared_by}.{t.name}" for t in kind.tunables()]
        if kind is None or not parameters.keys() >= set(names):
            return None
        return kind(**{name.partition(".")[2]: parameters[name] for name in names})

    def trial(self, m: Measurement) -> FrozenTrial:
        """A measurement as a finished trial: its time in µs, or failed."""
        parameters = self.of(m.variant.config)
        trial = optuna.trial.create_trial(
            params=parameters,
            distributions={name: self.distributions[name] for name in parameters},
            user_attrs=attributes(m),
            state=state(m),
            value=time_us(m),
        )
        trial.datetime_start = trial.datetime_complete = m.measured_at.astimezone().replace(tzinfo=None)
        return trial


def time_us(m: Measurement) -> float | None:
    """Returns the median time, which a search minimises; None for a variant that failed."""
    return None if m.sample is None else m.sample.median_us


def state(m: Measurement) -> TrialState:
    """Returns the state of a trial."""
    return TrialState.FAIL if m.sample is None else TrialState.COMPLETE


def attributes(m: Measurement) -> dict[str, Any]:
    """Returns a trial's attributes, its variant's facts as JSON values; unknown ones are left out."""
    facts = {
        "family": m.variant.family,
        "config": m.variant.config.settings,
        "outcome": m.outcome.value,
        "time_us": time_us(m),
        "registers": m.registers,
        "spill_bytes": m.spill_bytes,
        "source_digest": m.variant.source_digest,
        "worst_error": m.worst_error,
        "compile_seconds": m.compile_seconds,
        "measured_at": m.measured_at.isoformat(),
        "reason": m.reason or None,
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
