"""Launches that any thread may start: each binds one of its own, since a bound launch is not to be shared."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from sparsegen.backends.executor import Executor

Bound = Callable[..., None]  # (stream, *addresses of the open slots)


class OwnLaunch(ABC):
    """A launch with other addresses each time, by any thread.

    Attributes:
        executor: the executor that runs it.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._mine = threading.local()

    def bound(self) -> Bound:
        """The calling thread's own launch: ``bound(stream, *addresses of the open slots)``.

        The device's context is current in the thread from the first time on, unless another one is.

        Raises:
            LaunchError: it cannot be bound.
        """
        try:
            return self._mine.bound  # type: ignore[no-any-return]
        except AttributeError:
            self.executor.activate()
            self._mine.bound = self._bind()
            return self._mine.bound  # type: ignore[no-any-return]

    @abstractmethod
    def _bind(self) -> Bound:
        """A launch for one thread, whose context is that of the device."""


class OwnBinding(OwnLaunch):
    """A launch that a function binds for each thread, which may compile it."""

    def __init__(self, executor: Executor, bind: Callable[..., Bound], *what: object) -> None:
        """
        Args:
            bind: makes one: ``bind(executor, *what)``.
        """
        super().__init__(executor)
        self._make = partial(bind, executor, *what)

    def _bind(self) -> Bound:
        with self.executor.entered():
            return self._make()
