"""Work that is dealt to threads, on NumPy's account: it leaves the interpreter to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], parts: Iterable[T], threads: int | None = None) -> list[R]:
    """Calls ``work`` for each part and returns the results in order; on this thread if one is enough.

    Args:
        threads: their number; by default Python's choice for this machine.

    Raises:
        What the work raises.
    """
    listed = list(parts)
    if threads == 1 or len(listed) == 1:
        return [work(part) for part in listed]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, listed))
