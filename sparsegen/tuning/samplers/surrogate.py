"""A Gaussian process over configs: what a variant will take, and how sure that is.

The kernel falls exponentially with the difference of two configs (`sparsegen.kernels.similarity`), to a constant within
a family; families share nothing. Rasmussen and Williams, Gaussian Processes for Machine Learning, sections 2.2 and 4.2.
The length scale is fixed: with tens of trials there is too little to fit it to. What the cost model expects of each
config, if that is known, is the mean before anything was measured (section 2.7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import optuna
from optuna.trial import FrozenTrial

from sparsegen.kernels.config import Config
from sparsegen.kernels.similarity import Points
from sparsegen.tuning.samplers.listed import Known, ListSampler, Mask
from sparsegen.tuning.space import Space

Vector = npt.NDArray[np.float64]

DIFFERENCE = 0.2  # fall of the log of the covariance for a difference of 1
FAMILY_VARIANCE = 0.15
NOISE_VARIANCE = 0.02
EXPECTED = 0.7  # fraction of an expected time's log: models tell configs farther apart than they are
# The standard deviations of log times, of expected and of unexpected ones, count as this many trials.
SPREAD, UNEXPECTED_SPREAD, SPREAD_TRIALS = 0.2, 1.0, 3
WORST = 2.0  # standard deviations: cliffs and failures are cut off here, so that they do not hide the rest
EXPLORATION = 2.0  # standard deviations of optimism
LEAST_SHARE = 0.5  # fraction of the proposals that is split evenly: a few bad configs drop no family
# A family of which TRIED configs or more are known, all of them so far (in log time) behind the best, gets none of it.
FAR_BEHIND = np.log(4.0)
TRIED = 2
LEAST_US = 1e-3  # least time, as its logarithm is taken


class Surrogate:
    """A model of log time over a fixed list of candidates.

    The inverse of the Cholesky factor grows by one row for every candidate that is proposed or known, so that a
    proposal costs O(known · candidates) operations.

    Args:
        candidates: the configs, at least one.
        expected_us: predicted time of each of them; empty if nothing is known.
    """

    def __init__(self, candidates: Sequence[Config], expected_us: Sequence[float] = ()) -> None:
        self._points = Points.of(candidates)
        self._expected = _expected(expected_us, len(candidates))
        self._spread = SPREAD if len(expected_us) else UNEXPECTED_SPREAD
        family = self._family = self._points.family
        self._known: list[int] = []
        self._log_times: list[float] = []  # of `_known`; NaN while pending, infinite if it failed
        self._place: dict[int, int] = {}
        self._inverse = np.zeros((64, 64))  # L⁻¹, of the Cholesky factor L of K(known, known)
        self._whitened = np.empty((64, len(family)))  # L⁻¹ K(known, all)
        self._variance = np.full(len(family), 1.0 + FAMILY_VARIANCE)

    def covariance(self, number: int) -> Vector:
        """Prior covariance of one candidate with all, float64 [candidates]."""
        row = np.zeros(len(self._family))
        mine, differing = self._points.differences_from(number)
        row[mine] = np.exp(-DIFFERENCE * differing) + FAMILY_VARIANCE
        return row

    @property
    def known(self) -> list[int]:
        """The candidates that were proposed or told of, in this order."""
        return self._known

    def propose(self, unseen: npt.NDArray[np.bool_]) -> int:
        """The unseen candidate with the lowest optimistic estimate, of a neglected family if there is one.

        Candidates proposed but not yet told count as known, with the time that the others let expect, so that several
        proposals made in a row spread out (Desautels et al., GP-BUCB, JMLR 2014). The estimate depends on what is
        known and on nothing that was believed before.

        Args:
            unseen: bool [candidates], at least one true.
        """
        families = len(np.unique(self._family))
        tried = np.bincount(self._family[self._known], minlength=int(self._family.max()) + 1)
        is_few = (tried < LEAST_SHARE / families * len(self._known)) & ~self._far_behind()
        neglected = unseen & is_few[self._family]
        if neglected.any():
            unseen = neglected
        estimate = self._mean() - EXPLORATION * np.sqrt(np.maximum(self._variance, 0.0))
        return int(np.argmin(np.where(unseen, estimate, np.inf)))

    def expect(self, number: int) -> None:
        """A candidate was proposed: its uncertainty is as good as gone."""
        if number in self._place:
            return
        n = len(self._known)
        if n == len(self._inverse):
            self._inverse = np.pad(self._inverse, ((0, n), (0, n)))
            self._whitened = np.concatenate([self._whitened, np.empty_like(self._whitened)])
        past = self._whitened[:n]
        row, entries = self.covariance(number), past[:, number].copy()
        pivot = float(np.sqrt(max(row[number] + NOISE_VARIANCE - entries @ entries, NOISE_VARIANCE / 2)))
        self._inverse[n, :n] = -_sums(entries, self._inverse[:n, :n]) / pivot
        self._inverse[n, n] = 1.0 / pivot
        self._whitened[n] = (row - _sums(entries, past)) / pivot
        self._variance -= self._whitened[n] ** 2
        self._place[number] = n
        self._known.append(number)
        self._log_times.append(np.nan)

    def learn(self, number: int, log_time: float) -> None:
        """Records the log of a candidate's time; infinite if it failed, NaN if it is not known yet."""
        self.expect(number)
        self._log_times[self._place[number]] = log_time

    def _far_behind(self) -> npt.NDArray[np.bool_]:
        """True for families that are too slow by what is known, bool [families]."""
        times, family = np.array(self._log_times), self._family[self._known]
        timed = np.isfinite(times)
        best, count = np.full(int(self._family.max()) + 1, np.inf), np.zeros(int(self._family.max()) + 1)
        np.minimum.at(best, family[timed], times[timed])
        np.add.at(count, family[timed], 1)
        found: npt.NDArray[np.bool_] = (count >= TRIED) & (best > best.min() + FAR_BEHIND)
        return found

    def _corrections(self) -> Vector:
        """The log times over what was expected of them, float64 [known]."""
        found: Vector = np.array(self._log_times) - self._expected[self._known]
        return found

    def _scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the finite corrections."""
        times = self._corrections()
        times = times[np.isfinite(times)]
        mean = float(times.mean()) if times.size else 0.0
        squares = float(np.square(times - mean).sum()) + SPREAD_TRIALS * self._spread**2
        return mean, math.sqrt(squares / (times.size + SPREAD_TRIALS))

    def _centres(self) -> Vector:
        """Each family's mean, in standard deviations from the mean of all."""
        centres = np.zeros(int(self._family.max()) + 1)
        mean, deviation = self._scale()
        times, family = self._corrections(), self._family[self._known]
        for number in range(centres.size):
            mine = times[(family == number) & np.isfinite(times)]
            if mine.size:
                centres[number] = (mine.mean() - mean) / deviation
        return centres

    def _mean(self) -> Vector:
        """Posterior mean in standard deviations from the mean of all, float64 [candidates].

        Around what is expected and the families' centres. The pending candidates P have the residuals r that those
        told of, T, let expect: what minimises |L⁻¹ r| over r(P), where r(T) is given.
        """
        n = len(self._known)
        mean, deviation = self._scale()
        centres = self._centres()[self._family]
        prior: Vector = centres + self._expected / deviation
        if not n:
            return prior
        residual = (self._corrections() - mean) / deviation - centres[self._known]
        pending = np.isnan(residual)
        inverse = self._inverse[:n, :n]
        whitened = np.einsum("ij,j->i", inverse, np.where(pending, 0.0, np.minimum(residual, WORST)))
        if pending.any():
            columns = inverse[:, pending]
            products = np.einsum("ij,ik->jk", columns, columns)  # a block of the inverse of K(known, known)
            whitened -= _sums(np.linalg.solve(products, _sums(whitened, columns)), columns.T)
        return _sums(whitened, self._whitened[:n]) + prior


def _expected(times_us: Sequence[float], count: int) -> Vector:
    """The logs of expected times, as far as they count; what has none is taken for the slowest, float64 [count]."""
    logs: Vector = np.log(np.maximum(times_us, LEAST_US)) if len(times_us) else np.zeros(count)
    finite = np.isfinite(logs)
    logs[~finite] = logs[finite].max() if finite.any() else 0.0
    return EXPECTED * logs


def _sums(weights: Vector, rows: Vector) -> Vector:
    """``weights @ rows``, by one thread: BLAS would start one on each core, which have sources to compile."""
    found: Vector = np.einsum("i,ij->j", weights, rows)
    return found


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
