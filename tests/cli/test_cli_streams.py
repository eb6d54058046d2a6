"""Standard output that is full or closed, and text that a terminal would obey."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from command_line import Command
from rich.table import Table
from rich.text import Text

from sparsegen.cli.parts import common
from sparsegen.cli.parts.streams import visible

COMMANDS = (
    ("families",),
    ("families", "--json"),
    ("doctor", "--json"),
    ("db", "list"),
    ("--help",),
    ("families", "--help"),
    ("--version",),
)
ESCAPES = "\x1b[31m\x1b]0;title\x07\x9b2J\r\u202e"


def sparsegen(run: Command, *arguments: str, redirection: str = "") -> subprocess.CompletedProcess[str]:
    shell = f'exec "$0" -P -m sparsegen "$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", shell, sys.executable, *arguments],
        env={**os.environ, **run.environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_output_that_cannot_be_written_is_a_short_error(
    run: Command, arguments: tuple[str, ...], redirection: str
) -> None:
    run("db", "migrate")
    done = sparsegen(run, *arguments, redirection=redirection)
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: cannot be written: ")
    assert done.stderr.splitlines()[1:] == ["help: docs/errors.md#outputerror"]


def test_a_reader_that_goes_away_is_no_error(run: Command) -> None:
    done = sparsegen(run, "families", redirection="| head -n 1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_errors_on_a_closed_stderr_keep_their_exit_code(run: Command) -> None:
    assert sparsegen(run, "lookup", "--matrix", "none.npz", "-n", "8", redirection="2>&-").returncode == 3


# --- escapes ---


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert visible("plain µs × 3\n\tand more") == "plain µs × 3\n\tand more"
    assert visible(ESCAPES) == r"\x1b[31m\x1b]0;title\x07\x9b2J\x0d\u202e"
    assert visible("\udc80") == r"\udc80"  # of a file name that is no UTF-8


def test_tables_and_texts_show_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "value", box=None)
    table.add_row(f"x{ESCAPES}", Text(ESCAPES))
    common.emit(False, {}, table, f"text {ESCAPES}", Text(ESCAPES))
    common.make_console(stderr=True).print(ESCAPES)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert r"\x1b[31m" in text
        assert not {c for c in text if not c.isprintable()} - {"\n"}


@pytest.mark.parametrize("as_json", [False, True])
def test_names_of_files_and_tensors_show_no_escapes(run: Command, tmp_path: Path, as_json: bool) -> None:
    name = f"w{ESCAPES}"
    weights = tmp_path / f"{name}.npz"
    np.savez(weights, **{f"t{ESCAPES}": np.ones((64, 64)), f"u{ESCAPES}": np.ones((4, 4))})
    broken = tmp_path / f"{name}.json"
    broken.write_text(json.dumps({"format": "sparsegen-tuning", "version": 1, ESCAPES: 1}))
    mask = tmp_path / f"mask{ESCAPES}.npz"
    scipy.sparse.save_npz(mask, scipy.sparse.eye_array(64, format="csr"))
    option = ("--json",) if as_json else ()
    for arguments in (
        ("prune", weights, "--pattern", "uniform", "--sparsity", "0.5"),
        ("prune", weights, "--pattern", "uniform", "--sparsity", "0.5", "--tensor", ESCAPES),
        ("lookup", "--matrix", weights, "-n", "8"),
        ("lookup", "--matrix", weights, "-n", "8", "--tensor", ESCAPES),
        ("lookup", "--matrix", tmp_path / ESCAPES, "-n", "8"),
        ("lookup", "--matrix", mask, "-n", "8"),
        ("db", "import", broken),
        ("db", "list", "--db", tmp_path / f"{ESCAPES}.db"),
        ("db", "migrate", "--db", tmp_path / f"{ESCAPES}.db"),
        ("report", "--bench", broken),
        ("bench", "--matrix", weights, "-n", "8"),
        ("bench", "--suite", ESCAPES),
        ("families", ESCAPES),
        ("--verbose", "lookup", "--matrix", weights, "-n", "8"),
    ):
        done = run(*arguments, *option, exit_code=None)
        text = done.stdout + done.stderr
        assert text and not {c for c in text if not c.isprintable()} - {"\n", "\t"}, (arguments, text)
