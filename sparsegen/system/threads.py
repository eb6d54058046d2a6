"""Work that is dealt to threads, on NumPy's account: it leaves the interpreter to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def for_each(parts: Iterable[T], work: Callable[[T], object], threads: int) -> None:
    """Do the work of every part on so many threads; on this one where it is one, which takes no time to start.

    Raises:
        What the work raises.
    """
    if threads == 1:
        for part in parts:
            work(part)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, parts):
            pass


def in_threads(work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """What the work gives for each part, in their order; a single part is done on this thread.

    Raises:
        What the work raises.
    """
    if len(parts) == 1:
        return [work(parts[0])]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        return list(pool.map(work, parts))
