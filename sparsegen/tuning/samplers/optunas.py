"""Optuna's own samplers over a list of candidates.

They draw from a product of choices, most of which is not valid. What they draw is moved to the most similar valid,
unseen candidate (`sparsegen.kernels.similarity`), and the trial says what was tried in fact: so they learn from valid
points alone and repeat none. Penalties or pruning instead would cost them trials, and one ordered index would hide from
them which candidates are alike.

They see the trials through a study of their own, in memory, in which

- a tunable whose choices are numbers is an integer, the place among those that occur, so that near values are near;
- TPE has the family and this family's tunables alone, as groups (one Parzen estimator for each family);
- the Gaussian process, which knows no conditional spaces, has all tunables of all families, those of other families at
  their first value;
- times are logarithms, and failed variants are left out, as Optuna's samplers do.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from sparsegen.kernels.config import Config, Value
from sparsegen.kernels.similarity import differences, is_ordered
from sparsegen.tuning.samplers.listed import Known, ListSampler, Mask
from sparsegen.tuning.samplers.study import FAMILY
from sparsegen.tuning.space import Space

SEEDS = 2**32  # NumPy's older generators take no larger ones


class UniformSampler(ListSampler):
    """Every unseen candidate is as likely as any other, drawn by Optuna's `RandomSampler`."""

    def __init__(self, space: Space, first: Sequence[Config] = (), seed: int = 0) -> None:
        super().__init__(space, first)
        self._seed = seed

    def propose(self, study: optuna.Study, trial: FrozenTrial, known: Sequence[Known], unseen: Mask) -> int:
        places = np.flatnonzero(unseen)
        drawn = RandomSampler(seed=(self._seed + trial.number) % SEEDS).sample_independent(
            study, trial, "candidate", IntDistribution(0, len(places) - 1)
        )
        return int(places[drawn])


@dataclass(frozen=True, slots=True)
class Axis:
    """A tunable as Optuna's sampler sees it: the values that occur among the candidates, more than one."""

    tunable: str
    values: tuple[Value, ...]
    is_ordered: bool

    @property
    def distribution(self) -> BaseDistribution:
        return (
            IntDistribution(0, len(self.values) - 1)
            if self.is_ordered
            else CategoricalDistribution(self.values)
        )

    def encoded(self, value: Value) -> Value:
        return self.values.index(value) if self.is_ordered else value

    def drawn(self, trial: optuna.Trial, name: str) -> Value:
        """The value that a trial's sampler proposes."""
        if self.is_ordered:
            return self.values[trial.suggest_int(name, 0, len(self.values) - 1)]
        return cast(Value, trial.suggest_categorical(name, self.values))


class DrawingSampler(ListSampler):
    """Has a sampler of Optuna's draw from the product of choices; see the module."""

    conditional: ClassVar[bool]  # true if trials have the tunables of their own family alone

    def __init__(self, space: Space, first: Sequence[Config] = (), seed: int = 0) -> None:
        super().__init__(space, first)
        self._seed = seed
        self._axes = {f.name: _axes(space, f.config_type) for f in space.families}
        self._mirror = optuna.create_study()
        self._mirrored: dict[int, int] = {}  # a trial's number here and there
        self._running: set[int] = set()  # trials, by their number here

    @abstractmethod
    def drawing(self, seed: int) -> BaseSampler:
        """Optuna's sampler, made for one draw: so that it depends on the trials and the seed alone."""

    def propose(self, study: optuna.Study, trial: FrozenTrial, known: Sequence[Known], unseen: Mask) -> int:
        for k in known:
            self._see(k)
        seed = (self._seed + trial.number) % SEEDS
        drawn = self._drawn(seed)
        places = np.flatnonzero(unseen)
        same = [n for n in places if self.space.candidates[n].family_name == drawn.family_name]
        near = np.array(same or places)
        apart = differences([drawn], [self.space.candidates[n] for n in near])[0]
        return int(np.random.default_rng(seed).choice(near[apart == apart.min()]))

    def _see(self, k: Known) -> None:
        if k.trial not in self._mirrored:
            if k.log_time == np.inf:
                return
            self._mirrored[k.trial] = len(self._mirror.get_trials(deepcopy=False))
            parameters = self._encoded(self.space.candidates[k.candidate])
            self._mirror.add_trial(
                optuna.trial.create_trial(
                    params=parameters,
                    distributions={name: self._distribution(name) for name in parameters},
                    state=TrialState.RUNNING if np.isnan(k.log_time) else TrialState.COMPLETE,
                    value=None if np.isnan(k.log_time) else k.log_time,
                )
            )
            if np.isnan(k.log_time):
                self._running.add(k.trial)
        elif k.trial in self._running and not np.isnan(k.log_time):
            self._running.remove(k.trial)
            number = self._mirrored[k.trial]
            if np.isfinite(k.log_time):
                self._mirror.tell(number, k.log_time)
            else:
                self._mirror.tell(number, state=TrialState.FAIL)

    def _encoded(self, config: Config) -> dict[str, Value]:
        found: dict[str, Value] = {FAMILY: config.family_name}
        for name, axes in self._axes.items():
            if name == config.family_name:
                found |= {f"{name}.{a.tunable}": a.encoded(getattr(config, a.tunable)) for a in axes}
            elif not self.conditional:
                found |= {f"{name}.{a.tunable}": a.encoded(a.values[0]) for a in axes}
        return found

    def _distribution(self, parameter: str) -> BaseDistribution:
        if parameter == FAMILY:
            return CategoricalDistribution(self.space.family_names)
        family, _, tunable = parameter.partition(".")
        return next(a.distribution for a in self._axes[family] if a.tunable == tunable)

    def _drawn(self, seed: int) -> Config:
        """A point of the product, valid or not. The trial that drew it is no measurement, and fails."""
        self._mirror.sampler = self.drawing(seed)
        trial = self._mirror.ask()
        family = trial.suggest_categorical(FAMILY, self.space.family_names)
        drawn: dict[str, Value] = {}
        for name, axes in self._axes.items():
            if name != family and self.conditional:
                continue
            for a in axes:
                value = a.drawn(trial, f"{name}.{a.tunable}")
                if name == family:
                    drawn[a.tunable] = value
        self._mirror.tell(trial, state=TrialState.FAIL)
        like = next(c for c in self.space.candidates if c.family_name == family)
        return type(like).of_choices((like.to_dict() | drawn).items())


class TpeSampler(DrawingSampler):
    """Optuna's tree-structured Parzen estimator, multivariate, with the lies about running trials that it is known for.

    Bergstra et al., Algorithms for Hyper-Parameter Optimization, NeurIPS 2011; Watanabe, arXiv 2304.11127.
    """

    conditional = True

    def drawing(self, seed: int) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # warning about `group`
            return TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


class GpSampler(DrawingSampler):
    """Optuna's Gaussian process with expected improvement, its length scales fitted anew for each proposal."""

    conditional = False

    def drawing(self, seed: int) -> BaseSampler:
        return GPSampler(seed=seed, warn_independent_sampling=False)


def _axes(space: Space, kind: type[Config]) -> tuple[Axis, ...]:
    mine = [c for c in space.candidates if type(c) is kind]
    found = []
    for t in kind.tunables():
        occurring = {getattr(c, t.name) for c in mine}
        ordered = is_ordered(t)
        values = sorted(occurring) if ordered else [v for v in t.choices if v in occurring]
        if len(values) > 1:
            found.append(Axis(t.name, tuple(values), ordered))
    return tuple(found)
