"""Selection of a family's variants that `make test` compiles and runs: few, which cover all of its code.

`make test-all` runs more of them, which make every choice and show every two traits together; GPU machines run all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparsegen.kernels import families
from sparsegen.testing.cover import long_ring, short_ring
from sparsegen.testing.variants import Variant, sample


def all_variants() -> list[Variant]:
    """Those of every family, in order."""
    return [variant for family in families().values() for variant in sample(family)]


def with_new_values() -> list[Variant]:
    """Every sixth variant of the long ring, and one of the short ring of each family."""
    listed = [variant for family in families().values() for variant in long_ring(family)][::6]
    return [*listed, *(v for family in families().values() if (v := short_ring(family)[0]) not in listed)]


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
