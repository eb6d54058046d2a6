"""Trials that samplers needed on recorded searches, kept in a file: a comparison that was cut goes on where it was."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import optuna

from benchmarks.recording import Recording
from benchmarks.replay import Comparison
from benchmarks.study import read_document
from sparsegen.system.publish import publish_text
from sparsegen.tuning.report import SamplerName


@cache
def digest_of(recording: Recording) -> str:
    """Returns a name of a recording's times: 12 hexadecimal digits."""
    rows = [(t.config.family_name, t.config.to_dict(), t.time_us) for t in recording.tried]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]


Key = tuple[str, str, str, int]
UNAIDED = " unaided"  # behind the name of our sampler where nothing was expected of candidates


def key_of(recording: Recording, sampler: SamplerName, seed: int, is_aided: bool) -> Key:
    """Returns the key of a search: space, recording, sampler and start."""
    aided = is_aided or sampler is not SamplerName.CANDIDATES
    return recording.name, digest_of(recording), sampler.value + UNAIDED * (not aided), seed


@dataclass(frozen=True, slots=True)
class Count:
    """One search by a sampler.

    Attributes:
        digest: digest of the recording (`digest_of`).
        sampler: its name (`key_of`).
        trials: trials that it needed; None if ``most`` were not enough.
        seconds: time that it took, of this process's own time.
    """

    space: str
    digest: str
    sampler: str
    seed: int
    most: int
    trials: int | None
    seconds: float

    @property
    def key(self) -> Key:
        return self.space, self.digest, self.sampler, self.seed

    @property
    def tried(self) -> int:
        return self.most if self.trials is None else self.trials

    def within(self, most: int) -> float:
        """The trials, infinite where they are more than ``most``."""
        return self.trials if self.trials is not None and self.trials <= most else math.inf


class Counts:
    """Searches that were made.

    Args:
        file: file that keeps them from one process to the next; None for no file.

    Attributes:
        found: searches by their keys.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        kept = read_document(file)["searches"] if file is not None and file.exists() else []
        self.found = {count.key: count for count in (Count(**row) for row in kept)}

    def add(self, count: Count) -> None:
        """Keep a search, in the file at once."""
        self.found[count.key] = count
        if self._file is not None:
            rows = [self.found[key] for key in sorted(self.found)]
            text = ",\n".join(json.dumps(asdict(row)) for row in rows)
            publish_text(self._file, f'{{"optuna": "{optuna.__version__}", "searches": [\n{text}\n]}}\n')

    def is_missing(self, key: Key, most: int) -> bool:
        """True if no such search was made, or only one that was given up earlier."""
        found = self.found.get(key)
        return found is None or (found.trials is None and found.most < most)

    def comparison(self, keys: Mapping[tuple[str, SamplerName], Sequence[Key]], most: int) -> Comparison:
        """Compares samplers by the searches.

        Args:
            keys: the searches of each space and sampler; all of them were made.
        """
        trials: dict[str, dict[SamplerName, list[float]]] = {}
        seconds: dict[SamplerName, list[float]] = {}
        tried: dict[SamplerName, int] = {}
        for (space, sampler), mine in keys.items():
            counts = [self.found[key] for key in mine]
            trials.setdefault(space, {})[sampler] = [count.within(most) for count in counts]
            seconds.setdefault(sampler, []).extend(count.seconds for count in counts)
            tried[sampler] = tried.get(sampler, 0) + sum(count.tried for count in counts)
        return Comparison(trials, most, {name: math.fsum(s) / tried[name] for name, s in seconds.items()})
