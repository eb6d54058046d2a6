"""Times in these tests are made up: the cost model, which knows better, is asked by tests of its own alone."""

from __future__ import annotations

import math

import pytest

from sparsegen.dispatch import modelled


@pytest.fixture(autouse=True)
def votes_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modelled, "WORTH_ANOTHER", math.inf)
