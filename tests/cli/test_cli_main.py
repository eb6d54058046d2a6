"""The group: lazy imports, messages, exit codes."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from typing import Any

import click
import pytest
from command_line import Command

import sparsegen
from sparsegen import errors
from sparsegen.cli import main

HEAVY = ("numpy", "scipy", "sqlalchemy", "optuna", "jinja2", "rich", "pycuda")


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from sparsegen.cli.main import cli, COMMANDS\n"
        "output = CliRunner().invoke(cli, ['--help']).output\n"
        "assert all(f'  {name} ' in output for name in COMMANDS), output\n"
        f"loaded = set({HEAVY}) & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    assert time.perf_counter() - started < 3  # 0.15 s on an idle machine


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_a_module_and_help(name: str, run: Command) -> None:
    command = importlib.import_module(main.module_of(name)).command
    assert isinstance(command, click.Command)
    assert command.help
    assert "Usage: " in run(name, "--help").output


def test_version(run: Command) -> None:
    assert sparsegen.__version__ in run("--version").output


def test_an_unknown_command_is_wrong_usage(run: Command) -> None:
    assert "No such command 'tuen'" in run("tuen", exit_code=2).stderr
    assert run.json("tuen", exit_code=2)["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.SparsegenError("why"), 1),
        (errors.MatrixError("why", source="w.npz"), 3),
        (errors.OperandError("why"), 3),
        (errors.ConfigError("why"), 3),
        (errors.DeviceUnavailableError("why"), 4),
        (errors.NoVariantError("why"), 5),
        (errors.DatabaseCorruptError("why"), 6),
        (click.UsageError("why"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_become_messages_and_exit_codes(
    error: BaseException, exit_code: int, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @click.option("--json", is_flag=True)
    def failing(**_: Any) -> None:
        raise error

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: failing)
    message = "interrupted" if isinstance(error, KeyboardInterrupt) else "why"
    result = run("doctor", exit_code=exit_code)
    assert message in result.stderr
    assert result.stdout == ""
    printed = run.json("doctor", exit_code=exit_code)
    assert printed["error"]["type"] == type(error).__name__
    assert message in printed["error"]["message"]


def test_a_bug_is_not_swallowed(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: failing)
    assert isinstance(run("doctor", exit_code=1).exception, ZeroDivisionError)


def test_a_missing_matrix_is_bad_input(run: Command) -> None:
    result = run("source", "--matrix", "nowhere.npz", exit_code=3)
    assert result.stderr.startswith("error: nowhere.npz: there is no such file")
