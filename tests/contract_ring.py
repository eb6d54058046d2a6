"""Selection of a family's variants that `make test` compiles and runs: few, which cover all of its code.

`make test-all` runs more of them, which make every choice and show every two traits together, and every trait and
choice on every matrix; GPU machines run all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any

import pytest

from sparsegen.kernels import families
from sparsegen.testing.cover import choices, cover, long_ring, short_ring
from sparsegen.testing.variants import Variant, sample

LEAST = 2  # matrices of a variant


def all_variants() -> list[Variant]:
    """Those of every family, in order."""
    return [variant for family in families().values() for variant in sample(family)]


def with_new_values() -> list[Variant]:
    """Every eighth variant of the long ring, and one of the short ring of each family."""
    listed = [variant for family in families().values() for variant in long_ring(family)][::8]
    return [*listed, *(v for family in families().values() if (v := short_ring(family)[0]) not in listed)]


def dealt_matrices(variants: Sequence[Variant]) -> dict[Variant, tuple[str, ...]]:
    """Returns a few matrices for each of a family's variants: each of theirs with one of them, `LEAST` for each."""
    dealt: dict[Variant, list[str]] = {variant: [] for variant in variants}
    for name in dict.fromkeys(name for variant in variants for name in variant.matrices):
        least = min((v for v in variants if name in v.matrices), key=lambda v: len(dealt[v]))
        dealt[least].append(name)
    return {variant: tuple(_at_least(names, variant)) for variant, names in dealt.items()}


def dealt_in_long_ring(variants: Sequence[Variant]) -> dict[Variant, tuple[str, ...]]:
    """Returns the matrices of a family's variants in both rings: every trait, parameter and choice meets every
    matrix that it can, by few launches, and each variant has `LEAST`.

    Args:
        variants: the family's long ring.
    """
    dealt: dict[Variant, list[str]] = {variant: [] for variant in variants}
    for variant, names in dealt_matrices(short_ring(variants[0].family)).items():
        dealt[variant] += names
    met = frozenset[Any]().union(*(shown_on(v, name) for v, names in dealt.items() for name in names))
    turns = zip_longest(*(_turned(variant.matrices, i) for i, variant in enumerate(variants)))
    launches = [(v, name) for turn in turns for v, name in zip(variants, turn, strict=True) if name]
    for variant, name in cover(launches, lambda launch: shown_on(*launch) - met):
        dealt[variant].append(name)
    return {variant: tuple(_at_least(names, variant)) for variant, names in dealt.items()}


def shown_on(variant: Variant, matrix: str) -> frozenset[Any]:
    """Returns the features of a variant's launch on a matrix: each trait, parameter and choice with that matrix."""
    kind = variant.kind
    own = (*kind.traits, *kind.parameters, ("batch", kind.batch > 1), *choices(variant))
    return frozenset((feature, matrix) for feature in own)


def _turned(names: tuple[str, ...], first: int) -> tuple[str, ...]:
    """The names from another one on, so that variants do not all begin with the same."""
    at = first % max(1, len(names))
    return names[at:] + names[:at]


def _at_least(names: list[str], variant: Variant) -> list[str]:
    """Names with further ones of the variant's matrices, up to `LEAST`."""
    others = (name for name in variant.matrices if name not in names)
    return [*names, *islice(others, max(0, LEAST - len(names)))]


def by_matrices(variants: Sequence[Variant]) -> list[Any]:
    """The same as `in_rings`, but that each variant has few matrices: one of the short ring some there, others in the
    long ring.
    """
    short, both = (
        {v: names for family in families().values() for v, names in deal(ring(family)).items()}
        for deal, ring in ((dealt_matrices, short_ring), (dealt_in_long_ring, long_ring))
    )
    found = []
    for one in in_rings(variants):
        [variant] = one.values
        few = short.get(variant, ())
        if few:
            found.append(pytest.param(replace(variant, matrices=few), id=one.id))
        others = tuple(name for name in both[variant] if name not in few)
        if others:
            name = f"{one.id}-others" if few else one.id
            found.append(pytest.param(replace(variant, matrices=others), id=name, marks=[pytest.mark.long]))
    return found


def in_rings(variants: Sequence[Variant]) -> list[Any]:
    """Parameters of a test: of these variants those of the long ring, marked ``long`` outside of the short one."""
    short, long = (
        {variant for family in families().values() for variant in ring(family)}
        for ring in (short_ring, long_ring)
    )
    return [
        pytest.param(v, id=str(v), marks=[] if v in short else [pytest.mark.long])
        for v in variants
        if v in long
    ]
