"""Starting the driver early does nothing where there is none."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from patience import LONG

from sparsegen.backends.cuda import early_init


def test_without_a_driver_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    raised: list[object] = []
    monkeypatch.setattr("threading.excepthook", raised.append)
    early_init.begin().join(LONG)
    assert not raised


def test_it_is_initialised_once_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    driver = SimpleNamespace(cuInit=lambda flags: asked.append(flags.value))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    early_init.begin().join(LONG)
    assert asked == [0]


def test_the_context_of_a_gpu_is_made_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    def device_get(device: Any, index: Any) -> int:
        device._obj.value = index.value + 40
        calls.append(("device", index.value))
        return 0 if index.value < 2 else 101

    def retain(context: Any, device: Any) -> int:
        calls.append(("retain", device.value))
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGet=device_get, cuDevicePrimaryCtxRetain=retain)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    for index in (1, 2):
        early_init.begin(index).join(LONG)
    assert calls == [("device", 1), ("retain", 41), ("device", 2)]
    driver.cuInit = lambda flags: 100
    early_init.begin(1).join(LONG)
    assert len(calls) == 3, "there is no driver to ask"


def test_a_process_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(early_init, "begin", lambda: begun.append(True))
    early_init.begin_once.cache_clear()
    for _ in range(3):
        early_init.begin_once()
    assert len(begun) == 1
    early_init.begin_once.cache_clear()
