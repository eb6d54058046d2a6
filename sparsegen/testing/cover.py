"""Few variants that show all there is to see of a family's code, and more that show what goes together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, TypeVar

from sparsegen.kernels.base import AnyFamily
from sparsegen.testing.variants import Variant, sample

Item = TypeVar("Item")
CONSTANTS = ("constexpr ", "using ", "#line ")  # how lines begin that differ in numbers and types alone
NUMBER = re.compile(r"\d{2,}|[2-9]")  # 0 and 1 may be what a branch of the template decides


def shown(variant: Variant) -> frozenset[tuple[Any, ...]]:
    """Returns the features that a variant covers: traits, a batch or none, matrices, and every line of code but
    constants.

    A line stands in a source because the template's branches put it there: variants that show every line take every
    branch. Lines that differ in rendered numbers alone, as instructions of several shapes do, count as one, and a list
    by its members: a signature has not to be shown with every combination of its parameters.
    """
    return frozenset(
        [
            *variant.kind.traits,
            ("batch", variant.kind.batch > 1),
            *(("matrix", name) for name in variant.matrices),
            *(part for line in set(variant.source.splitlines()) for part in _parts(line)),
        ]
    )


@cache  # variants of a family differ in few lines
def _parts(line: str) -> tuple[tuple[str, str], ...]:
    """Returns the features that a line of code is counted as."""
    code = re.sub(r"//.*", "", line).strip()
    if not code or code.startswith(CONSTANTS):
        return ()
    return tuple(("line", part) for part in NUMBER.sub("#", code).split(", "))


def cover(items: Sequence[Item], shows: Callable[[Item], frozenset[Any]]) -> list[Item]:
    """Few items that show what all of them do: the one that shows most that is new, again and again, none in vain."""
    shown_by = [shows(item) for item in items]
    chosen: list[int] = []
    missing = frozenset[Any]().union(*shown_by)
    while missing:
        best = max(range(len(items)), key=lambda i: len(shown_by[i] & missing))
        chosen.append(best)
        missing -= shown_by[best]
    times = Counter(feature for one in chosen for feature in shown_by[one])
    for one in list(chosen):
        if all(times[feature] > 1 for feature in shown_by[one]):
            chosen.remove(one)
            times -= Counter(shown_by[one])
    return [items[i] for i in sorted(chosen)]


def choices(variant: Variant) -> list[tuple[str, object]]:
    """Returns a variant's choices, by the names of their tunables."""
    config = variant.config
    return [(tunable.name, getattr(config, tunable.name)) for tunable in type(config).tunables()]


def together(variant: Variant) -> frozenset[Any]:
    """Returns what else variants show: every choice of a tunable, and every two traits together."""
    return frozenset([*choices(variant), *combinations(sorted(variant.kind.traits), 2)])


@cache
def long_ring(family: AnyFamily) -> tuple[Variant, ...]:
    """Few variants that show every line of code and matrix that any of the sample has, and all they show `together`."""
    return tuple(cover(sample(family), lambda variant: shown(variant) | together(variant)))


@cache
def short_ring(family: AnyFamily) -> tuple[Variant, ...]:
    """Few of the long ring, which show every line of code, trait and matrix that any variant has."""
    return tuple(cover(long_ring(family), shown))
