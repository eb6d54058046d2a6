"""The candidates of a search: every valid config of every family, and why the others are not valid."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sparsegen.kernels import family_of
from sparsegen.kernels.base import AnyFamily, Constraint, Device
from sparsegen.kernels.config import Config, Value
from sparsegen.matrix.features import Features
from sparsegen.operators import Problem

LARGEST_ENUMERATED = 200_000  # points of a family, valid or not
LARGEST_EXPLORED = 4_000  # configs found in a family with more points than that
PAIRS_FROM = 20  # configs from which steps of two tunables are taken

EQUAL_BITS = Constraint(False, "equal inputs give equal bits on every call")
NUMBERS = re.compile(r" \([^)]*\)")  # the values that a sentence quotes: it is counted without them


@dataclass(frozen=True)
class Space:
    """The candidates of a search.

    Attributes:
        families: those with at least one candidate, in the candidates' order.
        candidates: valid and without repeats.
        pruned: number of configs that each constraint's or requirement's sentence ruled out before anything was
            compiled.
        expected_us: predicted time of each candidate (`sparsegen.tuning.prediction`); empty if nothing is known.
        left_out: families without a candidate because the matrix does not suit them, and the sentence that says why.
    """

    families: tuple[AnyFamily, ...]
    candidates: list[Config]
    pruned: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    expected_us: Sequence[float] = ()

    @cached_property
    def family_names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.families)

    def family(self, name: str) -> AnyFamily:
        return self.families[self.family_names.index(name)]

    @classmethod
    def build(
        cls,
        families: Sequence[AnyFamily],
        problem: Problem,
        device: Device,
        *,
        features: Features | None = None,
        first: Sequence[Config] = (),
        whole: bool = False,
        deterministic: bool = False,
    ) -> Space:
        """Lists ``first`` (heuristic configs, earlier winners), the configs of `Family.space`, and with ``whole`` all
        others.

        Keeps those that suit a matrix of the given features (None: all of them). With ``deterministic`` keeps only
        variants that give equal bits for equal inputs on every call.

        A family with very many points, valid or not, is not enumerated: it is explored in steps of one tunable from the
        valid ones already found, up to 4,000 more.
        """
        first = [c for c in first if not deterministic or family_of(c).is_deterministic(problem, c)]
        candidates: dict[Config, None] = dict.fromkeys(first)
        pruned: Counter[str] = Counter()
        unsuited: dict[str, str] = {}

        def is_valid(family: AnyFamily, config: Config) -> bool:
            broken = next((c for c in family.constraints(problem, config, device) if not c.holds), None)
            if broken is None and features is not None:
                broken = next(
                    (c for c in family.requirements(problem, features, config) if not c.holds), None
                )
                if broken is not None:
                    unsuited.setdefault(family.name, broken.sentence)
            if broken is None and deterministic and not family.is_deterministic(problem, config):
                broken = EQUAL_BITS
                unsuited.setdefault(family.name, broken.sentence)
            if broken is not None:  # counted without the values that the sentence quotes
                pruned[f"{family.name}: {NUMBERS.sub('', broken.sentence)}"] += 1
            return broken is None

        def is_wanted(family: AnyFamily, config: Config) -> bool:
            return family.is_worth_trying(problem, config, device) and is_valid(family, config)

        for family in families:
            found = [config for config in first if type(config) is family.config_type]
            if not whole or points(family, whole=True) > LARGEST_ENUMERATED:
                found = _search_out(family, found, is_wanted, whole=False)
            if whole:
                found = _search_out(family, found, is_valid, whole=True)
            candidates |= dict.fromkeys(found)
        by_name = {family.name: family for family in families}
        tried = tuple(by_name[name] for name in dict.fromkeys(config.family_name for config in candidates))
        left_out = {name: why for name, why in unsuited.items() if by_name[name] not in tried}
        return cls(tried, list(candidates), dict(pruned), left_out)


Test = Callable[[AnyFamily, Config], bool]


def _search_out(family: AnyFamily, found: list[Config], is_wanted: Test, *, whole: bool) -> list[Config]:
    """Returns ``found`` and all wanted configs, or those within reach if there are too many points."""
    if points(family, whole=whole) > LARGEST_ENUMERATED:
        return _explore(family, found, is_wanted, whole=whole)
    return found + [config for config in _product(family, whole=whole) if is_wanted(family, config)]


def points(family: AnyFamily, *, whole: bool) -> int:
    """Number of configs of a family, valid or not; with ``whole`` over all choices, else over the searched ones."""
    return math.prod(map(len, _axes(family, whole=whole)))


def _axes(family: AnyFamily, *, whole: bool) -> list[tuple[Value, ...]]:
    """The values of each tunable, its default first."""
    return [
        tuple(sorted(t.choices if whole else t.searched, key=lambda v, t=t: v != t.default))  # type: ignore[misc]
        for t in family.config_type.tunables()
    ]


def _product(family: AnyFamily, *, whole: bool) -> Iterator[Config]:
    """All configs, valid or not."""
    names, kind = [t.name for t in family.config_type.tunables()], family.config_type
    for point in itertools.product(*_axes(family, whole=whole)):
        yield kind.of_choices(zip(names, point, strict=True))


def _explore(family: AnyFamily, starts: list[Config], is_wanted: Test, *, whole: bool) -> list[Config]:
    """Wanted configs reached by changing one tunable at a time, or two near the start, breadth first.

    A point is the tuple of its values until it is known to be new: most steps lead back to where the walk has been.
    """
    names, kind = [t.name for t in family.config_type.tunables()], family.config_type
    axes = _axes(family, whole=whole)
    found = {tuple(getattr(start, name) for name in names): start for start in starts}
    met = set(found)
    waiting = deque(found)
    expanded = 0
    while waiting and len(found) < len(starts) + LARGEST_EXPLORED:
        for point in _steps(waiting.popleft(), axes, in_pairs=expanded < PAIRS_FROM):
            if point in met:
                continue
            met.add(point)
            config = kind.of_choices(zip(names, point, strict=True))
            if is_wanted(family, config):
                found[point] = config
                waiting.append(point)
        expanded += 1
    return list(found.values())


Point = tuple[Value, ...]


def _steps(origin: Point, axes: Sequence[Point], *, in_pairs: bool) -> Iterator[Point]:
    """Yields the points at which one tunable has another value, or two have."""
    for i, values in enumerate(axes):
        for value in values:
            yield (*origin[:i], value, *origin[i + 1 :])
    if not in_pairs:
        return
    for i, j in itertools.combinations(range(len(axes)), 2):
        for x in axes[i]:
            for y in axes[j]:
                yield (*origin[:i], x, *origin[i + 1 : j], y, *origin[j + 1 :])
