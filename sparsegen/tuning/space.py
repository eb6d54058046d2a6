"""The candidates of a search: every valid config of every family, and why the others are not valid."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sparsegen.kernels.base import Device, Family, Value, tunables
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem

LARGEST_ENUMERATED = 200_000  # points of a family, valid or not
LARGEST_EXPLORED = 4_000  # configs found in a family with more points than that
PAIRS_FROM = 20  # configs from which steps of two tunables are taken

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
        pruned: how many configs each constraint's or requirement's sentence ruled out before anything was compiled.
        left_out: families without a candidate because the matrix does not suit them, and the sentence that says why.
    """

    candidates: list[Candidate]
    pruned: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

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
        problem: Problem,
        device: Device,
        *,
        features: Features | None = None,
        first: Sequence[Candidate] = (),
        whole: bool = False,
    ) -> Space:
        """``first`` (guesses, earlier winners), what `Family.space` holds, and with ``whole`` all else.

        Of these, what suits a matrix of the given features; None: no matrix is given, all of them.

        A family with very many points, valid or not, is not enumerated: it is explored in steps of one
        tunable from the valid ones already found, up to 4,000 more.
        """
        candidates: dict[Key, Candidate] = {c.key: c for c in first}
        pruned: Counter[str] = Counter()
        unsuited: dict[str, str] = {}

        def is_valid(family: Family[Any, Any], config: Any) -> bool:
            broken = next((c for c in family.constraints(problem, config, device) if not c.holds), None)
            if broken is None and features is not None:
                broken = next(
                    (c for c in family.requirements(problem, features, config) if not c.holds), None
                )
                if broken is not None:
                    unsuited.setdefault(family.name, broken.sentence)
            if broken is not None:  # counted without the values that the sentence quotes
                pruned[f"{family.name}: {NUMBERS.sub('', broken.sentence)}"] += 1
            return broken is None

        def is_wanted(family: Family[Any, Any], config: Any) -> bool:
            return family.is_worth_trying(problem, config, device) and is_valid(family, config)

        for family in families:
            found = [c.config for c in first if c.family is family]
            if not whole or _points(family, whole=True) > LARGEST_ENUMERATED:
                found = _search_out(family, found, is_wanted, whole=False)
            if whole:
                found = _search_out(family, found, is_valid, whole=True)
            for config in found:
                candidate = Candidate(family, config)
                candidates.setdefault(candidate.key, candidate)
        tried = {c.family.name for c in candidates.values()}
        left_out = {name: sentence for name, sentence in unsuited.items() if name not in tried}
        return cls(list(candidates.values()), dict(pruned), left_out)


Test = Callable[[Family[Any, Any], Any], bool]


def _search_out(family: Family[Any, Any], found: list[Any], is_wanted: Test, *, whole: bool) -> list[Any]:
    """What was found, and all wanted configs, or those within reach if there are too many points."""
    if _points(family, whole=whole) > LARGEST_ENUMERATED:
        return _explore(family, found, is_wanted, whole=whole)
    return found + [config for config in _product(family, whole=whole) if is_wanted(family, config)]


def _points(family: Family[Any, Any], *, whole: bool) -> int:
    return math.prod(map(len, _axes(family, whole=whole)))


def _axes(family: Family[Any, Any], *, whole: bool) -> list[tuple[Value, ...]]:
    """The values of each tunable, its default first."""
    return [
        tuple(sorted(t.choices if whole else t.searched, key=lambda v, t=t: v != t.default))  # type: ignore[misc]
        for t in tunables(family.config_type)
    ]


def _product(family: Family[Any, Any], *, whole: bool) -> Iterator[Any]:
    """All configs, valid or not."""
    names = [t.name for t in tunables(family.config_type)]
    for point in itertools.product(*_axes(family, whole=whole)):
        yield family.config_type(**dict(zip(names, point, strict=True)))


def _explore(family: Family[Any, Any], starts: list[Any], is_wanted: Test, *, whole: bool) -> list[Any]:
    """Wanted configs reached by changing one tunable at a time, or two near the start, breadth first."""
    names = [t.name for t in tunables(family.config_type)]
    axes = dict(zip(names, _axes(family, whole=whole), strict=True))
    found: dict[Any, None] = dict.fromkeys(starts)
    refused: set[Any] = set()
    waiting = deque(found)
    expanded = 0
    while waiting and len(found) < len(starts) + LARGEST_EXPLORED:
        origin = waiting.popleft()
        steps = [{name: value} for name in names for value in axes[name]]
        if expanded < PAIRS_FROM:
            steps += [
                {a: x, b: y} for a, b in itertools.combinations(names, 2) for x in axes[a] for y in axes[b]
            ]
        expanded += 1
        for step in steps:
            config = replace(origin, **step)
            if config in found or config in refused:
                continue
            if is_wanted(family, config):
                found[config] = None
                waiting.append(config)
            else:
                refused.add(config)
    return list(found)


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
            values = sorted(t.choices) if ordered else list(t.choices)
            ranks[family.name, t.name] = {v: (i / last if ordered else 0.0, i) for i, v in enumerate(values)}
    numbers = np.zeros((len(candidates), len(columns)))
    codes = np.full((len(candidates), len(columns)), -1, dtype=np.int64)
    for row, candidate in enumerate(candidates):
        for name, value in candidate.key[1]:
            column = columns[candidate.family.name, name]
            numbers[row, column], codes[row, column] = ranks[candidate.family.name, name][value]
    return numbers, codes
