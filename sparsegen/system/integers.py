"""Division of whole numbers."""

from __future__ import annotations

from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
def ceil_div(dividend: int, divisor: int) -> int: ...


@overload
def ceil_div(dividend: T, divisor: object) -> T: ...


def ceil_div(dividend: Any, divisor: Any) -> Any:
    """Return the quotient, rounded up; of arrays and tensors element by element."""
    return -(-dividend // divisor)


@overload
def round_up(number: int, step: int) -> int: ...


@overload
def round_up(number: T, step: object) -> T: ...


def round_up(number: Any, step: Any) -> Any:
    """Return the least multiple of ``step`` that is not less; of arrays and tensors element by element."""
    return -(-number // step) * step  # one call, as hot paths come here
