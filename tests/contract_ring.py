"""Selection of a family's variants that `make test` compiles and runs: few, which cover all of its code.

`make test-all` runs the others too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import pytest
from contract_cases import Variant, sample

from sparsegen.kernels import families

Item = TypeVar("Item")
NUMBERS = ("constexpr ", "using ", "#line ")  # how lines begin that differ in numbers and types alone


def shown(variant: Variant) -> frozenset[tuple[Any, ...]]:
    """Returns the features that a variant covers: traits, a batch or none, matrices, and every line of code but
    constants.

    A line stands in a source because the template's branches put it there: variants that show every line take every
    branch.
    """
    lines = (re.sub(r"//.*", "", line).strip() for line in variant.source.splitlines())
    return frozenset(
        [
            *variant.kind.traits,
            ("batch", variant.kind.batch > 1),
            *(("matrix", name) for name in variant.matrices),
            *(("line", line) for line in lines if line and not line.startswith(NUMBERS)),
        ]
    )


def cover(items: Sequence[Item], shows: Callable[[Item], frozenset[Any]]) -> list[Item]:
    """Few items that show what all of them do: the one that shows most that is new, again and again, none in vain."""
    shown_by = [shows(item) for item in items]
    chosen: list[int] = []
    missing = frozenset[Any]().union(*shown_by)
    while missing:
        best = max(range(len(items)), key=lambda i: len(shown_by[i] & missing))
        chosen.append(best)
        missing -= shown_by[best]
    for one in list(chosen):
        others = frozenset[Any]().union(*(shown_by[i] for i in chosen if i != one))
        if shown_by[one] <= others:
            chosen.remove(one)
    return [items[i] for i in sorted(chosen)]


@cache
def short_ring(name: str) -> tuple[Variant, ...]:
    """The variants of a family that `make test` runs."""
    return tuple(cover(sample(name), shown))


def all_variants() -> list[Variant]:
    """Those of every family, in order."""
    return [variant for name in families() for variant in sample(name)]


def with_new_values() -> list[Variant]:
    """Every sixth variant, and one of the short ring of each family."""
    listed = all_variants()[::6]
    return [*listed, *(v for name in families() if (v := short_ring(name)[0]) not in listed)]


def in_rings(variants: Sequence[Variant]) -> list[Any]:
    """Parameters of a test, those outside the short ring marked ``long``."""
    short = {variant for name in families() for variant in short_ring(name)}
    return [pytest.param(v, id=str(v), marks=[] if v in short else [pytest.mark.long]) for v in variants]
