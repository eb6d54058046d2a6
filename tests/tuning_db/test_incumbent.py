"""Succession of winners: they stay unless another one is faster beyond the noise of both."""

from __future__ import annotations

import random
from dataclasses import replace

from tuning_samples import failed, timed

from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.incumbent import Interval
from sparsegen.tuning_db.records import Measurement, Outcome, Sample


def final(us: float, tile_n: int, at: int, *, noise: float = 0.01, count: int = 100) -> Measurement:
    measured = timed(us, tile_n=tile_n, at=at, final=True)
    return replace(measured, sample=Sample(us, us * (1 - noise), us * (1 + noise), count))


def winner(*measurements: Measurement) -> object:
    best = ranking.best(measurements)
    return None if best is None else best.variant.config.to_dict()["tile_n"]


def test_an_interval_is_as_wide_as_the_noise() -> None:
    quiet, noisy = Sample(100.0, 99.9, 100.1, 100), Sample(100.0, 80.0, 120.0, 100)
    assert Interval.of([quiet]) == Interval(99.5, 100.5), "sessions differ, however quiet each is"
    wide = Interval.of([noisy])
    assert 95 < wide.low_us < 97.5 and 102.5 < wide.high_us < 105
    few = Interval.of([replace(noisy, count=4)])
    assert few.low_us < wide.low_us and few.high_us > wide.high_us
    scattered = Interval.of([replace(quiet, median_us=m) for m in (90.0, 100.0, 110.0)])
    assert scattered.low_us < 90 and scattered.high_us > 110


def test_the_first_round_goes_to_the_fastest() -> None:
    assert winner(final(10, 32, 0), final(9, 64, 1)) == 64


def test_a_later_round_within_the_noise_changes_nothing() -> None:
    first = final(10, 32, 0), final(10.3, 64, 1)
    assert winner(*first) == 32
    assert winner(*first, final(10.2, 32, 100), final(10.0, 64, 101)) == 32
    tie = final(10.0, 32, 100, noise=0.3), final(9.6, 128, 101, noise=0.3)
    assert winner(*first, *tie) == 32, "0.4 µs are less than the noise of these"


def test_what_is_faster_beyond_the_noise_of_both_takes_the_place() -> None:
    first = final(10, 32, 0), final(11, 64, 1)
    assert winner(*first, final(10, 32, 100), final(9.6, 128, 101)) == 128
    assert winner(*first, final(9.6, 128, 101)) == 128, "the old one need not be timed again"


def test_a_winner_that_fails_leaves() -> None:
    rounds = final(10, 32, 0), final(10.05, 64, 1), final(10.0, 64, 100)
    assert winner(*rounds, failed(Outcome.WRONG, tile_n=32, at=101)) == 64
    assert winner(*rounds, failed(Outcome.CRASHED, tile_n=32, at=101)) == 64
    assert winner(failed(Outcome.WRONG, tile_n=32, at=101)) is None


def test_many_searches_of_one_machine_name_one_winner() -> None:
    """Three variants within 2 %, timed with 1 % of noise twenty times: the fastest of the day flips, the winner not."""
    rng = random.Random(7)
    true = {32: 10.0, 64: 10.05, 128: 10.1}
    measured: list[Measurement] = []
    of_the_day, named = set(), set()
    for day in range(20):
        today = [
            final(us * rng.gauss(1, 0.01), tile, 100 * day + i) for i, (tile, us) in enumerate(true.items())
        ]
        measured += today
        of_the_day.add(winner(*today))
        named.add(winner(*measured))
    assert len(of_the_day) > 1 and len(named) == 1


def test_singles_after_the_finals_change_nothing() -> None:
    assert winner(final(10, 32, 0), final(10.3, 64, 1), timed(5, tile_n=128, at=200)) == 32
