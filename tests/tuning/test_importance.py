"""Importances: what decides comes out on top, and too little data gives nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from tuning_samples import timed

from sparsegen.tuning.replay.importance import FEWEST_CONFIGS, importances
from sparsegen.tuning_db.records import Measurement


def measured() -> list[Measurement]:
    """Makes measurements of configs that tile_n alone decides."""
    tiles, alignments, bits = (32, 64, 128), ("padded", "reverse_offset"), (16, 32)
    return [
        timed(
            100.0 / tile + 0.01 * i, tile_n=tile, row_alignment=alignment, index_bits=bit, rows_per_block=rows
        )
        for i, (tile, alignment, bit, rows) in enumerate(product(tiles, alignments, bits, (1, 2, 4)))
    ]


def test_what_decides_comes_first() -> None:
    (shares,) = importances(measured()).values()
    assert next(iter(shares)) == "tile_n" and shares["tile_n"] > 0.4
    assert abs(sum(shares.values()) - 1) < 1e-6


def test_tunables_that_never_vary_are_left_out() -> None:
    (shares,) = importances(measured()).values()
    assert set(shares) == {"tile_n", "row_alignment", "index_bits", "rows_per_block"}


def test_equal_times_decide_nothing() -> None:
    assert measured()[0].sample is not None
    assert importances([replace(m, sample=measured()[0].sample) for m in measured()]) == {}


def test_few_configs_give_nothing() -> None:
    assert importances(measured()[: FEWEST_CONFIGS - 1]) == {}
    assert importances([]) == {}
