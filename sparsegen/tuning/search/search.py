"""The search: an Optuna study over the valid candidates, asked and told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import optuna

from sparsegen.kernels.config import Config
from sparsegen.tuning import samplers
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning.samplers.study import attributes, state, time_us
from sparsegen.tuning.space import Space
from sparsegen.tuning_db.records import Measurement


class Search:
    """Proposes candidates. Several may be asked for before the first is told.

    The study is all that the search knows: the sampler learns from its trials, which carry what was found out of each
    variant as attributes (`sparsegen.tuning.samplers.study.attributes`).

    Args:
        space: the candidates.
        first: candidates to try before any other, the most promising first; all of them in the space.
        sampler: chooses among the candidates.
        seed: seed of samplers that draw.
        study: a study to continue, such as one that a storage kept; by default a new one in memory.

    Raises:
        PackageMissingError: the sampler needs a package that is not installed.
    """

    def __init__(
        self,
        space: Space,
        first: Sequence[Config] = (),
        *,
        sampler: SamplerName = SamplerName.CANDIDATES,
        seed: int = 0,
        study: optuna.Study | None = None,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._sampler = samplers.make(sampler, space, first, seed)
        self._asked: dict[Config, optuna.Trial] = {}
        self.study = study or optuna.create_study()
        self.study.sampler = self._sampler

    @property
    def space(self) -> Space:
        return self._space

    def ask(self) -> Config | None:
        """The next candidate, or None when every one was proposed; never the same twice."""
        if not self._sampler.unseen(self._sampler.known(self.study)).any():
            return None
        trial = self.study.ask()
        candidate = self._sampler.parameters.suggested(trial)
        self._asked[candidate] = trial
        return candidate

    def prefer(self, candidates: Iterable[Config]) -> None:
        """Ask for these next, in their order, as far as they are in the space and were not asked for yet."""
        self._sampler.prefer(candidates)

    def tell(self, m: Measurement) -> None:
        """Records the outcome of a candidate that was asked for."""
        trial = self._asked.pop(m.variant.config)
        for name, fact in attributes(m).items():
            trial.set_user_attr(name, fact)
        self.study.tell(trial, time_us(m), state=state(m))

    def hear(self, m: Measurement) -> None:
        """Records a measurement of an equal search, of a candidate that may not have been asked for here."""
        if m.variant.config in self._asked:
            self.tell(m)
        else:
            self.remember(m)

    def remember(self, m: Measurement) -> None:
        """Records a measurement of an earlier run: its config is known, and not proposed again."""
        self.study.add_trial(self._sampler.parameters.trial(m))
