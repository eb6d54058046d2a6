"""The candidates of a search: every valid config of every family, and why the others are not valid."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sparsegen.family import Device, Family, Value, tunables
from sparsegen.operators import SpmmProblem

LARGEST_ENUMERATED = 100_000
LARGEST_SAMPLED = 20_000

NUMBERS = re.compile(r" \([^)]*\)")  # the values that a sentence quotes: it is counted without them

Key = tuple[str, tuple[tuple[str, Value], ...]]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A family and one of its valid configs; ``key`` identifies it as `Variant` does."""

    family: Family[Any, Any]
    config: Any

    @cached_property
    def key(self) -> Key:
        return (self.family.name, tuple(self.family.config_dict(self.config).items()))

    @property
    def simplicity(self) -> int:
        return self.family.simplicity(self.config)

    @property
    def label(self) -> str:
        """The config in words, for a person: ``csr_spmm rows_per_block=4 tile_n=64``."""
        settings = (f"{name}={str(value).lower()}" for name, value in self.key[1])
        return " ".join([self.family.name, *settings])


@dataclass(frozen=True)
class Space:
    """What may be tried.

    Attributes:
        candidates: valid and without repeats.
        pruned: how many configs each constraint's sentence ruled out before anything was compiled.
    """

    candidates: list[Candidate]
    pruned: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def families(self) -> list[Family[Any, Any]]:
        """Those with at least one candidate, in the candidates' order."""
        return list({c.family.name: c.family for c in self.candidates}.values())

    @cached_property
    def family_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.families)

    def family(self, name: str) -> Family[Any, Any]:
        return self.families[self.family_names.index(name)]

    @classmethod
    def build(
        cls,
        families: Sequence[Family[Any, Any]],
        problem: SpmmProblem,
        device: Device,
        *,
        first: Sequence[Candidate] = (),
        whole: bool = False,
        seed: int = 0,
    ) -> Space:
        """``first`` (guesses, earlier winners), then all points of the searched space, or of the whole.

        A whole space of more than 100,000 points is sampled: 20,000 points are drawn beside the searched ones.
        """
        candidates: dict[Key, Candidate] = {c.key: c for c in first}
        pruned: Counter[str] = Counter()
        for family in families:
            for config in _points(family, whole=whole, seed=seed):
                broken = next((c for c in family.constraints(problem, config, device) if not c.holds), None)
                if broken is None:
                    candidate = Candidate(family, config)
                    candidates.setdefault(candidate.key, candidate)
                else:
                    pruned[f"{family.name}: {NUMBERS.sub('', broken.sentence)}"] += 1
        return cls(list(candidates.values()), dict(pruned))


def _points(family: Family[Any, Any], *, whole: bool, seed: int) -> Iterator[Any]:
    """Configs valid or not; the defaults come first."""
    described = tunables(family.config_type)
    names = [t.name for t in described]
    searched = [sorted(t.searched, key=lambda v, t=t: v != t.default) for t in described]  # type: ignore[misc]
    choices = [t.choices for t in described]
    enumerate_choices = whole and math.prod(map(len, choices)) <= LARGEST_ENUMERATED
    for point in itertools.product(*(choices if enumerate_choices else searched)):
        yield family.config_type(**dict(zip(names, point, strict=True)))
    if whole and not enumerate_choices:
        rng = np.random.default_rng(seed)
        for _ in range(LARGEST_SAMPLED):
            yield family.config_type(**{t.name: t.choices[rng.integers(len(t.choices))] for t in described})


def encode(candidates: Sequence[Candidate]) -> tuple[np.ndarray, np.ndarray]:
    """Candidates as points for a model.

    Returns:
        ``numbers`` float64 [candidates, dimensions]: each ordered tunable as its rank in [0, 1], NaN where
        the candidate's family has no such tunable; ``codes`` int64 of the same shape: each value's number, -1
        where there is none. Families have dimensions of their own.
    """
    columns: dict[tuple[str, str], int] = {}
    ranks: dict[tuple[str, str], dict[Value, tuple[float, int]]] = {}
    for family in {c.family.name: c.family for c in candidates}.values():
        for t in tunables(family.config_type):
            columns[family.name, t.name] = len(columns)
            last = max(1, len(t.choices) - 1)
            ordered = not any(isinstance(v, str) for v in t.choices)
            values = sorted(t.choices) if ordered else list(t.choices)  # type: ignore[type-var]
            ranks[family.name, t.name] = {v: (i / last if ordered else 0.0, i) for i, v in enumerate(values)}
    numbers = np.zeros((len(candidates), len(columns)))
    codes = np.full((len(candidates), len(columns)), -1, dtype=np.int64)
    for row, candidate in enumerate(candidates):
        for name, value in candidate.key[1]:
            column = columns[candidate.family.name, name]
            numbers[row, column], codes[row, column] = ranks[candidate.family.name, name][value]
    return numbers, codes
