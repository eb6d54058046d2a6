"""Samples that the host's delays spoiled."""

from __future__ import annotations

from sparsegen.backends.executor import undisturbed


def test_samples_in_which_the_host_was_late_are_left_out() -> None:
    assert undisturbed([(10.0, False), (90.0, True), (11.0, False), (95.0, True)], samples=2) == [10.0, 11.0]


def test_a_host_that_is_always_late_is_part_of_what_is_measured() -> None:
    assert undisturbed([(50.0, True), (10.0, False), (51.0, True)], samples=3) == [50.0, 10.0, 51.0]


def test_few_samples_within_the_budget_are_all_there_are() -> None:
    assert undisturbed([(5e5, False)], samples=20) == [5e5]
