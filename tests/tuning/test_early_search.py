"""Proposals before the search is there, and the same study as if it had been there from the start."""

from __future__ import annotations

import threading

import pytest
from optuna.trial import TrialState
from patience import LONG
from tuning_fakes import DEVICE, PROBLEM, TOY, ToyConfig, told

from sparsegen.errors import NoVariantError
from sparsegen.kernels.config import Config
from sparsegen.tuning.loop.early_search import EarlySearch
from sparsegen.tuning.search.search import Search
from sparsegen.tuning.space import Space

FIRST: list[Config] = [ToyConfig(8, 1), ToyConfig(16, 1), ToyConfig(4, 4)]


def whole() -> Search:
    return Search(Space.build([TOY], PROBLEM, DEVICE, first=FIRST), FIRST)


class Held:
    """A search that is set up when it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go, self.error = threading.Event(), error

    def __call__(self) -> Search:
        assert self.go.wait(LONG)
        if self.error:
            raise self.error
        return whole()


def test_the_first_ones_come_at_once_and_the_others_when_they_are_known() -> None:
    held = Held()
    search = EarlySearch(FIRST, held)
    asked = [search.ask() for _ in FIRST]
    assert asked == FIRST and not search.has_next and not search.is_set_up
    search.tell(told(FIRST[1], 5.0))
    search.tell(told(FIRST[0], None))
    held.go.set()
    later = search.ask()  # waits
    assert later not in FIRST and later is not None and search.has_next and search.is_set_up
    search.tell(told(FIRST[2], 7.0))
    study = search.complete().study
    assert [t.state for t in study.trials] == [
        TrialState.FAIL,
        TrialState.COMPLETE,
        TrialState.COMPLETE,
        TrialState.RUNNING,
    ]
    assert [t.value for t in study.trials[1:3]] == [5.0, 7.0]


def test_it_ends_as_the_search_does() -> None:
    held = Held()
    search = EarlySearch(FIRST, held)
    early = search.ask()
    held.go.set()
    found: list[Config | None] = [early]
    while found[-1] is not None:
        found.append(search.ask())
    assert set(found[:-1]) == set(search.complete().space.candidates) and len(set(found)) == len(found)
    assert found[:3] == FIRST


def test_what_keeps_the_search_from_being_set_up_is_raised() -> None:
    held = Held(NoVariantError("nothing is valid"))
    search = EarlySearch([], held)
    assert not search.has_next
    held.go.set()
    with pytest.raises(NoVariantError, match="nothing is valid"):
        search.ask()
    with pytest.raises(NoVariantError, match="nothing is valid"):
        search.complete()
