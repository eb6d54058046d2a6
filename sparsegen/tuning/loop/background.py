"""Work that begins in a thread of its own while this one goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str, into: Future[T] | None = None) -> Future[T]:
    """Starts ``work`` in a thread and returns a future of its result or error; a program that ends does not wait for
    it.

    Args:
        into: a future that was handed out before; by default a new one.
    """
    future: Future[T] = Future() if into is None else into

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name=name).start()
    return future
