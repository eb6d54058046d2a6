"""A seeded sample of a family's variants, and the matrices that each runs on.

A variant's source depends on its config and constants alone, so one compiled variant is run on every matrix
that leads to the same source.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from sparsegen.backends.emulator import device
from sparsegen.kernels.base import AnyFamily
from sparsegen.kernels.config import Config, Tunable
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.render import render
from sparsegen.system.integers import ceil_div
from sparsegen.testing.kinds import (
    BATCH_MATRICES,
    Kind,
    Traits,
    allows,
    batches,
    kinds,
    matrices_of,
    of_8bit_factors,
)
from sparsegen.testing.matrices import matrices

RANDOM_VARIANTS = 12  # of a family, shared out among its kinds
MOST_OF_A_KIND = 2
DRAWN = 24  # random configs for each of them, of which that is taken that meets most that is new
SMALL_SPACE = 100  # choices in all; one such variant is enough
TRIES = 60
TURNS = 4  # in which kinds are drawn for a choice that none has made yet


@dataclass(frozen=True)
class Variant:
    """A config, the kind of problem, and the matrices (by name) that lead to this source."""

    family: AnyFamily
    config: Config
    kind: Kind
    matrices: tuple[str, ...]
    source: str

    def __str__(self) -> str:
        changed = [
            f"{t.name}={getattr(self.config, t.name)}"
            for t in self.family.config_type.tunables()
            if getattr(self.config, t.name) != t.default
        ]
        return "-".join([self.family.name, str(self.kind), *changed])


def heuristic(family: AnyFamily, problem: Problem, matrix: CsrMatrix) -> Any:
    return family.heuristic(problem, problem.features(matrix), device())


def random_config(family: AnyFamily, rng: random.Random) -> Any:
    """Any point of the declared space, valid or not."""
    return family.config_type(**{t.name: rng.choice(t.choices) for t in family.config_type.tunables()})


def random_valid_config(
    family: AnyFamily,
    problem: Problem,
    matrix: CsrMatrix,
    rng: random.Random,
    start: Any = None,
    **fixed: Any,
) -> Any | None:
    """A config, by default the heuristic, with some tunables fixed and as many random changes as are valid."""
    start = (start or heuristic(family, problem, matrix)).to_dict() | fixed
    free = [t for t in family.config_type.tunables() if t.name not in fixed]
    for attempt in range(TRIES):
        changes = rng.sample(free, round(len(free) * (1 - attempt / TRIES)))
        config = family.config_type(**start | {t.name: rng.choice(t.choices) for t in changes})
        if family.is_valid(problem, config, device()):
            return config
    return None


@cache
def sample(family: AnyFamily) -> tuple[Variant, ...]:
    """Random configs for every kind of problem, heuristics for every other one, and more until every choice and matrix
    occurs.

    Where there are many kinds, one that has its heuristic gets no random config beside it.

    Heuristic configs are made for those kinds in which every two traits still come together. Of several random configs
    that one is taken which brings most pairs of choices, traits and sizes that did not occur together yet: what kernels
    get wrong is seldom more than two things at once, and each variant costs a compilation.
    """
    usable = matrices_of(family)
    if not usable:
        return ()
    drawn = _Sample(family, usable)
    drawn.add_heuristics()
    drawn.add_random_configs()
    drawn.add_missing_choices()
    drawn.add_batches()
    drawn.add_8bit_factors()
    drawn.add_missing_matrices()
    return tuple(drawn.found.values())


class _Sample:
    """A family's variants, while they are drawn.

    Attributes:
        found: by source and traits: traits that no source tells are kinds of their own.
    """

    def __init__(self, family: AnyFamily, usable: list[str]) -> None:
        self.found: dict[tuple[str, Traits], Variant] = {}
        self._family, self._usable = family, usable
        self._rng = random.Random(family.name)
        self._names = itertools.cycle(usable)
        self._met: set[Pair] = set()

    # --- the steps ---

    def add_heuristics(self) -> None:
        for kind in self._kinds():
            focus = self._fitting(kind)
            if len(kind.traits) == 1 or sum(_place(trait) for _, trait in kind.traits) % 2 == 0:
                self._add_heuristic(kind, focus)

    def add_random_configs(self) -> None:
        points = math.prod(len(t.choices) for t in self._family.config_type.tunables())
        rounds = min(MOST_OF_A_KIND, ceil_div(RANDOM_VARIANTS, len(list(self._kinds()))))
        chosen = self._traits() if rounds == 1 else set()
        for _ in range(rounds if points > SMALL_SPACE else 1):
            for kind in self._kinds():
                focus = self._fitting(kind)
                config = self._newest(kind, focus) if kind.traits not in chosen else None
                if config is not None:
                    self._add(config, kind, focus)

    def add_missing_choices(self) -> None:
        for tunable, choice in missing_choices(self._family, self.found.values()):
            if (tunable, choice) not in missing_choices(self._family, self.found.values()):
                continue  # an earlier one of these brought it along
            for _ in range(TURNS):
                places = list(itertools.product(self._kinds(), self._usable))
                shuffled = self._rng.sample(places, len(places))
                if any(self._add_random(*place, **{tunable.name: choice}) for place in shuffled):
                    break

    def add_batches(self) -> None:
        of_batches = [name for name in BATCH_MATRICES if name in self._usable]
        for kind, focus in zip(batches(self._family, self._rng), of_batches, strict=False):
            self._add_random(kind, focus)

    def add_8bit_factors(self) -> None:
        for kind in of_8bit_factors(self._family, self._rng):
            focus = self._fitting(kind)
            self._add_heuristic(kind, focus)
            self._add_random(kind, focus)

    def add_missing_matrices(self) -> None:
        for focus in self._usable:
            if all(focus not in variant.matrices for variant in self.found.values()):
                matrix = matrices()[focus]
                kind = next(k for k in self._kinds() if self._family.computes(k.problem(matrix)))
                self._add_heuristic(kind, focus)

    # --- the parts ---

    def _kinds(self) -> Iterator[Kind]:
        return kinds(self._family, self._rng)

    def _traits(self) -> set[Traits]:
        """Traits that occur so far."""
        return {variant.kind.traits for variant in self.found.values()}

    def _fitting(self, kind: Kind) -> str:
        """The next matrix of whose shape the family computes this kind of problem."""
        return next(name for name in self._names if self._family.computes(kind.problem(matrices()[name])))

    def _newest(self, kind: Kind, focus: str) -> Any | None:
        """Returns that of some random configs which brings most that is new; None where none does."""
        matrix = matrices()[focus]
        problem = kind.problem(matrix)
        start = heuristic(self._family, problem, matrix)
        some = [random_valid_config(self._family, problem, matrix, self._rng, start) for _ in range(DRAWN)]
        new = {config: len(_pairs(config, kind) - self._met) for config in some if config is not None}
        best = max(new, key=lambda config: new[config], default=None)
        return best if best is not None and (new[best] or kind.traits not in self._traits()) else None

    def _add_random(self, kind: Kind, focus: str, **fixed: Any) -> bool:
        """Add a valid config with these choices; returns False if there is none."""
        matrix = matrices()[focus]
        config = random_valid_config(self._family, kind.problem(matrix), matrix, self._rng, **fixed)
        if config is not None:
            self._add(config, kind, focus)
        return config is not None

    def _add_heuristic(self, kind: Kind, focus: str) -> None:
        matrix = matrices()[focus]
        self._add(heuristic(self._family, kind.problem(matrix), matrix), kind, focus)

    def _add(self, config: Config, kind: Kind, focus: str) -> None:
        source = render(self._family, kind.problem(matrices()[focus]), config)
        variant = Variant(self._family, config, kind, _matrices_of(self._family, config, kind, focus), source)
        self.found.setdefault((source, kind.traits), variant)
        self._met.update(_pairs(config, kind))


def _place(member: StrEnum) -> int:
    """Place of a member in its enumeration."""
    return list(type(member)).index(member)


Pair = tuple[tuple[str, Any], tuple[str, Any]]


def _pairs(config: Config, kind: Kind) -> set[Pair]:
    """Every two of a variant's choices, traits and sizes."""
    own = [(t.name, getattr(config, t.name)) for t in type(config).tunables()]
    return set(itertools.combinations([*own, *kind.traits, *kind.sizes], 2))


def missing_choices(family: AnyFamily, variants: Any) -> list[tuple[Tunable, Any]]:
    """The choices of tunables that no variant makes."""
    made = {(t.name, getattr(v.config, t.name)) for v in variants for t in family.config_type.tunables()}
    return [
        (t, choice)
        for t in family.config_type.tunables()
        for choice in t.choices
        if (t.name, choice) not in made
    ]


def _matrices_of(family: AnyFamily, config: object, kind: Kind, focus: str) -> tuple[str, ...]:
    """Returns the matrices that lead to the same source as ``focus``: those with the same constants for `render`."""
    constants = family.constants(kind.problem(matrices()[focus]), config)
    names = []
    for name, matrix in matrices().items():
        if kind.batch > 1 and name not in BATCH_MATRICES:
            continue  # each batch element is computed as without a batch
        if not allows(family.problem_type, matrix):
            continue
        problem = kind.problem(matrix)
        if family.is_valid(problem, config, device()) and family.constants(problem, config) == constants:
            names.append(name)
    return tuple(names)
