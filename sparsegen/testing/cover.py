"""Few variants that show all there is to see of a family's code, and more that show what goes together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, reduce
from itertools import combinations
from operator import or_
from typing import Any, TypeVar

from sparsegen.kernels.base import AnyFamily
from sparsegen.testing.variants import Variant, sample

Item = TypeVar("Item")
CONSTANTS = ("constexpr ", "using ", "#line ")  # how lines begin that differ in numbers and types alone
FIRSTS = 10  # a hundred would save two variants more
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
    """Few items that show what all of them do: the one that shows most that is new, again and again, none in vain.

    Of such covers, one for each of the first `FIRSTS` items to begin with, the smallest.
    """
    places: dict[Any, int] = {}
    shown_by = [sum(1 << places.setdefault(shown, len(places)) for shown in shows(item)) for item in items]
    everything = (1 << len(places)) - 1
    if not everything:
        return []
    return [items[i] for i in min((_cover(shown_by, i) for i in range(min(FIRSTS, len(items)))), key=len)]


def _cover(shown_by: Sequence[int], first: int) -> list[int]:
    """Returns the places of items, in order, one of them ``first`` unless the others show all, given bits."""
    everything = reduce(or_, shown_by)
    chosen, missing = [first], everything & ~shown_by[first]
    while missing:
        chosen.append(max(range(len(shown_by)), key=lambda i: (shown_by[i] & missing).bit_count()))
        missing &= ~shown_by[chosen[-1]]
    for one in list(chosen):
        if reduce(or_, (shown_by[other] for other in chosen if other != one), 0) == everything:
            chosen.remove(one)
    return sorted(chosen)


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
