"""Dictionaries of bounded size."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A dictionary of bounded size: an entry more than that takes the place of all.

    Reading is a dictionary's own. Only an assignment by key keeps to the limit.
    """

    def __init__(self, most: int) -> None:
        """An empty one.

        Args:
            most: entries that are kept at once.
        """
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most:
            self.clear()
        super().__setitem__(key, value)
