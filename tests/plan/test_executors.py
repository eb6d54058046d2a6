"""Executors that operators share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sparsegen.backends.emulator import device
from sparsegen.kernels.base import Device
from sparsegen.plan import executors


def test_equal_gpus_have_an_executor_each(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def open_executor(device: Device) -> object:
        opened.append(device.index)
        return object()

    monkeypatch.setattr("sparsegen.backends.open_executor", open_executor)
    monkeypatch.setattr(executors, "_executors", {})
    first, second = device(), replace(device(), index=1)
    assert first == second, "dispatch takes the measurements of one for the other"
    assert executors.shared_executor(first) is not executors.shared_executor(second)
    assert executors.shared_executor(second) is executors.shared_executor(replace(device(), index=1))
    assert opened == [0, 1]


def test_a_thread_is_ready_to_launch_what_was_made_for_it() -> None:
    """CUDA does the same: a block's context is gone after it, and one that is current is not replaced."""
    contexts: list[str] = []

    class Fake:
        @contextmanager
        def entered(self) -> Iterator[None]:
            contexts.append("pushed")
            yield
            contexts.pop()

        def activate(self) -> None:
            if not contexts:
                contexts.append("the thread's")

    def make() -> int:
        assert contexts == ["pushed"]
        return 3

    assert executors.made_here(Fake(), make) == 3  # type: ignore[arg-type]
    assert contexts == ["the thread's"]
