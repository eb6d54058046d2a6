"""Comparison, hash and text of frozen dataclasses, once for all classes.

`dataclasses` would compile three functions for each class: with some forty classes a tenth of a first look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any


class Compared:
    """Base class of dataclasses with ``frozen=True, eq=False, repr=False``, which compare as by ``eq=True``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        kind = self.__class__
        if kind is not other.__class__:
            return NotImplemented
        compared = _known.get(kind) or _compared(kind)
        return bool(compared(self) == compared(other))

    def __hash__(self) -> int:
        kind = self.__class__
        return hash((_known.get(kind) or _compared(kind))(self))

    def __repr__(self) -> str:
        told = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)  # type: ignore[arg-type]
        return f"{self.__class__.__qualname__}({', '.join(told)})"


_known: dict[type[Compared], Callable[[Any], object]] = {}


def _compared(kind: type[Compared]) -> Callable[[Any], object]:
    """Returns the function that gives the fields of a class's object by which it is compared, and keeps it."""
    names = [f.name for f in fields(kind) if f.compare]  # type: ignore[arg-type]
    found = _known[kind] = attrgetter(*names) if names else type
    return found
