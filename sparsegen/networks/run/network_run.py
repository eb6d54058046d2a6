"""The part that all ways of inferring a network on one device share: callers in turn, and words on their way back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sparsegen.backends.executor import Executor, PinnedMemory
from sparsegen.system.device_memory import Address, Buffer
from sparsegen.system.numpy_types import Array


class NetworkRun:
    """Launches of a network on one device, in memory that all callers share.

    How inputs go through the network is a policy's: in chunks, segment by segment (`DeviceRun`); in float64, in rounds
    (`Float64Run`); by bounds of few layers, with the run of float64 for what these leave open (`ExactRun`).

    Any thread may call, with any stream: a call on another stream than the one before it waits on the host until that
    has ended (`turn`).

    Attributes:
        executor: the device's.
    """

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._lock = threading.Lock()
        self._queued_on: int | None = None  # the stream of launches that were not waited for
        self._landing: PinnedMemory | None = None  # host memory that receives words

    @contextmanager
    def turn(self, stream: int, *, is_awaited: bool = True) -> Iterator[None]:
        """The memory is the caller's inside the block, for launches on this stream.

        Args:
            is_awaited: the caller waits for its launches before the block ends.
        """
        with self._lock:
            if self._queued_on not in (None, stream):
                self.executor.synchronize()
            self._queued_on = stream
            yield
            if is_awaited:
                self._queued_on = None

    def downloaded(self, buffer: Buffer, words: int, stream: int = 0) -> Array:
        """The first words of a buffer, int32, when the stream has come so far."""
        if stream:
            self.executor.synchronize()
        if self._landing is None or self._landing.array.nbytes < 4 * words:
            self._landing = self.executor.pinned(4 * words)
        found: Array = self._landing.array[: 4 * words].view(np.int32)
        self.executor.download(Address(buffer.address, found.nbytes), found)
        return found.copy()
