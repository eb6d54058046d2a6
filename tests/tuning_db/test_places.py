"""Databases and folders that cannot be read, are another user's, or are not there: exit code 6, no traceback."""

from __future__ import annotations

import logging
import os
import pwd
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tuning_samples import H100, timed, workload
from unprivileged import unprivileged

from sparsegen.cli.main import cli
from sparsegen.errors import DatabaseError
from sparsegen.settings import Settings
from sparsegen.system import private
from sparsegen.tuning_db import project
from sparsegen.tuning_db.exchange import Content, dump
from sparsegen.tuning_db.layers import PROJECT_DATABASE, open_layers
from sparsegen.tuning_db.store import Store

LAYER = Path(__file__).parents[2] / "examples" / "pruned_mlp_layer.npz"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own; modes bind the test, also if it runs as root."""
    with unprivileged():
        yield tmp_path
    for path in (tmp_path, *tmp_path.rglob("*")):
        if path.is_dir():
            path.chmod(0o700)


def made_store(place: Path) -> None:
    with Store.open(place) as store:
        store.add_measurement(timed(10.0))


def unreadable(place: Path) -> None:
    made_store(place)
    place.chmod(0)


def in_unreadable_folder(place: Path) -> None:
    made_store(place)
    place.parent.chmod(0)


def other_tables(place: Path) -> None:
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")


def other_columns(place: Path) -> None:
    """Tables of our names, but not ours."""
    made_store(place)
    with sqlite3.connect(place) as connection:
        connection.executescript("DROP TABLE measurements; CREATE TABLE measurements (x INTEGER)")


def other_version_table(place: Path) -> None:
    with sqlite3.connect(place) as connection:
        connection.execute("CREATE TABLE sparsegen_version (x INTEGER)")


def garbage_after_the_header(place: Path) -> None:
    made_store(place)
    content = place.read_bytes()
    place.write_bytes(content[:100] + bytes(i % 251 for i in range(len(content) - 100)))


PLACES: dict[str, Callable[[Path], object]] = {
    "a folder": lambda place: place.mkdir(),
    "a pipe": lambda place: os.mkfifo(place),
    "a text": lambda place: place.write_text("CREATE TABLE x;\n" * 100),
    "unreadable": unreadable,
    "in an unreadable folder": in_unreadable_folder,
    "other tables": other_tables,
    "other columns": other_columns,
    "another version table": other_version_table,
    "garbage after the header": garbage_after_the_header,
    "below a file": lambda place: (place.parent.rmdir(), place.parent.write_text("")),
    "a link to itself": lambda place: place.symlink_to(place),
}
COMMANDS = {
    "db list": (),
    "db show": ("ab",),
    "db check": (),
    "db export": (),
    "db import": ("export.json",),
    "db migrate": (),
    "db forget": ("ab", "--yes"),
    "lookup": ("--matrix", str(LAYER), "-n", "8", "--device", "emulator"),
    "tune": ("--matrix", str(LAYER), "-n", "8", "--device", "emulator", "--trials", "1"),
}
GOES_WELL = {  # where there is no database, a look-up goes by the seeds; a migration asks for none of the columns
    ("lookup", "below a file"),
    ("db migrate", "other columns"),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_used(
    name: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPARSEGEN_CACHE", str(folder / "cache"))
    place = folder / "below" / "tuning.db"
    place.parent.mkdir()
    Path("export.json").write_text(dump(Content((), ())))
    PLACES[name](place)
    arguments = [*command.split(), *COMMANDS[command], "--db", str(place)]
    result = CliRunner().invoke(cli, arguments)
    if (command, name) in GOES_WELL:
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == DatabaseError.exit_code, (result.output, result.exception)
    said = result.stderr or result.stdout
    assert str(place.parent) in said and "Traceback" not in said, said


# --- nowhere to write ---


@pytest.fixture
def _no_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Removes the home folder, as for a container's user that /etc/passwd does not know."""
    monkeypatch.chdir(folder)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "SPARSEGEN_CACHE", "SPARSEGEN_DB"):
        monkeypatch.delenv(name, raising=False)

    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("_no_home")
