"""Selection of a family's variants that `make test` compiles and runs: few, which cover all of its code.

`make test-all` runs more of them, which make every choice and show every two traits together; GPU machines run all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from sparsegen.kernels import families
from sparsegen.testing.cover import long_ring, short_ring
from sparsegen.testing.variants import Variant, sample

LEAST = 4  # matrices of a variant in the short ring


def all_variants() -> list[Variant]:
    """Those of every family, in order."""
    return [variant for family in families().values() for variant in sample(family)]


def with_new_values() -> list[Variant]:
    """Every sixth variant of the long ring, and one of the short ring of each family."""
    listed = [variant for family in families().values() for variant in long_ring(family)][::6]
    return [*listed, *(v for family in families().values() if (v := short_ring(family)[0]) not in listed)]


def dealt_matrices(variants: Sequence[Variant]) -> dict[Variant, tuple[str, ...]]:
    """Returns a few matrices for each of a family's variants: each of theirs with one of them, `LEAST` for each."""
    dealt: dict[Variant, list[str]] = {variant: [] for variant in variants}
    for name in dict.fromkeys(name for variant in variants for name in variant.matrices):
        least = min((v for v in variants if name in v.matrices), key=lambda v: len(dealt[v]))
        dealt[least].append(name)
    for variant, names in dealt.items():
        others = (name for name in variant.matrices if name not in names)
        names += islice(others, max(0, LEAST - len(names)))
    return {variant: tuple(names) for variant, names in dealt.items()}


def by_matrices(variants: Sequence[Variant]) -> list[Any]:
    """The same as `in_rings`, but that a variant of the short ring has few matrices there, and the others in the long
    one.
    """
    dealt = {
        v: names for family in families().values() for v, names in dealt_matrices(short_ring(family)).items()
    }
    found = []
    for one in in_rings(variants):
        [variant] = one.values
        few = dealt.get(variant)
        if few is None:
            found.append(one)
            continue
        found.append(pytest.param(replace(variant, matrices=few), id=one.id))
        others = tuple(name for name in variant.matrices if name not in few)
        if others:
            rest = replace(variant, matrices=others)
            found.append(pytest.param(rest, id=f"{one.id}-others", marks=[pytest.mark.long]))
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
