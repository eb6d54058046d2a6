"""A seeded sample of a family's variants, and the matrices that each runs on.

A variant's source depends on its config and constants alone, so one compiled variant is run on every matrix
that leads to the same source.
"""

from __future__ import annotations

import itertools
import math
import random
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
    rng = random.Random(family.name)
    usable = matrices_of(family)
    if not usable:
        return ()
    names = itertools.cycle(usable)
    found: dict[tuple[str, Traits], Variant] = {}  # traits that no source tells are kinds of their own
    met: set[Pair] = set()

    def add(config: Config, kind: Kind, focus: str) -> None:
        source = render(family, kind.problem(matrices()[focus]), config)
        found.setdefault(
            (source, kind.traits),
            Variant(family, config, kind, _matrices_of(family, config, kind, focus), source),
        )
        met.update(_pairs(config, kind))

    def fitting(kind: Kind) -> str:
        """The next matrix of whose shape the family computes this kind of problem."""
        return next(name for name in names if family.computes(kind.problem(matrices()[name])))

    def drawn(kind: Kind, focus: str) -> Any | None:
        matrix = matrices()[focus]
        problem = kind.problem(matrix)
        start = heuristic(family, problem, matrix)
        some = [random_valid_config(family, problem, matrix, rng, start) for _ in range(DRAWN)]
        valid = [config for config in some if config is not None]
        new = {config: len(_pairs(config, kind) - met) for config in valid}
        best = max(valid, key=lambda config: new[config], default=None)
        is_needed = kind.traits not in {variant.kind.traits for variant in found.values()}
        return best if best is not None and (new[best] or is_needed) else None

    def made(tunable: Tunable, choice: object, kind: Kind, focus: str) -> bool:
        """Adds a config with this choice for this kind and matrix; returns False if there is none."""
        fixed = {tunable.name: choice}
        config = random_valid_config(family, kind.problem(matrices()[focus]), matrices()[focus], rng, **fixed)
        if config is not None:
            add(config, kind, focus)
        return config is not None

    for kind in kinds(family, rng):
        focus = fitting(kind)
        if len(kind.traits) == 1 or sum(_place(trait) for _, trait in kind.traits) % 2 == 0:
            add(heuristic(family, kind.problem(matrices()[focus]), matrices()[focus]), kind, focus)
    points = math.prod(len(t.choices) for t in family.config_type.tunables())
    rounds = min(MOST_OF_A_KIND, ceil_div(RANDOM_VARIANTS, len(list(kinds(family, rng)))))
    chosen = {variant.kind.traits for variant in found.values()} if rounds == 1 else set()
    for _ in range(rounds if points > SMALL_SPACE else 1):
        for kind in kinds(family, rng):
            focus = fitting(kind)
            config = drawn(kind, focus) if kind.traits not in chosen else None
            if config is not None:
                add(config, kind, focus)
    for tunable, choice in missing_choices(family, found.values()):
        if (tunable, choice) not in missing_choices(family, found.values()):
            continue  # an earlier one of these brought it along
        for _ in range(TURNS):
            places = list(itertools.product(kinds(family, rng), usable))
            if any(made(tunable, choice, *place) for place in rng.sample(places, len(places))):
                break
    of_batches = [name for name in BATCH_MATRICES if name in usable]
    for kind, focus in zip(batches(family, rng), of_batches, strict=False):
        config = random_valid_config(family, kind.problem(matrices()[focus]), matrices()[focus], rng)
        if config is not None:
            add(config, kind, focus)
    for kind in of_8bit_factors(family, rng):
        focus = fitting(kind)
        add(heuristic(family, kind.problem(matrices()[focus]), matrices()[focus]), kind, focus)
        config = random_valid_config(family, kind.problem(matrices()[focus]), matrices()[focus], rng)
        if config is not None:
            add(config, kind, focus)
    for focus in usable:
        if all(focus not in variant.matrices for variant in found.values()):
            problems = ((kind, kind.problem(matrices()[focus])) for kind in kinds(family, rng))
            kind, problem = next((kind, problem) for kind, problem in problems if family.computes(problem))
            add(heuristic(family, problem, matrices()[focus]), kind, focus)
    return tuple(found.values())


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
