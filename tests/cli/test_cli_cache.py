"""``sparsegen cache``: only what the toolchains put there is counted or deleted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import Command

OURS = ("cuda/csr_spmm-0123456789abcdef01234567", "emulator/panel_spmm-0123456789abcdef")
LEFTOVER = "cuda/.csr_spmm-0123456789abcdef01234567-k3x_9q"
FOREIGN = (
    "cuda/notes",
    "cuda/csr_spmm-xyz",
    "cuda/Photos-0123456789abcdef",
    "other/csr_spmm-0123456789abcdef",
    "csr_spmm-0123456789abcdef",
)


@pytest.fixture
def filled(run: Command) -> Path:
    for name in (*OURS, LEFTOVER, *FOREIGN):
        folder = run.cache / name
        folder.mkdir(parents=True)
        (folder / "kernel.cu").write_text("x" * 1000)
    os.utime(run.cache / LEFTOVER, (0, 0))  # a young one may be somebody's at work
    (run.cache / "cuda" / "csr_spmm-ffffffffffffffff").write_text("a file, no folder")
    return run.cache


def test_info_counts_by_family(run: Command, filled: Path) -> None:
    data = run.json("cache", "info")
    assert (data["variants"], data["bytes"], data["folder"]) == (3, 3000, str(filled))
    assert [(f["backend"], f["family"], f["variants"]) for f in data["families"]] == [
        ("cuda", "(unfinished)", 1),
        ("cuda", "csr_spmm", 1),
        ("emulator", "panel_spmm", 1),
    ]
    text = run("cache", "info").output
    assert "3 variants, 3.0 kB" in text and "panel_spmm" in text


def test_clear_leaves_what_is_not_its_own(run: Command, filled: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis").touch()
    (filled / "cuda" / "csr_spmm-aaaaaaaaaaaaaaaa").symlink_to(precious)
    data = run.json("cache", "clear", "--yes")
    assert (data["deleted"], data["bytes"]) == (3, 3000)
    assert not any((filled / name).exists() for name in (*OURS, LEFTOVER))
    assert all((filled / name / "kernel.cu").exists() for name in FOREIGN)
    assert (precious / "thesis").exists()
    assert run.json("cache", "info")["variants"] == 0


def test_clear_asks_first(run: Command, filled: Path) -> None:
    run("cache", "clear", exit_code=1, input="n\n")
    assert run.json("cache", "info")["variants"] == 3
    assert "--yes" in run.json("cache", "clear", exit_code=2)["error"]["message"]
    assert "deleted 3 variants" in run("cache", "clear", input="y\n").output


def test_a_cache_that_is_not_there_is_empty(run: Command) -> None:
    assert run.json("cache", "info")["families"] == []
    assert run.json("cache", "clear")["deleted"] == 0
    assert not run.cache.exists()


def test_a_linked_backend_folder_is_not_followed(run: Command, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / OURS[0].split("/")[1]).mkdir(parents=True)
    run.cache.mkdir()
    (run.cache / "cuda").symlink_to(tmp_path / "elsewhere")
    assert run.json("cache", "clear", "--yes")["deleted"] == 0
    assert (tmp_path / "elsewhere" / OURS[0].split("/")[1]).exists()
