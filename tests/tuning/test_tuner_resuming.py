"""Searches that go on: what was measured is not measured again, and whose winner stays."""

from __future__ import annotations

from pathlib import Path

import pytest
import tuning_fakes
import tuning_samples
from patience import patience
from toy_searches import WORKLOAD, bad_day, behave, recorded
from tuning_fakes import DEVICE, FakeToolchain, ToyConfig, tune_toy

from sparsegen.errors import (
    NoVariantError,
)
from sparsegen.tuning.loop import finalists
from sparsegen.tuning.report import Status
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Variant
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("toy")


def test_what_was_measured_is_not_measured_again(store: Store, tmp_path: Path) -> None:
    first = tune_toy(store, tmp_path, trials=5)
    assert first.counts.done == 5
    again = tune_toy(store, tmp_path, trials=5)
    assert again.counts.done == 0 and again.counts.resumed == 5
    assert again.winner == first.winner
    on = tune_toy(store, tmp_path, trials=12)
    assert on.counts.done == 7 and on.counts.resumed == 5
    variants = [m.variant for m in recorded(store)]
    assert len(variants) == len(set(variants)) == 12


def test_no_more_is_tried_than_is_planned(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=5)
    seen: list[Status] = []
    tune_toy(store, tmp_path, trials=2, progress=lambda status, measurement=None: seen.append(status))
    assert seen and all(status.counts.tried <= status.planned for status in seen)
    assert seen[-1].counts.resumed == 5


def test_another_compiler_makes_other_variants(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=3)
    toolchain = FakeToolchain(tmp_path)
    toolchain.fingerprint = "fake 2"
    assert tune_toy(store, tmp_path, trials=3, toolchain=toolchain).counts.resumed == 0


def test_a_failure_is_known_too(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "does_not_compile", size=4, width=2)
    assert tune_toy(store, tmp_path, trials=4).counts.failed == 1
    once_more = tune_toy(store, tmp_path, trials=4).counts
    assert (once_more.resumed, once_more.failed, once_more.done) == (3, 1, 0)
    assert tune_toy(store, tmp_path, trials=4).counts.resumed == 4, "twice is enough"


@pytest.mark.parametrize("behaviour", ("does_not_compile", "crash", "fault", "hang"))
def test_what_failed_once_may_have_had_a_bad_day(
    behaviour: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        bad_day(patch, behaviour)
        assert tune_toy(store, tmp_path, trials=12, variant_seconds=patience(1.0)).counts.failed == 1
    result = tune_toy(store, tmp_path / "mended", trials=12)
    assert (result.counts.resumed, result.counts.done) == (11, 1)
    assert result.winner.variant.config.to_dict()["size"] == 8, "it is the fastest, and wins"
    assert tune_toy(store, tmp_path / "mended", trials=12).counts.resumed == 12


def test_what_was_wrong_stays_wrong(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behave(monkeypatch, "wrong", size=8, width=4)
    tune_toy(store, tmp_path, trials=12)
    assert tune_toy(store, tmp_path, trials=12).counts.resumed == 12


def test_another_winner_is_reported_with_what_the_old_one_costs(store: Store, tmp_path: Path) -> None:
    """The database says that size 2 won, by a source that is no longer made; today it takes 16 µs, and size 8 10 µs."""
    old = Variant(ToyConfig(2, 2), "ab" * 32)
    store.add_measurement(
        Measurement(WORKLOAD, DEVICE, old, Outcome.OK, Sample(1.0, 1.0, 1.0, 30), worst_error=0.1, final=True)
    )
    first = tune_toy(store, tmp_path, trials=100, again=True)
    assert first.flip is not None and first.flip.before.variant == old and first.flip.after == first.winner
    assert first.flip.cost == pytest.approx(tuning_fakes.time_of({"size": 2, "width": 2}) / 10.0, rel=0.05)


def test_the_same_winner_is_no_flip(store: Store, tmp_path: Path) -> None:
    first = tune_toy(store, tmp_path, trials=100)
    again = tune_toy(store, tmp_path, trials=100, again=True)
    assert first.flip is None and again.flip is None
    assert again.winner.variant == first.winner.variant and again.winner.final


def test_the_winner_of_before_is_among_the_finalists() -> None:
    """However far behind it is today: only finals can take its place."""
    of = tuning_samples.timed
    winner = of(10, tile_n=32, final=True)
    today = [of(20, tile_n=32, at=50), of(5, tile_n=64, at=51), of(30, tile_n=128, at=52)]
    picked = [m.variant for m in finalists.pick([winner, *today])]
    assert winner.variant in picked and of(30, tile_n=128).variant not in picked


def test_equal_bits_alone(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A family may say of single configs that their bits differ."""
    monkeypatch.setattr(
        tuning_fakes.Toy, "is_deterministic", lambda self, problem, config: config.size < 8, raising=False
    )
    result = tune_toy(store, tmp_path, trials=100, deterministic=True)
    assert result.winner.variant.config == ToyConfig(4, 4)
    assert all(m.variant.config.size < 8 for m in recorded(store))
    assert result.pruned["toy: equal inputs give equal bits on every call"] == 6
    monkeypatch.setattr(
        tuning_fakes.Toy, "is_deterministic", lambda self, problem, config: False, raising=False
    )
    with pytest.raises(NoVariantError, match="equal bits"):
        tune_toy(store, tmp_path, trials=100, deterministic=True)


def test_all_is_measured_again_when_asked_for(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=5)
    again = tune_toy(store, tmp_path, trials=5, again=True)
    assert (again.counts.done, again.counts.resumed) == (5, 0) and len(recorded(store)) == 10
