"""Packed matrices that are kept for variants that take the same."""

from __future__ import annotations

from typing import Any

import pytest

from sparsegen import backends
from sparsegen.backends.emulator import device
from sparsegen.kernels import family
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, SpmmProblem
from sparsegen.plan import packings
from sparsegen.plan.packings import Packings

FAMILY = family("bitmap_spmm")
MATRIX = random_uniform(64, 128, 0.3, 0)
PROBLEM = SpmmProblem(64, 128, 8, DType.FLOAT16)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records what is packed, in order."""
    done: list[Any] = []
    real = packings.pack
    monkeypatch.setattr(packings, "pack", lambda *given: done.append(given[1:3]) or real(*given))
    return done


def test_configs_that_take_the_same_share_it(packed: list[Any]) -> None:
    kept = Packings(MATRIX, backends.open_executor(device()))
    finished: list[Any] = []
    configs = [FAMILY.config(tile_n=tile_n, granule=granule) for tile_n in (64, 128) for granule in (1, 2)]
    found = [kept.of(FAMILY, PROBLEM, config, finished.append) for config in configs]
    assert packed == [(PROBLEM, configs[0]), (PROBLEM, configs[1])]
    assert found[0] is found[2] and found[1] is found[3] and found[0] is not found[1]
    assert finished == [found[0].packed, found[1].packed]
    assert all(one.seconds > 0 and one.packed.nnz == MATRIX.nnz for one in found)

    other = SpmmProblem(64, 128, 8, DType.BFLOAT16)
    assert kept.of(FAMILY, other, configs[0]) is not found[0]
    kept.clear()
    assert kept.of(FAMILY, PROBLEM, configs[0]) is not found[0] and len(packed) == 4


def test_those_unused_for_longest_go(packed: list[Any]) -> None:
    kept = Packings(MATRIX, backends.open_executor(device()), most_bytes=1)
    one, two = FAMILY.config(), FAMILY.config(granule=2)
    first = kept.of(FAMILY, PROBLEM, one)
    assert kept.of(FAMILY, PROBLEM, one) is first
    kept.of(FAMILY, PROBLEM, two)
    assert kept.of(FAMILY, PROBLEM, one) is not first
    assert [config for _, config in packed] == [one, two, one]
