"""Shared options and helpers."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

from sparsegen.cli import devices
from sparsegen.cli.parts import common
from sparsegen.cli.parts.common import (
    Copied,
    emit,
    even_features,
    json_option,
    parse_config,
)
from sparsegen.cli.parts.problems import ProblemOptions, problem_options
from sparsegen.operators import DType, Epilogue, Layout


def test_parse_config() -> None:
    assert parse_config(()) == {}
    assert parse_config(("tile_n=64", " staging = shared ")) == {"tile_n": "64", "staging": "shared"}


@pytest.mark.parametrize("pairs", [("tile_n",), ("=64",), ("tile_n=",), ("tile_n=1", "tile_n=2")])
def test_parse_config_refuses(pairs: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter, match=r"KEY=VALUE|twice"):
        parse_config(pairs)


def test_problem_options_give_enum_members() -> None:
    seen = []

    @click.command()
    @problem_options()
    def command(wanted: ProblemOptions) -> None:
        seen.append(wanted.problem((3, 5)))

    runner = CliRunner()
    assert runner.invoke(command, []).exit_code == 0
    chosen = ["-n", "7", "--dtype", "bfloat16", "--layout", "column", "--epilogue", "bias_relu"]
    assert runner.invoke(command, chosen).exit_code == 0
    assert (seen[0].m, seen[0].k, seen[0].n, seen[0].dtype) == (3, 5, 128, DType.FLOAT32)
    assert seen[1].dtype is DType.BFLOAT16
    assert (seen[1].n, seen[1].layout, seen[1].epilogue) == (7, Layout.COLUMN, Epilogue.BIAS_RELU)
    assert "'float31' is not one of" in runner.invoke(command, ["--dtype", "float31"]).output
    assert runner.invoke(command, ["-n", "0"]).exit_code == 2
    assert "[float32|float16|bfloat16]" in runner.invoke(command, ["--help"]).output


def test_emit_prints_json_or_text() -> None:
    @click.command()
    @json_option
    def command(as_json: bool) -> None:
        emit(as_json, {"path": Path("x")}, "first", "[bold]second[/bold]")

    runner = CliRunner()
    assert json.loads(runner.invoke(command, ["--json"]).output) == {"path": "x"}
    assert runner.invoke(command, []).output == "first\n[bold]second[/bold]\n"


def test_even_features() -> None:
    features = even_features(10, 40, 0.25)
    assert (features.nnz, features.row_max, features.row_cov, features.density) == (100, 10, 0.0, 0.25)


# --- narrow terminals ---


class Terminal(io.StringIO):
    """A terminal of ``columns`` columns."""

    def isatty(self) -> bool:
        return True


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, *parts: common.Part) -> str:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", terminal)
    emit(False, {}, *parts)
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())  # styles have no width


COMMAND = (
    "sparsegen lookup --matrix 'a long folder/with a long name/pruned_mlp_layer.npz' -n 64 --db " + "x" * 90
)


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_what_is_copied_is_one_line(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    text = on_a_terminal(monkeypatch, columns, Copied("a heading", COMMAND, "/a/" + "long/" * 40 + "path"))
    assert f"  {COMMAND}\n" in text and f"  /a/{'long/' * 40}path\n" in text
    path = "/" + "very-long-folder/" * 12 + "kernel.cu"
    for part in (f"  source: {path}", Text(f"written to {path}")):
        assert f"{path}\n" in on_a_terminal(monkeypatch, columns, part)


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 300])
def test_no_fact_of_a_listing_is_cut(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    listing = common.Listing("matrix", "problem", "best")
    cells = [
        ("0123456789ab", "spmm m=128 k=256 n=64 float32 row epilogue=none batch=4", "12,345 µs"),
        ("ba9876543210", "sddmm m=4096 n=4096 k=64 float16 epilogue=scale", "8.5 µs"),
    ]
    for row in cells:
        listing.add_row(*row)
    text = on_a_terminal(monkeypatch, columns, listing)
    assert "…" not in text
    assert all(cell_len(line) <= columns for line in text.splitlines())
    squeezed = "".join(text.split())
    for cell in (cell for row in cells for cell in row):
        assert "".join(cell.split()) in squeezed
        if cell_len(cell) + 10 <= columns:
            assert cell in text


def test_devices_are_told_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(as_json: bool, data: object, *parts: common.Part) -> None:
        shown.append(on_a_terminal(monkeypatch, 40, *parts))

    shown: list[str] = []
    monkeypatch.setattr(devices, "emit", told)
    assert devices.command.callback is not None
    devices.command.callback(as_json=False)
    assert "…" not in shown[0] and "emulator (CPU)" in shown[0] and "shared/block" in shown[0]


def test_a_pipe_gets_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    listing = common.Listing("a", "b")
    listing.add_row("x" * 150, "y" * 100)
    emit(False, {}, listing)
    assert capsys.readouterr().out.splitlines()[1].split() == ["x" * 150, "y" * 100]


def test_a_pipe_gets_all_numbers_beside_a_long_name(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(Column("case", no_wrap=True), Column("µs", no_wrap=True))
    table.add_row("x" * 200, "12.5")
    emit(False, {}, table)
    out = capsys.readouterr().out
    assert "x" * 200 in out and "12.5" in out


@pytest.mark.parametrize("columns", [20, 80])
def test_what_a_terminal_would_obey_takes_its_room(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    listing = common.Listing("layer", "zeros")
    listing.add_row("a\x1b[31mb", "50 %")
    text = "".join(on_a_terminal(monkeypatch, columns, listing).split())
    assert "a\\x1b[31mb" in text and "50%" in text
