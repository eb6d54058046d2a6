"""Behind a search's baselines: whether the device's rates are measured, and that their process ends either way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparsegen.errors import MachineError
from sparsegen.tuning.loop import background, run
from sparsegen.tuning.loop.run import Run

RATES = SimpleNamespace(rates="so many bytes in a microsecond")


class Baselines:
    """Times nothing, and fails with what it is given."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.closed, self.asked_for_rates = error, 0, 0

    def measure(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return []

    def rates(self) -> Any:
        self.asked_for_rates += 1
        return RATES

    def close(self) -> None:
        self.closed += 1


def recorded_rates(
    monkeypatch: pytest.MonkeyPatch, baselines: Baselines, *, measures: bool, needed: bool
) -> list[Any]:
    monkeypatch.setattr(background, "begin", lambda work, _: work())
    monkeypatch.setattr(run, "CANNOT_BE_TIMED", (MachineError,))
    monkeypatch.setattr(Run, "_enter", lambda *_: None)
    rates: list[Any] = []
    ledger: Any = SimpleNamespace(
        trials=0,
        needs_rates=needed,
        has_baselines=lambda: False,
        record_baselines=lambda found: None,
        record_rates=rates.append,
    )
    nothing: Any = None
    given: Any = baselines
    limits: Any = SimpleNamespace(trials=1)
    made = Run(
        *(nothing, given, nothing, nothing, ledger, limits),
        *(nothing, nothing, nothing, nothing, nothing),
        measures_rates=measures,
    )
    made._time_baselines()
    made._measure_rates()
    return rates


@pytest.mark.parametrize("measures", [True, False])
@pytest.mark.parametrize("needed", [True, False])
@pytest.mark.parametrize("error", [None, MachineError("no memory is left")])
def test_rates_are_measured_where_they_are_wanted_and_unknown(
    monkeypatch: pytest.MonkeyPatch, measures: bool, needed: bool, error: Exception | None
) -> None:
    baselines = Baselines(error)
    found = recorded_rates(monkeypatch, baselines, measures=measures, needed=needed)
    wanted = measures and needed and error is None
    assert found == ([RATES] if wanted else []) and baselines.asked_for_rates == wanted
    assert baselines.closed == 1
