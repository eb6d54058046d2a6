"""Finalists: who is timed again in turn, for how long, and who wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tuning_fakes
from toy_searches import WORKLOAD, behave, recorded, timed
from tuning_fakes import DEVICE, ToyConfig, tune_toy

from sparsegen.tuning.loop import finalists
from sparsegen.tuning_db.records import Outcome, Variant
from sparsegen.tuning_db.store import Store

pytestmark = pytest.mark.usefixtures("toy")


def test_finalists_are_the_best_few_and_each_familys_best() -> None:
    measured = [timed(10.0, 1), timed(10.9, 2), timed(11.5, 4)]
    measured += [timed(14.0, 8, "other"), timed(14.5, 16, "other")]
    assert finalists.pick(measured) == [measured[0], measured[1], measured[3]]
    close, far_off = timed(10.0, 1), timed(16.0, 2, "far_off")
    assert finalists.pick([far_off, close]) == [close]
    assert finalists.pick([]) == []
    sizes = [timed(10.0 + 0.1 * i, size) for i, size in enumerate((1, 2, 4, 8, 16))]
    sixth = replace(timed(10.6, 16), variant=Variant(ToyConfig(size=16, width=2), "ab" * 32))
    assert finalists.pick([*sizes, sixth]) == sizes


def test_what_runs_without_a_search_is_a_finalist_however_far_off() -> None:
    measured = [timed(10.0, 1), timed(10.9, 2), timed(90.0, 4)]
    failed = replace(timed(1.0, 8), sample=None, outcome=Outcome.WRONG)
    defaults = [m.variant.config for m in (measured[2], failed)]
    assert finalists.pick([*measured, failed], defaults) == measured


def test_the_default_is_timed_again_with_the_finalists(store: Store, tmp_path: Path) -> None:
    tune_toy(store, tmp_path, trials=100)
    final = {m.variant.config for m in store.measurements(WORKLOAD, DEVICE) if m.final}
    default = ToyConfig()
    assert tuning_fakes.time_of(default.to_dict()) > 1.5 * tuning_fakes.time_of({"size": 8, "width": 4})
    assert default in final and len(final) > 1


def test_the_finalists_schedule_fits_the_time() -> None:
    assert finalists.schedule([timed(10.0, 1)], 1.0) == (finalists.ROUNDS, finalists.SAMPLES_PER_ROUND)
    rounds, samples = finalists.schedule([timed(1e5, 1), timed(1e5, 2)], 2.0)  # a tenth of a second each
    assert rounds * samples * 0.2 <= 2.0 and rounds >= 2
    assert finalists.schedule([timed(1e7, 1)], 1.0) == (2, 1)


def test_a_finalist_that_turns_out_wrong_loses(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behave(monkeypatch, "fading", size=8, width=4)
    result = tune_toy(store, tmp_path, trials=12)
    assert [m.outcome for m in recorded(store)] == [Outcome.OK] * 12
    finals = recorded(store, final=True)
    wrong = [m.variant for m in finals if m.outcome is Outcome.WRONG]
    assert [v.config.to_dict() for v in wrong] == [{"size": 8, "width": 4, "behaviour": "right"}]
    assert result.winner.variant not in wrong and result.winner.final  # of the next best few
