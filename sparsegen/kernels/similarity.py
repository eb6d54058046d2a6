"""How alike configs are: the one measure that search and dispatch go by.

Configs of one family differ by a sum over its tunables: a word or a flag counts 1 where it is another, a number by the
distance in octaves, 1 for two of them. Configs of different families have nothing in common. How fast a likeness falls
with that difference is each model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    @classmethod
    def of(cls, configs: Sequence[Config]) -> Points:
        """Encode configs of any families."""
        kinds: list[type[Config]] = list(dict.fromkeys(type(config) for config in configs))
        ordered = [(kind, t) for kind in kinds for t in kind.tunables() if _is_ordered(t)]
        others = [(kind, t) for kind in kinds for t in kind.tunables() if not _is_ordered(t)]
        numbers, words = np.zeros((len(configs), len(ordered))), np.full((len(configs), len(others)), -1)
        family = np.array([kinds.index(type(config)) for config in configs], dtype=np.int64)
        for number, kind in enumerate(kinds):
            mine: list[int] = np.flatnonzero(family == number).tolist()
            for column, (owner, t) in enumerate(ordered):
                if owner is kind:
                    values = np.array([getattr(configs[i], t.name) for i in mine], dtype=np.float64)
                    numbers[mine, column] = np.log2(values + 1.0) / WHOLLY
            for column, (owner, t) in enumerate(others):
                if owner is kind:
                    words[mine, column] = [t.choices.index(getattr(configs[i], t.name)) for i in mine]
        return cls(numbers, words, family)

    def differences(self, some: slice | Array, others: slice | Array) -> Array:
        """By how much some of the configs differ from others, float64 [some, others]; infinite between families."""
        apart = np.where(self.family[some][:, None] == self.family[others][None, :], 0.0, np.inf)
        for column in self.numbers.T:
            apart += np.abs(column[some][:, None] - column[others][None, :])
        for column in self.words.T:
            apart += column[some][:, None] != column[others][None, :]
        return apart


def differences(some: Sequence[Config], others: Sequence[Config]) -> Array:
    """By how much configs differ from others, float64 [some, others]; infinite between families."""
    points = Points.of([*some, *others])
    return points.differences(slice(0, len(some)), slice(len(some), None))


def _is_ordered(tunable: Tunable) -> bool:
    return all(type(choice) is int and choice >= 0 for choice in tunable.choices)
