"""Objects of this process as numbers, which PyTorch's dispatcher hands to custom operators."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from sparsegen.errors import OperandError

T = TypeVar("T")


class Handles(Generic[T]):
    """The objects that have a handle, as long as they live; called with one, it gives the object."""

    def __init__(self, missing: str) -> None:
        """
        Args:
            missing: message about a handle of nothing (any more), with a field for it.
        """
        self._missing = missing
        self._numbers = itertools.count(1)
        self._named: dict[int, Callable[[], T | None]] = {}

    def name(self, one: T) -> int:
        """A new handle for an object."""
        handle = next(self._numbers)
        self._named[handle] = weakref.ref(one, lambda _: self._named.pop(handle, None))
        return handle

    def __call__(self, handle: int) -> T:
        """Raises OperandError for a handle of nothing (any more)."""
        named = self._named.get(int(handle))
        one = None if named is None else named()
        if one is None:
            raise OperandError(self._missing.format(int(handle)))
        return one
