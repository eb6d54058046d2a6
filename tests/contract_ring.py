"""Selection of a family's variants that `make test` compiles and runs: few, which cover all of its code.

`make test-all` runs the others too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparsegen.kernels import families
from sparsegen.testing.cover import short_ring
from sparsegen.testing.variants import Variant, sample


def all_variants() -> list[Variant]:
    """Those of every family, in order."""
    return [variant for family in families().values() for variant in sample(family)]


def with_new_values() -> list[Variant]:
    """Every sixth variant, and one of the short ring of each family."""
    listed = all_variants()[::6]
    return [*listed, *(v for family in families().values() if (v := short_ring(family)[0]) not in listed)]


def in_rings(variants: Sequence[Variant]) -> list[Any]:
    """Parameters of a test, those outside the short ring marked ``long``."""
    short = {variant for family in families().values() for variant in short_ring(family)}
    return [pytest.param(v, id=str(v), marks=[] if v in short else [pytest.mark.long]) for v in variants]
