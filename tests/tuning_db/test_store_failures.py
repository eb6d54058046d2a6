"""The store's failures: each a typed error, the file as it was."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from database_samples import fill
from tuning_samples import (
    failed,
    timed,
)

from sparsegen.errors import (
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseLockedError,
    DatabaseNewerError,
    DatabaseReadOnlyError,
)
from sparsegen.tuning_db import engine as engine_module
from sparsegen.tuning_db.layers import open_existing, open_to_read
from sparsegen.tuning_db.published import read_published
from sparsegen.tuning_db.records import Outcome
from sparsegen.tuning_db.sqlite_files import check_file
from sparsegen.tuning_db.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


@pytest.mark.parametrize("content", [b"garbage", b"PK\x03\x04" + bytes(5000)])
@pytest.mark.parametrize("read_only", [False, True])
def test_garbage_is_refused_and_kept(path: Path, content: bytes, read_only: bool) -> None:
    path.write_bytes(content)
    with pytest.raises(DatabaseCorruptError, match="not a SQLite database"):
        Store.open(path, read_only=read_only)
    assert path.read_bytes() == content


def test_a_truncated_file_is_refused_and_kept(path: Path) -> None:
    fill(path, 200)
    content = path.read_bytes()
    content = content[: len(content) // 2]
    path.write_bytes(content)
    with pytest.raises(DatabaseCorruptError, match="left as it is"):
        Store.open(path)
    assert path.read_bytes() == content


def test_a_damaged_page_is_found_when_it_is_read(path: Path) -> None:
    fill(path, 200)
    content = bytearray(path.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    for start in range(len(content) - 6 * page, len(content), page):
        content[start : start + page] = b"\xff" * page
    path.write_bytes(content)
    with Store.open(path, read_only=True) as store:
        with pytest.raises(DatabaseCorruptError):
            store.all_measurements()
        assert store.damage()
    assert path.read_bytes() == content


OPENINGS: dict[str, Callable[[Path], object]] = {
    "to write": Store.open,
    "to read": partial(Store.open, read_only=True),
    "without SQLAlchemy": open_to_read,
    "if it is blank": open_existing,
    "as a layer": read_published,
}


@pytest.mark.parametrize("name", OPENINGS)
@pytest.mark.parametrize("text", [b"tablemeasurements", b"PRIMARY KEY", b"TEXT NOT NULL"])
def test_a_schema_that_is_no_text_is_refused_and_kept(path: Path, name: str, text: bytes) -> None:
    fill(path)
    content = path.read_bytes()
    assert text in content
    content = content.replace(text, text[:-1] + b"\xb6")
    path.write_bytes(content)
    with pytest.raises(DatabaseCorruptError, match="malformed database schema; the file is left as it is"):
        OPENINGS[name](path)
    assert path.read_bytes() == content


def test_another_applications_file_is_refused_and_kept(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE songs (title TEXT)")
        other.execute("CREATE TABLE alembic_version (version_num TEXT)")
    content = path.read_bytes()
    with pytest.raises(DatabaseCorruptError, match="songs"):
        Store.open(path)
    assert path.read_bytes() == content


def test_missing_tables_are_found(path: Path) -> None:
    fill(path)
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE baselines")
    with pytest.raises(DatabaseCorruptError, match="baselines"):
        Store.open(path)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused(path: Path, read_only: bool) -> None:
    fill(path)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE sparsegen_version SET version_num = '9001'")
    with pytest.raises(DatabaseNewerError, match=r"9001.*upgrade sparsegen") as caught:
        Store.open(path, read_only=read_only)
    assert str(path) in str(caught.value)


def test_a_file_that_another_process_makes_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def made_behind_a_look(self: Path, **options: bool) -> os.stat_result:
        try:
            return stat(self, **options)
        finally:
            if self == path:
                path.touch()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", made_behind_a_look)
        check_file(path, read_only=False)
    assert path.is_file()


def test_a_folder_is_no_database(path: Path) -> None:
    path.mkdir()
    with pytest.raises(DatabaseError, match="is not a file; name another"):
        check_file(path, read_only=False)


def test_a_lock_held_past_the_limit(path: Path) -> None:
    fill(path)
    with Store.open(path, lock_timeout=0.1) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLockedError, match="another process"):
            store.add_measurement(timed(9.0, at=9))
        assert len(store.all_measurements()) == 3, "readers do not wait"
        other.execute("ROLLBACK")
        other.close()
        store.add_measurement(timed(9.0, at=9))
        assert len(store.all_measurements()) == 4


def test_a_full_disk_loses_nothing(path: Path) -> None:
    fill(path)
    store = Store.open(path)
    engine_module.pragma(store._engine, "max_page_count = 1")  # SQLite raises it to the pages in use
    added = 0
    with pytest.raises(DatabaseFullError, match="free some space"):
        for added in range(10000):
            store.add_measurement(failed(Outcome.CRASHED, "x" * 4000, at=added, tile_n=32))
    assert len(store.all_measurements()) == 3 + added
    assert store.damage() == []
    store.close()


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """Becomes an unprivileged user for the test, as root may write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anybody may enter (pytest's own are private)."""
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def protect(folder: Path, *, folder_mode: int = 0o555) -> None:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(folder_mode)


def test_read_only_media(open_folder: Path, request: pytest.FixtureRequest) -> None:
    path = open_folder / "tuning.db"
    fill(path)
    protect(open_folder)
    before = path.read_bytes()
    request.getfixturevalue("unprivileged")
    with Store.open(path, read_only=True) as store:
        assert len(store.all_measurements()) == 3
        with pytest.raises(DatabaseReadOnlyError):
            store.add_measurement(timed(1.0, at=77))
    with pytest.raises(DatabaseReadOnlyError, match="--db"):
        Store.open(path)
    assert path.read_bytes() == before


def test_a_read_only_file_in_a_writable_folder(open_folder: Path, request: pytest.FixtureRequest) -> None:
    path = open_folder / "tuning.db"
    fill(path)
    protect(open_folder, folder_mode=0o777)
    request.getfixturevalue("unprivileged")
    with pytest.raises(DatabaseReadOnlyError):
        Store.open(path)
    with Store.open(path, read_only=True) as store:
        assert len(store.all_measurements()) == 3


def test_a_folder_that_cannot_be_written(open_folder: Path, request: pytest.FixtureRequest) -> None:
    protect(open_folder)
    request.getfixturevalue("unprivileged")
    for path in (open_folder / "tuning.db", open_folder / "deeper" / "tuning.db"):
        with pytest.raises(DatabaseReadOnlyError, match="--db"):
            Store.open(path)
