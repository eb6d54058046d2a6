"""The emulator's copies beside kernels: in order, on a thread of their own, and told when they have ended."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from sparsegen.backends.emulator import copies
from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.errors import LaunchError


def test_copies_come_in_order_and_the_host_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = EmulatorExecutor(threads=1)
    buffer = executor.allocate(800)
    stream, go_on = executor.copy_stream(), threading.Event()
    stream._thread.submit(go_on.wait)  # a copy that takes long
    first, second = np.arange(100.0), np.arange(100.0, 200.0)
    found = np.zeros(50)
    stream.send(first, buffer)
    stream.fetch(buffer, found)
    between = stream.moment()
    stream.send(second, buffer)
    assert not between.has_passed() and not found.any(), "the host did not wait"
    go_on.set()
    stream.hold_kernels(between)
    assert between.has_passed()
    np.testing.assert_array_equal(found, first[:50])
    stream.moment().wait()
    whole = np.zeros(100)
    executor.download(buffer, whole)
    np.testing.assert_array_equal(whole, second)


def test_a_copy_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = EmulatorExecutor(threads=1)
    stream, buffer = executor.copy_stream(), executor.allocate(80)
    with pytest.raises(LaunchError, match="does not fit 80 bytes"):
        stream.send(np.zeros(11), buffer)
    with pytest.raises(LaunchError, match="contiguous: False"):
        stream.fetch(buffer, np.zeros((4, 4))[:, 1])
    assert copies.HostPinnedMemory(0).array.size == 1 and executor.pinned(5).array.size == 5
    assert executor.free_bytes() is None
