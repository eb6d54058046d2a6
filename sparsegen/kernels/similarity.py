"""How alike configs are: the one measure that search and dispatch go by.

Configs of one family differ by a sum over its tunables: a word or a flag counts 1 where it is another, a number by the
distance in octaves, 1 for two of them. Configs of different families have nothing in common. How fast a likeness falls
with that difference is each model's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from sparsegen.kernels.base import Array
from sparsegen.kernels.config import Config, Tunable

WHOLLY = 2.0  # octaves by which two numbers differ as much as two words that are not equal


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Configs as points, by their places in the list that was encoded.

    Attributes:
        numbers: float64 [configs, ordered tunables of all families], scaled so that their distances add up; 0 for those
            of other families.
        words: int64 [configs, other tunables of all families]: the choice's place; -1 for those of other families.
        family: int64 [configs]: the family's place among those that occur.
    """

    numbers: Array
    words: Array
    family: Array
    _families: dict[int, tuple[Array, Array, Array]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, configs: Sequence[Config]) -> Points:
        """Encode configs of any families."""
        members: dict[type[Config], list[int]] = {}
        for place, config in enumerate(configs):
            members.setdefault(type(config), []).append(place)
        columns = [_tunables(cast(Any, kind)) for kind in members]
        numbers = np.zeros((len(configs), sum(len(ordered) for ordered, _ in columns)))
        words = np.full((len(configs), sum(len(others) for _, others in columns)), -1)
        family = np.zeros(len(configs), dtype=np.int64)
        first_number = first_word = 0
        for kind, (mine, (ordered, others)) in enumerate(zip(members.values(), columns, strict=True)):
            encoded = [_encoded(configs[i]) for i in mine]
            family[mine] = kind
            numbers[mine, first_number : first_number + len(ordered)] = [found for found, _ in encoded]
            words[mine, first_word : first_word + len(others)] = [found for _, found in encoded]
            first_number, first_word = first_number + len(ordered), first_word + len(others)
        return cls(numbers, words, family)

    def differences_from(self, number: int) -> tuple[Array, Array]:
        """The places of the configs of one config's family, and how much they differ from it: float64 [places]."""
        mine, numbers, words = self._of_family(int(self.family[number]))
        apart: Array = np.abs(numbers - self.numbers[number][:, None]).sum(axis=0)
        apart += (words != self.words[number][:, None]).sum(axis=0)
        return mine, apart

    def _of_family(self, family: int) -> tuple[Array, Array, Array]:
        """The places of a family's configs, with their numbers and words, [columns, places]."""
        if family not in self._families:
            mine = np.flatnonzero(self.family == family)
            numbers, words = (np.ascontiguousarray(kept[mine].T) for kept in (self.numbers, self.words))
            self._families[family] = mine, numbers, words
        return self._families[family]

    def differences(self, some: slice | Array, others: slice | Array) -> Array:
        """How much some of the configs differ from others, float64 [some, others]; infinite between families."""
        apart = np.where(self.family[some][:, None] == self.family[others][None, :], 0.0, np.inf)
        for column in self.numbers.T:
            apart += np.abs(column[some][:, None] - column[others][None, :])
        for column in self.words.T:
            apart += column[some][:, None] != column[others][None, :]
        return apart


def differences(some: Sequence[Config], others: Sequence[Config]) -> Array:
    """How much configs differ from others, float64 [some, others]; infinite between families."""
    points = Points.of([*some, *others])
    return points.differences(slice(0, len(some)), slice(len(some), None))


@cache
def _tunables(kind: type[Config]) -> tuple[tuple[Tunable, ...], tuple[Tunable, ...]]:
    """Those whose choices are numbers, and the others."""
    ordered = tuple(t for t in kind.tunables() if is_ordered(t))
    return ordered, tuple(t for t in kind.tunables() if t not in ordered)


@lru_cache(maxsize=65536)  # a look-up compares the same configs again and again
def _encoded(config: Config) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The config's row of `Points.numbers` and of `Points.words`, where these are its family's."""
    ordered, others = _tunables(cast(Any, type(config)))
    numbers = tuple(math.log2(getattr(config, t.name) + 1.0) / WHOLLY for t in ordered)
    return numbers, tuple(t.choices.index(getattr(config, t.name)) for t in others)


def is_ordered(tunable: Tunable) -> bool:
    return all(type(choice) is int and choice >= 0 for choice in tunable.choices)
