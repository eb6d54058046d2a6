"""Similarity of configs, the one measure that search and dispatch go by.

Configs of one family differ by a sum over its tunables: a word or a flag counts 1 where it is another, a number by the
distance in octaves, 1 for two of them. Configs of different families have nothing in common. How fast a likeness falls
with that difference is each model's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np

from sparsegen.kernels.config import Config, Tunable
from sparsegen.system.numpy_types import Array

WHOLLY = 2.0  # octaves by which two numbers differ as much as two words that are not equal


class Members(NamedTuple):
    """The configs of one family among others.

    Attributes:
        places: int64 [members], in the list that was encoded.
        numbers: float64 [ordered tunables, members], scaled so that their distances add up.
        words: int64 [other tunables, members]: the choice's place.
    """

    places: Array
    numbers: Array
    words: Array

    @classmethod
    def of(cls, places: Sequence[int], configs: Sequence[Config]) -> Members:
        """Encode configs of one family, at least one."""
        encoded = [_encoded(config) for config in configs]
        numbers, words = (np.array(columns).T for columns in zip(*encoded, strict=True))
        return cls(np.array(places), np.ascontiguousarray(numbers), np.ascontiguousarray(words))

    def differences(self, others: Members) -> Array:
        """Returns the distance of each config to each of others of the same family, float64 [members, others'
        members].
        """
        apart = np.zeros((self.places.size, others.places.size))
        for mine, theirs in zip(self.numbers, others.numbers, strict=True):
            apart += np.abs(mine[:, None] - theirs)
        for mine, theirs in zip(self.words, others.words, strict=True):
            apart += mine[:, None] != theirs
        return apart


class Points(NamedTuple):
    """Configs as points, by their places in the list that was encoded.

    Attributes:
        family: int64 [configs]: the family's place among those that occur.
        members: members of each family, in that order, by the class of its configs; ``of_family``, by its place.
    """

    family: Array
    members: Mapping[type[Config], Members]
    of_family: Sequence[Members]

    @classmethod
    def of(cls, configs: Sequence[Config]) -> Points:
        """Encode configs of any families."""
        places: dict[type[Config], list[int]] = {}
        for place, config in enumerate(configs):
            places.setdefault(type(config), []).append(place)
        family = np.zeros(len(configs), dtype=np.int64)
        for number, mine in enumerate(places.values()):
            family[mine] = number
        members = {kind: Members.of(mine, [configs[i] for i in mine]) for kind, mine in places.items()}
        return cls(family, members, list(members.values()))

    def differences_from(self, number: int) -> tuple[Array, Array]:
        """The places of the configs of one config's family, and how much they differ from it: float64 [places]."""
        mine = self.of_family[int(self.family[number])]
        own = int(np.searchsorted(mine.places, number))
        apart: Array = np.abs(mine.numbers - mine.numbers[:, own, None]).sum(axis=0)
        apart += (mine.words != mine.words[:, own, None]).sum(axis=0)
        return mine.places, apart

    def alike(self, others: Points) -> Iterator[tuple[Array, Array, Array]]:
        """The places, in these and in others, of each family that both have, and how much the configs there differ."""
        for kind, mine in self.members.items():
            theirs = others.members.get(kind)
            if theirs is not None:
                yield mine.places, theirs.places, mine.differences(theirs)


def differences(some: Sequence[Config], others: Sequence[Config]) -> Array:
    """Returns the distances of configs to others, float64 [some, others]; infinite between families."""
    apart = np.full((len(some), len(others)), np.inf)
    for here, there, found in Points.of(some).alike(Points.of(others)):
        apart[np.ix_(here, there)] = found
    return apart


@cache
def _tunables(kind: type[Config]) -> tuple[tuple[Tunable, ...], tuple[Tunable, ...]]:
    """Tunables whose choices are numbers, and the others."""
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