def test_without_a_home_a_database_must_be_named(folder: Path) -> None:
    settings = Settings.from_environment()
    assert settings.db.startswith("~") and not settings.cache.is_absolute()
    with open_layers(settings) as layers:
        assert len(layers.layers) == 1, "look-ups go by the seeds"
    for command in ("db list", "db migrate", "tune"):
        result = CliRunner().invoke(cli, [*command.split(), *COMMANDS[command]])
        assert result.exit_code == DatabaseError.exit_code, result.output
        assert "no home folder" in result.stderr and "SPARSEGEN_DB" in result.stderr
    assert not list(folder.iterdir()), "and no folder of the name ~ is made"


@pytest.mark.usefixtures("_no_home")
def test_without_a_home_a_cache_must_be_named(folder: Path) -> None:
    arguments = ["verify", *COMMANDS["lookup"]]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1, result.output
    line, help_line = result.stderr.strip().splitlines()
    assert help_line == "help: docs/errors.md#cacheerror"
    assert line.startswith("error: ") and "SPARSEGEN_CACHE" in line
    assert not list(folder.iterdir())


def test_a_cache_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPARSEGEN_CACHE", "/proc/nowhere/cache")
    monkeypatch.setenv("SPARSEGEN_DB", str(folder / "tuning.db"))
    for command in ("verify", "tune"):
        result = CliRunner().invoke(cli, [command, *COMMANDS["lookup"]])
        assert result.exit_code == 1, result.output
        line, _ = result.stderr.strip().splitlines()[-2:]
        assert "SPARSEGEN_CACHE" in line and "Traceback" not in result.output
    with Store.open(folder / "tuning.db") as store:
        assert store.all_measurements() == []


def test_the_working_folder_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("SPARSEGEN_DB", str(folder / "tuning.db"))
    made_store(folder / "tuning.db")
    with open_layers(Settings.from_environment()) as layers:
        assert layers.measurements(workload(), H100)
    for db in ("tuning.db", "sqlite:///tuning.db"):
        with pytest.raises(DatabaseError, match="working folder is gone"):
            Store.open(db)


# --- the project's database, which nobody named ---


@pytest.fixture
def _with_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SPARSEGEN_DB", str(folder / "user.db"))
    monkeypatch.setattr(private, "_is_private_group", lambda number: False)
    project._warn_once.cache_clear()
    made_store(PROJECT_DATABASE)


def is_read() -> bool:
    with open_layers(Settings.from_environment()) as layers:
        return any(getattr(layer, "location", "").endswith(str(PROJECT_DATABASE)) for layer in layers.layers)


@pytest.mark.usefixtures("_with_project")
def test_ones_own_project_is_read(caplog: pytest.LogCaptureFixture) -> None:
    assert is_read() and not caplog.messages


@pytest.mark.usefixtures("_with_project")
@pytest.mark.parametrize("place", [PROJECT_DATABASE, PROJECT_DATABASE.parent])
@pytest.mark.parametrize("mode", [0o002, 0o020])
def test_a_project_that_others_can_write_is_passed_over(
    place: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    place.chmod(place.stat().st_mode | mode)
    with caplog.at_level(logging.WARNING, "sparsegen"):
        assert not is_read() and not is_read()
    [line] = caplog.messages
    assert str(place.absolute()) in line and "--db" in line
    with Store.open(PROJECT_DATABASE, read_only=True) as asked:
        assert asked.all_measurements(), "one that is named is read"


@pytest.mark.usefixtures("_with_project")
@pytest.mark.parametrize("place", [PROJECT_DATABASE, PROJECT_DATABASE.parent])
def test_a_project_of_another_user_is_passed_over(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(place, 12345, -1)
    assert not is_read()
