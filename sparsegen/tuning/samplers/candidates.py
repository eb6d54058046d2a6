"""Our own sampler: a Gaussian process over the list of candidates (`sparsegen.tuning.samplers.surrogate`)."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.trial import FrozenTrial

from sparsegen.kernels.config import Config
from sparsegen.tuning.samplers.listed import Known, ListSampler, Mask
from sparsegen.tuning.samplers.surrogate import Surrogate
from sparsegen.tuning.space import Space


class CandidateSampler(ListSampler):
    """Proposes what the surrogate likes best; it draws nothing at random.

    The surrogate is fed with the trials in the order of their numbers. It is kept from one proposal to the next, and
    made anew for a study whose trials are not those that it knows.
    """

    def __init__(self, space: Space, first: Sequence[Config] = ()) -> None:
        super().__init__(space, first)
        self._surrogate = self._new()
        self._learnt: dict[int, Known] = {}  # by the trial's number

    def _new(self) -> Surrogate:
        return Surrogate(self.space.candidates, self.space.expected_us)

    def propose(self, study: optuna.Study, trial: FrozenTrial, known: Sequence[Known], unseen: Mask) -> int:
        order = list(dict.fromkeys(k.candidate for k in known))
        if self._surrogate.known != order[: len(self._surrogate.known)]:
            self._surrogate, self._learnt = self._new(), {}
        for k in known:
            if self._learnt.get(k.trial) != k:  # also where it was pending: NaN equals nothing
                self._surrogate.learn(k.candidate, k.log_time)
                self._learnt[k.trial] = k
        return self._surrogate.propose(unseen)
