"""Dictionaries with a limit."""

from __future__ import annotations

from sparsegen.system.bounded import Bounded


def test_one_more_takes_the_place_of_all() -> None:
    kept: Bounded[int, str] = Bounded(3)
    for number in range(3):
        kept[number] = str(number)
    assert kept == {0: "0", 1: "1", 2: "2"} and kept.get(3) is None
    kept[3] = "3"
    assert kept == {3: "3"}
