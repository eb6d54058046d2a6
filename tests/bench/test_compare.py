"""Comparisons of results: thresholds for faster and slower, and refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_samples import results, row, timing

from sparsegen.bench.results.compare import Outcome, compare, outcome_of
from sparsegen.bench.results.results import TUNED, Cell, Results, Status
from sparsegen.errors import ResultsMismatchError


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (timing(10.0), timing(10.2), Outcome.SAME),  # within 3 %
        (timing(10.0), timing(11.0), Outcome.SLOWER),
        (timing(10.0), timing(9.0), Outcome.FASTER),
        (timing(10.0, spread=0.3), timing(11.0, spread=0.3), Outcome.SAME),  # spreads overlap
        (timing(10.0, spread=0.3, rounds=1), timing(20.0, spread=0.3, rounds=1), Outcome.SLOWER),
    ],
)
def test_outcomes(old: object, new: object, expected: Outcome) -> None:
    assert outcome_of(old, new) is expected  # type: ignore[arg-type]


def test_rounds_speak_where_samples_scatter() -> None:
    old = replace(timing(10.0, spread=0.5), rounds_us=(9.9, 10.0, 10.1))
    new = replace(timing(11.0, spread=0.5), rounds_us=(10.9, 11.0, 11.1))
    assert outcome_of(old, new) is Outcome.SLOWER


def test_a_run_equals_itself() -> None:
    found = compare(results(), results())
    assert found.changes and not found.differing
    assert all(drift.ratio.value == pytest.approx(1.0) for drift in found.drifts)


def test_what_differs_is_listed() -> None:
    old = results(row("a"), row("gone"), row("moved", tag="x"))
    new = results(row("a", ours=4.0), row("moved", tag="y"), row("new"))
    found = compare(old, new)
    assert [(c.baseline, c.outcome) for c in found.differing] == [(TUNED, Outcome.FASTER)]
    assert found.differing[0].ratio == pytest.approx(0.8)
    assert [key.case for key in found.only_old] == ["gone"]
    assert [key.case for key in found.only_new] == ["new"]
    assert [key.case for key in found.other_pattern] == ["moved"]


def test_a_baseline_that_broke_is_told() -> None:
    def crash(cell: Cell) -> Cell:
        return replace(cell, status=Status.CRASHED, reason="signal 11", timing=None)

    broken = replace(row(), cells=tuple(crash(c) if c.baseline == TUNED else c for c in row().cells))
    (change,) = compare(results(), results(broken)).status_changes
    assert (change.baseline, change.old, change.new, change.reason) == (
        TUNED,
        Status.OK,
        Status.CRASHED,
        "signal 11",
    )


def test_other_devices_need_force() -> None:
    def elsewhere(made: Results) -> Results:
        return replace(made, device=replace(made.device, key="other"))

    with pytest.raises(ResultsMismatchError, match="made-up-sm90 before, other now"):
        compare(results(), elsewhere(results()))
    assert compare(results(), elsewhere(results()), force=True).changes
