"""Recorded searches in the place of a device: how many trials does a sampler need on real kernels?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

import numpy as np

from benchmarks.recording import Recording
from sparsegen.kernels import family_of
from sparsegen.kernels.config import Config
from sparsegen.tuning.report import SamplerName
from sparsegen.tuning.search.search import Search
from sparsegen.tuning.space import Space
from sparsegen.tuning_db.records import Measurement, Sample, Variant

WITHIN = 0.03
AHEAD = 4  # trials under way when the next is asked for, as where a few variants are compiled ahead
SHARE = 0.5  # fraction of the trials of Optuna's best sampler that ours may need
OURS = SamplerName.CANDIDATES


class Replay:
    """A device that knows every answer: the space is what was recorded.

    Args:
        expected_us: predicted time of each candidate, in the recording's order, for samplers that use it; empty for
            none.
    """

    def __init__(self, recording: Recording, expected_us: Sequence[float] = ()) -> None:
        self.recording = recording
        configs = [t.config for t in recording.tried]
        self.space = Space(
            tuple(dict.fromkeys(family_of(c) for c in configs)), configs, expected_us=expected_us
        )
        self._tried = {t.config: t for t in recording.tried}

    def measure(self, config: Config) -> Measurement:
        """Returns the recorded measurement of a config of the space."""
        t = self._tried[config]
        sample = None if t.time_us is None else Sample(t.time_us, t.time_us, t.time_us, 1)
        return Measurement(
            self.recording.workload,
            self.recording.device,
            Variant(config, ""),
            t.outcome,
            sample,
            registers=t.registers,
            spill_bytes=t.spill_bytes,
        )

    def start(self, seed: int) -> list[Config]:
        """Draws the start of a search: a config of each family, the same for every sampler."""
        rng = np.random.default_rng(seed)
        by_family = [
            [c for c in self.space.candidates if c.family_name == name] for name in self.space.family_names
        ]
        return [mine[rng.integers(len(mine))] for mine in by_family]

    def trials(
        self, sampler: SamplerName, seed: int, *, within: float = WITHIN, most: float = math.inf
    ) -> float:
        """Trials until the best so far is within a share of the best of all.

        Infinite where ``most`` trials are not enough, or none of the recorded candidates was right.
        """
        search = Search(self.space, self.start(seed), sampler=sampler, seed=seed)
        goal = self.recording.best_us * (1.0 + within)
        waiting: list[Config] = []
        done = 0
        while done < most:
            while len(waiting) <= AHEAD and (candidate := search.ask()) is not None:
                waiting.append(candidate)
            if not waiting:
                break
            measured = self.measure(waiting.pop(0))
            search.tell(measured)
            done += 1
            if measured.sample is not None and measured.sample.median_us <= goal:
                return done
        return math.inf


@dataclass(frozen=True, slots=True)
class Comparison:
    """Trials that samplers needed.

    Attributes:
        trials: for each space and sampler the trials of each seed; infinite if ``most`` were not enough.
        most: trials after which a search was given up.
        seconds: average time of each sampler to propose a trial.
    """

    trials: Mapping[str, Mapping[SamplerName, Sequence[float]]]
    most: int
    seconds: Mapping[SamplerName, float]

    @property
    def samplers(self) -> tuple[SamplerName, ...]:
        """Samplers that were compared on every space."""
        shared = set.intersection(*(set(found) for found in self.trials.values())) if self.trials else set()
        return tuple(name for name in SamplerName if name in shared)

    def median(self, space: str, sampler: SamplerName) -> float:
        """The median over the seeds; a search that was given up counts as having needed ``most``."""
        return median(min(count, self.most) for count in self.trials[space][sampler])

    def typical(self, sampler: SamplerName) -> float:
        """The geometric mean of the medians over the spaces."""
        return geometric_mean(self.median(space, sampler) for space in self.trials)

    @property
    def best_of_optuna(self) -> SamplerName:
        """The sampler of Optuna's that needs the fewest trials."""
        return min((name for name in self.samplers if name is not OURS), key=self.typical)

    @property
    def share(self) -> float:
        """Our trials over those of the best of Optuna's."""
        return self.typical(OURS) / self.typical(self.best_of_optuna)

    @property
    def conclusion(self) -> str:
        """States whether ours stays the default."""
        theirs = self.best_of_optuna
        needs = (
            f"{OURS} needs {self.share:.2f} of the trials of {theirs} "
            f"({self.typical(OURS):.1f} against {self.typical(theirs):.1f}) to come within {WITHIN:.0%}"
        )
        if self.share <= SHARE:
            return f"{needs}, at most {SHARE}: it stays the default"
        return f"{needs}, more than {SHARE}: {theirs} has to take its place"
