"""The cache of compiled variants: what is damaged heals, what others could have written is refused."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import LONG

from sparsegen.backends.cache import META_NAME, CompileCache, Entry, file_digest
from sparsegen.errors import CacheError, CompileError
from sparsegen.system import private, publish

NAME = "family-0123456789abcdef"


def build(work: Path) -> dict[str, object]:
    (work / "kernel.so").write_bytes(b"code" * 1000)
    (work / "kernel.cu").write_text("source")
    return {"entry": "kernel"}


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(tmp_path / "cache", "emulator")


def made(cache: CompileCache) -> Entry:
    return cache.find(NAME) or cache.make(NAME, build)


def test_an_entry_is_found_as_it_was_made(cache: CompileCache) -> None:
    assert cache.find(NAME) is None and not cache.root.exists(), "looking makes nothing"
    first = made(cache)
    assert cache.find(NAME) == first and first.facts["entry"] == "kernel"
    assert first.digests == {name: file_digest(first.folder / name) for name in ("kernel.so", "kernel.cu")}
    assert {p.stat().st_mode & 0o777 for p in (cache.root, cache.folder, first.folder)} == {0o700}


def truncate(folder: Path) -> None:
    with (folder / "kernel.so").open("r+b") as file:
        file.truncate(100)


def as_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("a file")


def as_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty folder": lambda f: [path.unlink() for path in f.iterdir()],
    "truncated binary": truncate,
    "empty binary": lambda f: (f / "kernel.so").write_bytes(b""),
    "other bytes": lambda f: (f / "kernel.so").write_bytes(b"CODE" * 1000),
    "other source": lambda f: (f / "kernel.cu").write_text("Source"),
    "no binary": lambda f: (f / "kernel.so").unlink(),
    "no meta": lambda f: (f / META_NAME).unlink(),
    "empty meta": lambda f: (f / META_NAME).write_text(""),
    "meta of an older version": lambda f: (f / META_NAME).write_text('{"entry": "kernel"}'),
    "meta is a list": lambda f: (f / META_NAME).write_text("[1]"),
    "meta without digests": lambda f: (f / META_NAME).write_text('{"sha256": 7}'),
    "meta is no text": lambda f: (f / META_NAME).write_bytes(b"\xff\xfe\x00"),
    "deep meta": lambda f: (f / META_NAME).write_text("[" * 100_000),
    "meta names a file elsewhere": lambda f: (f / META_NAME).write_text('{"sha256": {"../x": "0"}}'),
    "binary is a folder": lambda f: as_folder(f / "kernel.so"),
    "meta is a folder": lambda f: as_folder(f / META_NAME),
    "an entry that is a file": as_file,
    "an entry that is a link": as_link,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again(
    damage: str, cache: CompileCache, caplog: pytest.LogCaptureFixture
) -> None:
    entry = made(cache)
    DAMAGE[damage](entry.folder)
    with caplog.at_level(logging.WARNING, "sparsegen"):
        assert made(cache) == entry
    assert cache.find(NAME) == entry, "it stays mended"
    [line] = caplog.messages
    assert str(entry.folder) in line and "\n" not in line


# --- whose it is ---


def places(cache: CompileCache, entry: Entry) -> dict[str, Path]:
    """Returns files and folders of a cache and an entry, which no other user may write."""
    return {
        "root": cache.root,
        "backend": cache.folder,
        "entry": entry.folder,
        "binary": entry.folder / "kernel.so",
        "meta": entry.folder / META_NAME,
    }


@pytest.mark.parametrize("place", ("root", "backend", "entry", "binary", "meta"))
@pytest.mark.parametrize("mode", (0o002, 0o020))
def test_what_others_can_write_is_refused(
    place: str, mode: int, cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_is_private_group", lambda number: False)
    entry = made(cache)
    path = places(cache, entry)[place]
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(CacheError, match=f"{path}.*SPARSEGEN_CACHE"):
        made(cache)
    path.chmod(path.stat().st_mode & ~mode)
    assert made(cache) == entry


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("place", ("root", "backend", "entry", "binary", "meta"))
def test_what_others_own_is_refused(place: str, cache: CompileCache) -> None:
    entry = made(cache)
    path = places(cache, entry)[place]
    os.chown(path, 12345, 0)
    with pytest.raises(CacheError, match=f"{path}.*belongs to"):
        made(cache)


def test_a_group_of_ones_own_may_write(cache: CompileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ubuntu gives every user a group and the mask 002."""
    monkeypatch.setattr(private, "_is_private_group", lambda number: True)
    cache.root.mkdir(mode=0o775)
    cache.root.chmod(0o775)
    assert made(cache) == made(cache)
    cache.root.chmod(0o777)
    with pytest.raises(CacheError, match="every user"):
        made(cache)


