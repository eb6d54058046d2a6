"""Proposals from the first moment: what is known to be good is tried while the search is still being set up.

Listing the valid configs takes up to a second, importing Optuna some tenths of one. What is to be tried first is known
before, and takes as long to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from sparsegen.kernels.config import Config
from sparsegen.tuning.loop import background
from sparsegen.tuning.space import Space
from sparsegen.tuning_db.records import Measurement


class Proposals(Protocol):
    """Source of candidates: `sparsegen.tuning.search.search.Search`, or a prepared list."""

    @property
    def space(self) -> Space: ...

    def ask(self) -> Config | None:
        """The next candidate, or None when every one was proposed; never the same twice."""

    def prefer(self, candidates: Iterable[Config]) -> None:
        """Ask for these next, in their order, as far as they are in the space and were not asked for yet."""

    def tell(self, m: Measurement) -> None:
        """Reports the outcome of a candidate that was asked for."""

    def hear(self, m: Measurement) -> None:
        """Reports a measurement of an equal search, of a candidate that may not have been asked for here."""


class EarlySearch:
    """A search that a thread sets up, and the proposals that it would begin with, at once.

    What was proposed and told meanwhile, the search is asked for and told when it is there: its study is the same as if
    it had been there from the start.

    Args:
        first: first proposals of the search, in this order and without repeats.
        set_up: makes the search; called once, in a thread of its own.
    """

    def __init__(self, first: Sequence[Config], set_up: Callable[[], Proposals]) -> None:
        self._waiting = list(first)
        self._asked: list[Config] = []
        self._told: list[Measurement] = []
        self._search: Proposals | None = None
        self._future = background.begin(set_up, "search")

    @property
    def has_next(self) -> bool:
        """True if `ask` would answer at once, if only that nothing is left."""
        return self._search is not None or bool(self._waiting) or self._future.done()

    @property
    def is_set_up(self) -> bool:
        """True if `complete` would return (or raise) at once."""
        return self._search is not None or self._future.done()

    def complete(self) -> Proposals:
        """The search itself, once it is set up.

        Raises:
            What ``set_up`` raises.
        """
        if self._search is None:
            search = self._future.result()
            for candidate in self._asked:
                asked = search.ask()
                assert asked == candidate, "the search proposes the first candidates in their order"
            for measurement in self._told:
                search.tell(measurement)
            self._search = search
        return self._search

    def ask(self) -> Config | None:
        """The next candidate, or None when every one was proposed; never the same twice.

        Waits for the search when nothing is left that comes before it.
        """
        if self._search is not None or self._future.done() or not self._waiting:
            return self.complete().ask()
        candidate = self._waiting.pop(0)
        self._asked.append(candidate)
        return candidate

    def prefer(self, candidates: Iterable[Config]) -> None:
        """See `Search.prefer`; waits for the search."""
        self.complete().prefer(candidates)

    def hear(self, m: Measurement) -> None:
        """See `Search.hear`; waits for the search."""
        self.complete().hear(m)

    def tell(self, m: Measurement) -> None:
        """Reports the outcome of a candidate that was asked for."""
        if self._search is None:
            self._told.append(m)
        else:
            self._search.tell(m)
