"""Ranking of variants: the winner."""

from __future__ import annotations

from tuning_samples import failed, timed

from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import MeasuredAs, Measurement, Outcome


def tiles(measurements: list[Measurement], wanted: MeasuredAs | None = None) -> list[object]:
    return [r.variant.config.to_dict()["tile_n"] for r in ranking.ranked(measurements, wanted)]


def test_the_fastest_comes_first() -> None:
    assert tiles([timed(30, tile_n=32), timed(10, tile_n=64), timed(20, tile_n=128)]) == [64, 128, 32]


def test_nothing_measured_has_no_winner() -> None:
    assert ranking.best([]) is None
    assert ranking.best([failed(Outcome.COMPILE_FAILED)]) is None


def test_finalists_come_before_faster_singles() -> None:
    measured = [timed(8, tile_n=32), timed(10, tile_n=64), timed(11, tile_n=64, final=True, at=1)]
    assert tiles(measured) == [64, 32]
    best = ranking.best(measured)
    assert best is not None and best.final


def test_repeated_samples_count_by_their_median() -> None:
    lucky = [timed(us, tile_n=32, at=i) for i, us in enumerate((5, 12, 13))]
    assert tiles([*lucky, timed(10, tile_n=64)]) == [64, 32]


def test_a_tie_goes_to_the_simpler_config() -> None:
    assert tiles([timed(10.0, tile_n=32, row_splits=2), timed(10.05, tile_n=64)]) == [64, 32]
    assert tiles([timed(10.0, tile_n=32, row_splits=2), timed(10.5, tile_n=64)]) == [32, 64]


def test_a_wrong_variant_is_out_whenever_it_was_seen() -> None:
    measured = [timed(10, tile_n=32, at=2), failed(Outcome.WRONG, tile_n=32, at=1), timed(20, tile_n=64)]
    assert tiles(measured) == [64]


def test_another_source_of_the_same_config_is_another_variant() -> None:
    measured = [failed(Outcome.WRONG, tile_n=32, at=1), timed(10, tile_n=32, digest="cd" * 32)]
    assert tiles(measured) == [32]


def test_a_later_crash_is_out_and_an_earlier_one_is_not() -> None:
    ok = timed(10, tile_n=32, at=5)
    for outcome in (Outcome.CRASHED, Outcome.TIMED_OUT):
        assert tiles([ok, failed(outcome, tile_n=32, at=9)]) == []
        assert tiles([ok, failed(outcome, tile_n=32, at=1)]) == [32]
    assert tiles([ok, failed(Outcome.COMPILE_FAILED, tile_n=32, at=9)]) == [32]


def test_warm_times_are_not_compared_with_cold_ones() -> None:
    warm = timed(5, tile_n=32, measured_as=MeasuredAs.WARM)
    assert tiles([warm, timed(10, tile_n=64)]) == [64]
    assert tiles([warm]) == [32]


def test_the_kind_of_times_that_is_asked_for_counts() -> None:
    graph = timed(4, tile_n=128, measured_as=MeasuredAs.GRAPH)
    warm = timed(5, tile_n=32, measured_as=MeasuredAs.WARM, final=True)
    cold = timed(10, tile_n=64)
    assert tiles([graph, warm, cold], MeasuredAs.WARM) == [32]
    assert tiles([graph, warm, cold], MeasuredAs.GRAPH) == [128]
    assert tiles([graph, warm, cold]) == [64]
    assert tiles([graph, cold], MeasuredAs.WARM) == [128], "what is most like it"
    assert tiles([graph, cold], MeasuredAs.CLEAN) == [64]
