"""Times in these tests are made up: what the cost model thinks of other families has tests of its own."""

from __future__ import annotations

import pytest

from sparsegen.dispatch import neighbours


@pytest.fixture(autouse=True)
def what_was_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "families_of", lambda operator: ())
