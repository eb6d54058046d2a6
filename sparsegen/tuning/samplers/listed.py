"""Base class of samplers over a list of candidates: what is known of each, and the order of the first ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from sparsegen.kernels.config import Config
from sparsegen.tuning.samplers.study import Parameters
from sparsegen.tuning.space import Space

Mask = npt.NDArray[np.bool_]
SHORTEST_US = 1e-3  # least time, as its logarithm is taken


@dataclass(frozen=True, slots=True)
class Known:
    """A trial of a candidate.

    Attributes:
        trial: its number in the study.
        candidate: its place in the list.
        log_time: log of microseconds; NaN while it runs, infinite if the variant failed.
    """

    trial: int
    candidate: int
    log_time: float


class ListSampler(BaseSampler):
    """Proposes valid, unseen candidates: the given first ones in order, then what a subclass likes best.

    Optuna's own samplers draw from the product of all choices; most of that product breaks a constraint, and repeats
    cost trials.

    Args:
        space: the candidates.
        first: candidates to propose before any other, the most promising first; all of them in the space.
    """

    def __init__(self, space: Space, first: Sequence[Config] = ()) -> None:
        self.space = space
        self.parameters = Parameters(f.config_type for f in space.families)
        self._number = {config: i for i, config in enumerate(space.candidates)}
        self._first = [self._number[config] for config in first]
        self._candidate_of: dict[int, int] = {}  # by the trial's number, once all its parameters are there
        self._ended: dict[int, tuple[FrozenTrial, Known]] = {}

    @abstractmethod
    def propose(self, study: optuna.Study, trial: FrozenTrial, known: Sequence[Known], unseen: Mask) -> int:
        """The next candidate's place in the list.

        Args:
            trial: the trial for it.
            known: the other trials of this list's candidates, by their numbers.
            unseen: bool [candidates], at least one true.
        """

    def prefer(self, candidates: Iterable[Config]) -> None:
        """Propose these before any other, in their order; those that are not in the space are left out."""
        wanted = [self._number[c] for c in candidates if c in self._number]
        self._first = [*wanted, *(number for number in self._first if number not in wanted)]

    def known(self, study: optuna.Study) -> list[Known]:
        """The trials of candidates, in the order of their numbers."""
        found = []
        for trial in study.get_trials(deepcopy=False):
            ended = self._ended.get(trial.number)
            if ended is not None and ended[0] is trial:  # nothing changes any more
                found.append(ended[1])
                continue
            candidate = self._candidate_of.get(trial.number)
            if candidate is None:
                config = self.parameters.config(trial.params)
                if config is None or config not in self._number:
                    continue
                candidate = self._candidate_of[trial.number] = self._number[config]
            found.append(Known(trial.number, candidate, _log_time(trial)))
            if trial.state.is_finished():
                self._ended[trial.number] = trial, found[-1]
        return found

    def unseen(self, known: Iterable[Known]) -> Mask:
        """The candidates without a known trial, bool [candidates]."""
        mask = np.ones(len(self.space.candidates), dtype=np.bool_)
        mask[[k.candidate for k in known]] = False
        return mask

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.parameters.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        known = [k for k in self.known(study) if k.trial != trial.number]
        unseen = self.unseen(known)
        number = next((n for n in self._first if unseen[n]), None)
        if number is None:
            number = self.propose(study, trial, known, unseen)
        return self.parameters.of(self.space.candidates[number])

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        raise AssertionError(f"{param_name} is no parameter of this space")


def _log_time(trial: FrozenTrial) -> float:
    if not trial.state.is_finished():
        return math.nan
    if trial.state is not TrialState.COMPLETE or trial.value is None:
        return math.inf
    return math.log(max(trial.value, SHORTEST_US))
