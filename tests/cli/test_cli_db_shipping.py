"""``sparsegen db publish``, ``diff``, ``layers``, ``pin``, ``unpin`` and ``pins``."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Command
from tuning_samples import H100, timed, workload

from sparsegen.errors import DatabaseError, PinsError
from sparsegen.tuning_db.store import Store

HERE = workload()


@pytest.fixture
def filled(run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    with Store.open(run.db) as store:
        store.add_all([timed(10, tile_n=32, final=True), timed(12, tile_n=64, final=True)], [])
    return run


def test_publish_and_layers(filled: Command, tmp_path: Path) -> None:
    told = filled.json(
        "db", "publish", "--out", "layer.db", "--by", "Ada", "--driver", "580", "--compiler", "nvcc"
    )
    assert told["by"] == "Ada" and told["devices"][0]["driver"] == "580"
    text = filled("db", "publish", "--out", "again.db", "--note", "for tests", "--winners").output
    assert "published by" in text and "for tests" in text and "not known" in text
    filled.environment["SPARSEGEN_LAYERS"] = str(tmp_path / "layer.db")
    found = filled.json("db", "layers")["layers"]
    assert [layer["kind"] for layer in found] == ["user", "published", "packaged"]
    assert found[1]["published"]["by"] == "Ada" and found[1]["workloads"] == 1
    assert "Ada" in filled("db", "layers").output
    filled("db", "migrate", "--db", "layer.db", exit_code=DatabaseError.exit_code)


def test_a_layer_overwrites_neither_files_nor_its_database(filled: Command) -> None:
    filled("db", "publish", "--out", "layer.db", "--by", "Ada")
    assert "--force" in filled("db", "publish", "--out", "layer.db", exit_code=3).stderr
    assert filled.json("db", "publish", "--out", "layer.db", "--by", "Eve", "--force")["by"] == "Eve"
    told = filled("db", "publish", "--out", filled.db, "--force", exit_code=2).stderr
    assert "is the database itself" in told
    assert "no problem found" in filled("db", "check").stdout


def test_diff(filled: Command, tmp_path: Path) -> None:
    with Store.open(tmp_path / "other.db") as store:
        store.add_all([timed(11, tile_n=32, final=True), timed(10, tile_n=64, final=True)], [])
    told = filled.json("db", "diff", filled.db, "other.db")
    assert told["counts"]["slower"] == 1 and told["geomean"] == pytest.approx(1.1) == told["worst"]
    text = filled("db", "diff", filled.db, "other.db").output
    assert "1 another, slower" in text and "1.100 ×" in text
    assert "only in B" in filled("db", "diff", filled.db, "seeds").output
    filled("db", "diff", "none.db", "seeds", exit_code=DatabaseError.exit_code)


def test_pins(filled: Command, tmp_path: Path) -> None:
    digits = HERE.fingerprint[:12]
    (winner,) = filled.json("db", "pin", digits, "--note", "reviewed")["pins"]
    assert winner["config"]["tile_n"] == 32 and winner["device"] == H100.key
    assert (tmp_path / ".sparsegen" / "pins.json").is_file()
    named = ("--family", "csr_spmm", "--config", "tile_n=64", "--device", H100.key)
    (pinned,) = filled.json("db", "pin", digits, *named)["pins"]
    assert pinned["config"]["tile_n"] == 64
    assert [p["config"]["tile_n"] for p in filled.json("db", "pins")["pins"]] == [64]
    assert digits in filled("db", "pins").output
    filled("db", "pin", digits, "--pins", "other.json")
    assert "other.json" in filled("db", "pins", "--pins", "other.json").output
    assert len(filled.json("db", "unpin", digits)["pins"]) == 1
    assert "pins nothing" in filled("db", "pins").output
    filled("db", "unpin", digits, exit_code=PinsError.exit_code)
    filled("db", "pin", "ffffffffffff", exit_code=DatabaseError.exit_code)
    filled("db", "pin", digits, "--config", "tile_n=64", exit_code=2)
    filled("db", "pin", digits, "--note", "x" * 501, exit_code=2)
    filled("db", "pin", digits, "--family", "csr_sddmm", exit_code=3)
