"""The last round keeps the budget: what is left when the time is over is not timed."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from sparsegen.tuning.loop import final_round
from sparsegen.tuning.loop.final_round import time_in_turn


class _Measuring:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def binary(self, variant: Any) -> Any:
        return variant

    def attempt(self, request: Any) -> Any:
        self.asked.append(request.variant)
        return SimpleNamespace(measured=SimpleNamespace(timing=object()))

    def measurement(self, variant: Any, *_: Any) -> Any:
        return _Found(variant)


class _Found(SimpleNamespace):
    def __init__(self, variant: Any) -> None:
        super().__init__(variant=variant)


@pytest.mark.parametrize(("left", "timed"), [(-1.0, ["a"]), (1e6, ["a", "b", "c"] * 2)])
def test_no_further_finalist_is_timed_when_time_is_over(
    left: float, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_round.finalists, "schedule", lambda *_: (2, 5))
    monkeypatch.setattr(final_round, "summarize", len)
    monkeypatch.setattr(final_round, "replace", lambda found, **changed: (found.variant, changed["sample"]))
    monkeypatch.setattr(final_round, "Measure", lambda variant, **_: SimpleNamespace(variant=variant))
    measuring, recorded = _Measuring(), []
    best: Any = [_Found(name) for name in "abc"]
    ledger: Any = SimpleNamespace(record=recorded.append)
    assert time_in_turn(best, 1.0, measuring, ledger, time.monotonic() + left)  # type: ignore[arg-type]
    assert measuring.asked == timed
    assert recorded == [(name, timed.count(name)) for name in dict.fromkeys(timed)]
