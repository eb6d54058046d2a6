"""The demo: what it shows can be pasted into a new shell and does the same again."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDER = """#!/bin/bash
printf '%s|%s|%s' "$PWD" "$SPARSEGEN_DB" "$SPARSEGEN_CACHE" >> "$HOME/calls"
printf ' %q' "$@" >> "$HOME/calls"; echo >> "$HOME/calls"
while [ $# -gt 0 ]; do [ "$1" = --output ] && printf 'first\\nsecond\\nthird\\n' > "$2"; shift; done
"""


def run(script: str, folder: Path, home: Path) -> tuple[str, list[str]]:
    """Returns bash's output, and the calls of `sparsegen`, from nothing but a home and the system's PATH."""
    environment = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    calls = home / "calls"
    found = calls.read_text().splitlines()
    calls.unlink()
    return done.stdout, found


def test_commands_of_the_demo_can_be_pasted(tmp_path: Path) -> None:
    copy, home = tmp_path / "a folder", tmp_path / "home"
    (copy / ".ci").mkdir(parents=True)
    (copy / ".venv" / "bin").mkdir(parents=True)
    home.mkdir()
    shutil.copy(ROOT / ".ci" / "demo", copy / ".ci" / "demo")
    command = copy / ".venv" / "bin" / "sparsegen"
    command.write_text(RECORDER)
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    printed, calls = run(".ci/demo", copy, home)
    assert len(calls) == 4
    shown = [line.removeprefix("$ ") for line in printed.splitlines() if line.startswith("$ ")]
    assert len(shown) == len(calls) + 1, "the settings, and a line for each command"
    assert f"pasted again in {copy}" in printed
    _, again = run("\n".join(shown), copy, home)
    assert again == calls
