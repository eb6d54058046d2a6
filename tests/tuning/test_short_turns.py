"""The interpreter's switch interval: short within, and afterwards what it was, whoever leaves last."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from sparsegen.tuning.loop.short_turns import SECONDS, short_turns


@pytest.fixture(autouse=True)
def usual() -> Iterator[float]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_the_interval_is_short_within(usual: float) -> None:
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(SECONDS)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_the_last_to_leave_restores_it(usual: float) -> None:
    one, other = short_turns(), short_turns()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(SECONDS)
    other.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_a_shorter_one_stays_as_it_is() -> None:
    sys.setswitchinterval(SECONDS / 2)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(SECONDS / 2)