# --- places that cannot be used ---


def test_a_place_without_a_home(cache: CompileCache) -> None:
    with pytest.raises(CacheError, match=r"no home folder.*SPARSEGEN_CACHE"):
        CompileCache(Path("~/.cache/sparsegen"), "emulator").make(NAME, build)


def test_a_file_where_the_cache_should_be(cache: CompileCache) -> None:
    cache.root.write_text("")
    for place in (cache, CompileCache(cache.root / "below", "emulator")):
        with pytest.raises(CacheError, match="SPARSEGEN_CACHE") as caught:
            place.make(NAME, build)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ("ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO"))
def test_a_disk_that_takes_nothing(number: str, cache: CompileCache) -> None:
    import errno

    code = getattr(errno, number)

    def fails(work: Path) -> dict[str, object]:
        raise OSError(code, os.strerror(code), str(work / "kernel.so"))

    with pytest.raises(CacheError, match=f"{os.strerror(code)}.*SPARSEGEN_CACHE"):
        cache.make(NAME, fails)
    assert not list(cache.folder.iterdir()), "nothing half done is left"


# --- others who work there ---


def test_a_cache_that_is_cleared_while_it_compiles(cache: CompileCache) -> None:
    calls = []

    def cleared(work: Path) -> dict[str, object]:
        calls.append(work)
        if len(calls) == 1:
            shutil.rmtree(cache.root)
            raise CompileError("no such file")  # so the compiler says
        return build(work)

    assert cache.make(NAME, cleared) == cache.find(NAME)
    assert len(calls) == 2


def test_a_cache_that_is_cleared_always(cache: CompileCache) -> None:
    def cleared(work: Path) -> dict[str, object]:
        shutil.rmtree(work)
        return {}

    with pytest.raises(CacheError, match="deleted at once"):
        cache.make(NAME, cleared)


def test_errors_of_the_source_are_its_own(cache: CompileCache) -> None:
    def wrong(work: Path) -> dict[str, object]:
        raise CompileError("line 1: no")

    with pytest.raises(CompileError, match="line 1"):
        cache.make(NAME, wrong)
    assert not list(cache.folder.iterdir())


def test_what_a_killed_compile_left_is_swept(cache: CompileCache) -> None:
    """And what a living one writes stays, however long it takes."""
    made(cache)
    left = cache.folder / f".{NAME}-k3x_9q"
    left.mkdir()
    (left / "kernel.cu").write_text("half")
    goes_on, done = threading.Event(), threading.Event()

    def slow(work: Path) -> dict[str, object]:
        os.utime(work, (0, 0))
        goes_on.set()
        assert done.wait(LONG)
        return build(work)

    thread = threading.Thread(
        target=lambda: CompileCache(cache.root, "emulator").make("slow-" + "0" * 16, slow)
    )
    thread.start()
    try:
        assert goes_on.wait(LONG)
        assert list(cache.unfinished()) == [], "it may have been made just now"
        os.utime(left, (0, 0))
        assert list(cache.unfinished()) == [left]
        other = CompileCache(
            cache.root.parent / "link", "emulator"
        )  # another name: sweeping is once a process
        other.root.symlink_to(cache.root)
        other.make("third-" + "0" * 16, build)
        assert not left.exists()
    finally:
        done.set()
        thread.join()
    assert cache.find("slow-" + "0" * 16) is not None


def test_a_folder_is_on_the_disk_before_it_has_its_name(
    cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[str, bool]] = []
    flush = publish._flush

    def noted(path: Path) -> None:
        flushed.append((path.name, (cache.folder / NAME).exists()))
        flush(path)

    monkeypatch.setattr(publish, "_flush", noted)
    made(cache)
    *before, last = flushed
    assert {"kernel.so", "kernel.cu", META_NAME} <= {name for name, _ in before}
    assert not any(is_there for _, is_there in before) and last == (cache.folder.name, True)


def test_one_at_a_time_makes_what_takes_long(cache: CompileCache) -> None:
    """And whoever waited finds it made; what is of another name has no turn to wait for."""
    seen: list[str] = []

    def second() -> None:
        with cache.turn("runtime-1"):
            seen.append("second")

    waiting = threading.Thread(target=second)
    with cache.turn("runtime-1"), cache.turn("runtime-2"):
        waiting.start()
        waiting.join(0.2)
        seen.append("first")
    waiting.join()
    assert seen == ["first", "second"]
    assert not list(cache.entries()) and not list(cache.unfinished())
