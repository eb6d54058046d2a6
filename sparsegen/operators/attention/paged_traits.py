"""Fields of attention over a paged cache: the size of a page, numbers of pages, and how pages are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from sparsegen import arguments
from sparsegen.errors import ConfigError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.operators.base.fields import NoValueError, Parameter

PAGE_SIZES = (16, 32, 64, 128, 256)


class Chosen(StrEnum):
    """The pages that a query attends to: all of its sequence, or those that a list of each key head names."""

    ALL = "all"
    LISTED = "listed"


@dataclass(frozen=True, slots=True)
class _Whole(Parameter):
    """A whole number among a problem's parameters."""

    count: int

    @classmethod
    def _allows(cls, count: int) -> bool:
        return 0 <= count <= MAX_INDEX

    @classmethod
    def _expected(cls) -> str:
        return f"no number of pages: expected a whole number up to {MAX_INDEX}"

    def __post_init__(self) -> None:
        if not self._allows(self.count):
            raise NoValueError(self._expected())

    @classmethod
    def parse(cls, value: Any) -> Self:
        """The number that a whole number or its digits stand for."""
        if isinstance(value, cls):
            return value
        try:
            return cls(int(value) if isinstance(value, str) else arguments.whole(value, "number"))
        except (ValueError, ConfigError):
            raise NoValueError(cls._expected()) from None

    def __str__(self) -> str:
        return str(self.count)

    @property
    def json(self) -> float | str:
        return self.count


class PageSize(_Whole):
    """Tokens of a page: 16, 32, 64, 128 or 256."""

    __slots__ = ()

    @classmethod
    def _allows(cls, count: int) -> bool:
        return count in PAGE_SIZES

    @classmethod
    def _expected(cls) -> str:
        return f"no size of a page: expected {', '.join(map(str, PAGE_SIZES))} tokens"


class PageCount(_Whole):
    """A number of pages, or 0 for as many as there must be."""

    __slots__ = ()
