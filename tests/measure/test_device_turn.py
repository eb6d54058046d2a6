"""Mutual exclusion: on a GPU of all users with all their caches, on the emulator of processes with one cache."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Timer

import pytest
from patience import LONG

from sparsegen import backends
from sparsegen.kernels.base import Device
from sparsegen.measure import device_turn as turns
from sparsegen.measure.device_turn import device_turn
from sparsegen.system.child import Interrupted

STRANGERS = (65534, 65533)  # users that own nothing
GPU = replace(
    backends.emulator_device(), key="gpu", backend="cuda", uuid="GPU-12345678-90ab-cdef-1234-567890abcdef"
)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /tmp, which pytest's own folders would hide from other users."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        monkeypatch.setenv("SPARSEGEN_LOCKS", name)
        yield folder


def is_free(device: Device, folder: Path) -> bool:
    stop = Event()
    giving_up = Timer(0.3, stop.set)
    giving_up.start()
    try:
        with device_turn(device, folder, stop=stop):
            return True
    except Interrupted:
        return False
    finally:
        giving_up.cancel()


def test_a_gpu_is_one_for_all_caches_whatever_its_number(tmp_path: Path) -> None:
    with device_turn(GPU, tmp_path / "mine"):
        assert not is_free(replace(GPU, index=3), tmp_path / "theirs")
        assert is_free(replace(GPU, uuid="GPU-another"), tmp_path / "theirs")
    assert is_free(GPU, tmp_path / "theirs")


def test_the_emulator_is_one_for_each_cache_and_number(tmp_path: Path) -> None:
    first, second = backends.emulator_device(), backends.emulator_device(1)
    with device_turn(first, tmp_path / "mine"):
        assert not is_free(first, tmp_path / "mine")
        assert is_free(first, tmp_path / "theirs") and is_free(second, tmp_path / "mine")


def test_shared_places_are_used_where_no_folder_is_named(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARSEGEN_LOCKS")
    monkeypatch.setattr(turns, "SHARED_PLACES", (place,))
    with device_turn(GPU, tmp_path / "mine"):
        assert [file.name for file in place.iterdir()] == [f"sparsegen-{GPU.uuid}.lock"]


def hold(connection: Connection, place: str, own: str, user: int) -> None:
    """In a process of another user: hold the GPU until told to end."""
    os.setuid(user)
    os.environ["SPARSEGEN_LOCKS"] = place
    with device_turn(GPU, Path(own)):
        connection.send("held")
        connection.recv()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two users")
def test_users_exclude_each_other(tmp_path: Path, place: Path) -> None:
    """Whichever of them made the file."""
    for user in STRANGERS:
        ours, theirs = multiprocessing.Pipe()
        with ExitStack() as ended:
            arguments = (theirs, str(place), str(tmp_path / "theirs"), user)
            process = multiprocessing.get_context("spawn").Process(target=hold, args=arguments)
            process.start()
            ended.callback(process.join)
            ended.callback(ours.send, "end")
            assert ours.poll(LONG) and ours.recv() == "held"
            assert not is_free(GPU, tmp_path / "ours")
        assert is_free(GPU, tmp_path / "ours")
