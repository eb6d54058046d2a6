"""``sparsegen db``: every subcommand, for people and for machines."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from command_line import Command
from tuning_samples import baseline, failed, timed, workload

from sparsegen.tuning_db.forgetting import Selection
from sparsegen.tuning_db.records import Outcome
from sparsegen.tuning_db.store import Store

FINGERPRINT = workload().fingerprint


@pytest.fixture
def filled(run: Command) -> Command:
    with Store.open(run.db) as store:
        store.add_all(
            [
                timed(12.5, tile_n=32, final=True),
                timed(20.0, tile_n=64),
                failed(Outcome.CRASHED, "[red]illegal address", at=1, tile_n=128),
            ],
            [baseline(9.0)],
        )
    return run


def test_list(filled: Command) -> None:
    text = filled("db", "list").stdout
    assert FINGERPRINT[:12] in text and "12.5 µs" in text and "2, 1 failed" in text
    (found,) = filled.json("db", "list")["workloads"]
    assert found["winner"]["config"]["tile_n"] == 32 and found["problem"]["n"] == 64


def test_an_empty_database(run: Command) -> None:
    Store.open(run.db).close()
    assert "no measurements" in run("db", "list").stdout
    assert run.json("db", "list")["workloads"] == []


def test_show(filled: Command) -> None:
    text = filled("db", "show", FINGERPRINT[:6]).stdout
    assert "12.5 µs (final)" in text and "tile_n=32" in text and "cublas (torch 2.9): 9 µs" in text
    assert "1 crashed, such as: [red]illegal address" in text
    (found,) = filled.json("db", "show", FINGERPRINT[:6])["workloads"]
    assert [m["sample"]["median_us"] for m in found["ranking"]] == [12.5, 20.0]
    assert found["failures"][0]["outcome"] == "crashed"
    assert "begins with 'ffff0'" in filled("db", "show", "ffff0", exit_code=6).stderr


def test_study(filled: Command, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    (found,) = filled.json("db", "study", FINGERPRINT[:6], "--storage", url)["studies"]
    assert (found["trials"], found["left_out"]) == (3, 0) and FINGERPRINT[:12] in found["name"]
    study = optuna.load_study(storage=url, study_name=found["name"])
    assert [t.user_attrs["outcome"] for t in study.trials].count("crashed") == 1
    assert study.best_trial.user_attrs["final_us"] == study.best_value == 12.5
    text = filled("db", "study", FINGERPRINT[:6], "--storage", url).stdout
    assert found["name"] in text and "optuna-dashboard" in text
    assert "begins with 'ffff0'" in filled("db", "study", "ffff0", "--storage", url, exit_code=6).stderr
    assert "sqlite:///x.db" in filled("db", "study", FINGERPRINT, "--storage", "x.db", exit_code=6).stderr


def test_an_export_overwrites_neither_files_nor_its_database(filled: Command, tmp_path: Path) -> None:
    file = tmp_path / "export.json"
    filled("db", "export", "-o", file)
    before = file.read_text(encoding="utf-8")
    assert "--force" in filled("db", "export", "-o", file, exit_code=3).stderr
    filled("db", "export", "-o", file, "--force")
    assert file.read_text(encoding="utf-8") == before
    told = filled("db", "export", "-o", filled.db, "--force", exit_code=2).stderr
    assert "is the database itself" in told
    assert "no problem found" in filled("db", "check").stdout


def test_export_import_merge(filled: Command, tmp_path: Path) -> None:
    file, other = tmp_path / "export.json", tmp_path / "other.db"
    filled("db", "export", "-o", file)
    assert filled("db", "export").stdout == file.read_text(encoding="utf-8")
    added = filled.json("db", "import", file, "--db", other)
    assert (added["measurements"], added["baselines"]) == (3, 1)
    assert "added 0 measurements and 0 baselines" in filled("db", "merge", other).stdout
    third = tmp_path / "third.db"
    assert filled.json("db", "merge", other, "--db", third)["measurements"] == 3


def test_a_hostile_import_is_refused(filled: Command, tmp_path: Path) -> None:
    document = json.loads(filled("db", "export").stdout)
    document["measurements"][0]["config"]["tile_n"] = "64; system(1)"
    file, other = tmp_path / "hostile.json", tmp_path / "other.db"
    file.write_text(json.dumps(document))
    error = filled.json("db", "import", file, "--db", other, exit_code=6)["error"]
    assert error["type"] == "ImportFileError" and "$.measurements[0].config.tile_n" in error["message"]
    assert not other.exists()


def test_what_cannot_be_imported_makes_no_database(filled: Command, tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged.db", tmp_path / "new" / "other.db"
    content = bytearray(filled.db.read_bytes())
    with sqlite3.connect(filled.db) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'measurements'"
        ).fetchone()
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    damaged.write_bytes(content)
    for refused in (
        ("import", tmp_path / "missing.json"),
        ("import", damaged),
        ("merge", tmp_path / "missing.db"),
        ("merge", damaged),
    ):
        filled("db", *refused, "--db", other, exit_code=6)
        assert not other.parent.exists(), refused


def test_check(filled: Command) -> None:
    assert "no problem found" in filled("db", "check").stdout
    content = bytearray(filled.db.read_bytes())
    content[-4096:] = b"\xff" * 4096
    filled.db.write_bytes(content)
    assert filled.json("db", "check", exit_code=6)["problems"]
    assert filled.db.read_bytes() == content


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8192])


def without_a_page(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096] + b"\xff" * 4096)


def text_alone(path: Path) -> None:
    path.write_text("not a database")


@pytest.mark.parametrize("damage", [truncated, without_a_page, text_alone])
def test_check_names_the_place_once(filled: Command, damage: Callable[[Path], None]) -> None:
    damage(filled.db)
    told = filled("db", "check", exit_code=6).stdout
    assert told.startswith(str(filled.db)) and told.count(str(filled.db)) == 1


def test_check_finds_a_schema_that_is_no_text(filled: Command) -> None:
    content = filled.db.read_bytes()
    filled.db.write_bytes(content.replace(b"TEXT NOT NULL", b"TEXT NOT NUL\xb6"))
    (problem,) = filled.json("db", "check", exit_code=6)["problems"]
    assert "malformed database schema" in problem


def test_migrate(run: Command) -> None:
    assert run.json("db", "migrate")["from"] is None
    assert "was up to date" in run("db", "migrate").stdout


def test_failures_have_their_exit_code(run: Command) -> None:
    assert "no database" in run("db", "list", exit_code=6).stderr
    run.db.write_text("not a database")
    assert run.json("db", "list", exit_code=6)["error"]["type"] == "DatabaseCorruptError"
    assert run.db.read_text() == "not a database"


def test_forget_failures(filled: Command) -> None:
    assert (
        "Forget 1 measurements and 0 baselines"
        in filled("db", "forget", "--failed", exit_code=1, input="n\n").output
    )
    assert filled.json("db", "forget", "--failed", "--yes")["measurements"] == 1
    (found,) = filled.json("db", "list")["workloads"]
    assert (found["measurements"], found["ok"]) == (2, 2)
    assert filled.json("db", "forget", "--failed", "--yes")["measurements"] == 0


def test_forget_a_matrix(filled: Command) -> None:
    assert filled.json("db", "forget", "ffff0", "--yes")["measurements"] == 0
    gone = filled.json("db", "forget", FINGERPRINT[:6].upper(), "--yes")
    assert (gone["measurements"], gone["baselines"]) == (3, 1)
    assert filled.json("db", "list")["workloads"] == [] and "no problem found" in filled("db", "check").stdout


def test_forget_by_family_and_device(filled: Command) -> None:
    for option in (("--family", "other"), ("--device", "elsewhere")):
        assert filled.json("db", "forget", *option, "--yes")["measurements"] == 0
    with Store.open(filled.db) as store:
        assert not any(store.count(Selection(digits)).measurements for digits in "%_")
    family = filled.json("db", "show", FINGERPRINT[:6])["workloads"][0]["ranking"][0]["family"]
    gone = filled.json("db", "forget", "--family", family, "--device", timed(1.0).device.key, "--yes")
    assert (gone["measurements"], gone["baselines"]) == (3, 0)


def test_forget_needs_to_be_told_what(filled: Command) -> None:
    assert "say what to forget" in filled("db", "forget", "--yes", exit_code=2).stderr
    assert "--yes" in filled.json("db", "forget", "--failed", exit_code=2)["error"]["message"]


@pytest.mark.parametrize(
    "words", [("show",), ("forget", "--yes"), ("pin",), ("unpin",), ("study", "--storage", "x")]
)
@pytest.mark.parametrize("matrix", ["", "zz", "ab-", " "])
def test_what_no_fingerprint_begins_with_is_refused(
    run: Command, words: tuple[str, ...], matrix: str
) -> None:
    """An empty one would begin them all."""
    assert "beginning of a fingerprint" in run("db", *words, matrix, exit_code=2).stderr


def test_nothing_is_forgotten_where_there_is_no_database(run: Command, tmp_path: Path) -> None:
    missing = tmp_path / "none.db"
    told = run("db", "forget", "--failed", "--yes", "--db", missing, exit_code=6).stderr
    assert "there is no database" in told and not missing.exists()
