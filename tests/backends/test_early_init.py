"""Starting the driver early does nothing where there is none."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

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


def test_a_process_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(early_init, "begin", lambda: begun.append(True))
    early_init.begin_once.cache_clear()
    for _ in range(3):
        early_init.begin_once()
    assert len(begun) == 1
    early_init.begin_once.cache_clear()
