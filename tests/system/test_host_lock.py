"""Locks that users share: whoever made the file, whatever lies in its place, and however a wait ends."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from patience import LONG

from sparsegen.errors import CacheError
from sparsegen.system import host_lock
from sparsegen.system.child import Interrupted
from sparsegen.system.host_lock import private_lock, shared_lock


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder like /tmp: all may write, none may remove another's."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture(autouse=True)
def each_told_once() -> Iterator[None]:
    host_lock._tell_once.cache_clear()
    yield


def is_free(path: Path) -> bool:
    """True if the lock is not held, as another process would find out."""
    import fcntl

    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_file_is_for_all_to_lock_and_for_none_to_write(place: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with shared_lock("gpu", [place], tmp_path / "own"):
            (file,) = place.iterdir()
            assert stat.S_IMODE(file.stat().st_mode) == 0o644 and file.stat().st_size == 0
            assert not is_free(file)
    finally:
        os.umask(before)
    assert is_free(file) and not (tmp_path / "own").exists()


def test_a_file_that_may_only_be_read_serves(place: Path, tmp_path: Path) -> None:
    """Another user's: Linux refuses to open it for making in a folder like /tmp."""
    file = place / "sparsegen-gpu.lock"
    file.touch()
    file.chmod(0o444)
    with shared_lock("gpu", [place], tmp_path / "own"):
        assert not is_free(file)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_of_ours_is_passed_over(
    kind: str, place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, target = place / "sparsegen-gpu.lock", tmp_path / "target"
    if kind == "link":
        file.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    second = tmp_path / "second"
    second.mkdir()
    with shared_lock("gpu", [place, second], tmp_path / "own"):
        assert not is_free(second / "sparsegen-gpu.lock")
    assert not target.exists() and "cannot be used as a lock" in caplog.text


def test_without_a_shared_place_only_the_user_is_protected_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)  # others could remove the file
    for _ in range(2):
        with shared_lock("gpu", [tmp_path / "nowhere", open_to_all], tmp_path / "own"):
            assert not is_free(tmp_path / "own" / "gpu.lock")
    assert list(open_to_all.iterdir()) == []
    assert caplog.text.count("SPARSEGEN_LOCKS") == 1


def test_a_private_folder_has_to_be_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(CacheError, match="every user may write it"), private_lock("gpu", tmp_path):
        pass


def test_a_wait_ends_when_the_holder_does(place: Path, tmp_path: Path) -> None:
    entered = threading.Event()

    def wait() -> None:
        with shared_lock("gpu", [place], tmp_path / "own"):
            entered.set()

    with ExitStack() as held:
        held.enter_context(shared_lock("gpu", [place], tmp_path / "own"))
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.wait(0.2)
    assert entered.wait(LONG)
    waiting.join()


def test_a_wait_may_be_given_up_and_keeps_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_lock, "LONG_SECONDS", 0.1)
    stop = threading.Event()
    with shared_lock("gpu", [place], tmp_path / "own"):
        threading.Timer(0.5, stop.set).start()
        with pytest.raises(Interrupted), shared_lock("gpu", [place], tmp_path / "own", stop=stop):
            pass
    assert "another process has measured" in caplog.text
    with shared_lock("gpu", [place], tmp_path / "own"):  # the wait that was given up does not hold it
        pass


def test_a_file_that_was_removed_meanwhile_is_no_lock(place: Path, tmp_path: Path) -> None:
    """A process that waited for the old file would hold a lock that no other one sees."""
    file, entered = place / "sparsegen-gpu.lock", threading.Event()
    seen: list[bool] = []

    def wait() -> None:
        with shared_lock("gpu", [place], tmp_path / "own"):
            seen.append(is_free(file))
            entered.set()

    with shared_lock("gpu", [place], tmp_path / "own"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.wait(0.2)
        file.unlink()
    assert entered.wait(LONG)
    waiting.join()
    assert seen == [False]
