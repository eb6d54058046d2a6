"""The group: lazy imports, messages, exit codes."""

from __future__ import annotations

import importlib
import io
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import click
import pytest
from click.testing import CliRunner
from command_line import Command
from patience import LONG

import sparsegen
from sparsegen import errors
from sparsegen.cli import main
from sparsegen.cli.main import recorded_command
from sparsegen.cli.parts.common import OUTPUT
from sparsegen.system.child import ChildProcess, answer

HEAVY = ("numpy", "scipy", "sqlalchemy", "optuna", "jinja2", "rich", "pycuda")


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from sparsegen.cli.main import cli, COMMANDS\n"
        "output = CliRunner().invoke(cli, ['--help']).output\n"
        "assert all(f'  {name} ' in output for name in COMMANDS), output\n"
        f"loaded = set({HEAVY}) & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 3  # of the processor's time; 0.15 s, whatever else runs


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_a_module_and_help(name: str, run: Command) -> None:
    command = importlib.import_module(main.module_of(name)).command
    assert isinstance(command, click.Command)
    assert command.help
    assert "Usage: " in run(name, "--help").output


def _with_below(command: click.Command) -> Iterator[click.Command]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _with_below(below)


@pytest.mark.parametrize("name", main.COMMANDS)
def test_what_names_a_file_to_write_has_one_name(name: str) -> None:
    for command in _with_below(importlib.import_module(main.module_of(name)).command):
        for parameter in command.params:
            if {"-o", "--output", "--out"} & set(parameter.opts):
                assert (parameter.name, parameter.opts) == ("output", list(OUTPUT)), command.name


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
        (MemoryError("why"), 1),
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


class Interrupted(io.BytesIO):
    """Input of a user who presses Ctrl-C."""

    def read1(self, size: int | None = -1, /) -> bytes:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("answer", "exit_code", "told"),
    [(Interrupted(), 130, "interrupted"), ("n\n", 1, "Aborted"), ("", 1, "Aborted")],
)
def test_ctrl_c_at_a_question_is_ctrl_c(
    answer: Any, exit_code: int, told: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def asking() -> None:
        click.confirm("Delete all?", abort=True)

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: asking)
    assert told in run("cache", input=answer, exit_code=exit_code).stderr


def test_a_bug_is_not_swallowed(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: failing)
    assert isinstance(run("doctor", exit_code=1).exception, ZeroDivisionError)


def test_a_missing_matrix_is_bad_input(run: Command) -> None:
    result = run("source", "--matrix", "nowhere.npz", exit_code=3)
    assert result.stderr.startswith("error: nowhere.npz: there is no such file")


def every_command(command: click.Command) -> Iterator[click.Command]:
    """The command and those below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from every_command(below)


def test_no_seed_is_below_zero() -> None:
    """NumPy's generators take none, and say so by an error that is no message of a command."""
    seeds = [
        (command.name, option)
        for command in every_command(main.cli)
        for option in command.params
        if str(option.name).endswith("seed")
    ]
    assert len(seeds) > 8
    for name, option in seeds:
        assert option.type.convert("0", option, None) == 0, name
        with pytest.raises(click.BadParameter):
            option.type.convert("-1", option, None)


def test_a_seed_below_zero_is_wrong_usage(run: Command) -> None:
    for seed in ("--seed", "--inputs-seed"):
        error = run.json("verify", "--matrix", "w.npz", "-n", 8, seed, -1, exit_code=2)["error"]
        assert error["type"] == "UsageError" and "-1 is not in the range x>=0" in error["message"]


# --- --verbose ---


def serve(connection: Connection) -> None:
    """Runs in a child, for `with_child`."""
    answer(connection, raise_in_child)


def raise_in_child() -> NoReturn:
    raise errors.MatrixError("why", source="w.npz")


@click.command()
@click.option("--json", is_flag=True)
def with_child(**_: Any) -> None:
    logging.getLogger("sparsegen.nowhere").debug("about to ask a child")
    with closing(ChildProcess("test_cli_main:serve")) as child:
        child.receive(LONG)


@pytest.fixture
def failing_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of ``doctor``, a command whose child fails."""
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda self, ctx, name: with_child)


@pytest.mark.usefixtures("failing_child")
def test_without_verbose_an_error_is_its_message_and_where_help_is(run: Command) -> None:
    assert run("doctor", exit_code=3).output == "error: w.npz: why\nhelp: docs/errors.md#matrixerror\n"
    expected = {
        "error": {"type": "MatrixError", "message": "w.npz: why", "help": "docs/errors.md#matrixerror"}
    }
    assert run.json("doctor", exit_code=3) == expected


@pytest.mark.usefixtures("failing_child")
@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose_shows_the_log_and_the_childs_traceback(run: Command, option: str) -> None:
    result = run(option, "doctor", exit_code=3)
    assert result.stdout == ""
    log, line, trace = result.stderr.partition("error: w.npz: why\n")
    assert line and "DEBUG sparsegen.nowhere: about to ask a child\n" in log
    assert "in raise_in_child" in trace and "in with_child" in trace
    assert trace.index("in raise_in_child") < trace.index("in with_child")
    assert trace.endswith("MatrixError: w.npz: why\n")


@pytest.mark.usefixtures("failing_child")
def test_verbose_adds_the_traceback_to_json(run: Command) -> None:
    error = run.json("-v", "doctor", exit_code=3)["error"]
    assert (error["type"], error["message"]) == ("MatrixError", "w.npz: why")
    assert "in raise_in_child" in error["traceback"] and "in with_child" in error["traceback"]


@pytest.mark.usefixtures("failing_child")
def test_verbose_ends_with_the_command(run: Command) -> None:
    logger = logging.getLogger("sparsegen")
    before = logger.level, list(logger.handlers)
    run("-v", "doctor", exit_code=3)
    assert (logger.level, logger.handlers) == before
    assert run("doctor", exit_code=3).stderr.startswith("error: w.npz: why\n")


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_takes_verbose_after_its_name(name: str, run: Command) -> None:
    run(name, "-v", "--help")


@pytest.mark.parametrize(
    "arguments",
    [
        ("source", "--matrix", "nowhere.npz", "-v"),
        ("-v", "source", "-v", "--matrix", "nowhere.npz"),
        ("db", "import", "nowhere.json", "--verbose"),
        ("db", "-v", "import", "nowhere.json"),
    ],
)
def test_verbose_may_stand_anywhere(run: Command, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, exit_code=None)
    assert result.exit_code in (3, 6)
    assert result.stderr.count("Traceback (most recent call last)") >= 1
    assert f"error: {next(a for a in arguments if 'nowhere' in a)}: " in result.stderr


def test_wrong_usage_has_no_traceback(run: Command) -> None:
    assert "Traceback" not in run("-v", "tuen", exit_code=2).stderr
    assert set(run.json("-v", "tuen", exit_code=2)["error"]) == {"type", "message"}


# --- shell completion ---


def completed(*words: str, environment: dict[str, str] | None = None) -> list[str]:
    """Returns bash's completions of the last word."""
    done = subprocess.run(
        [sys.executable, "-m", "sparsegen"],
        env={
            **os.environ, "_SPARSEGEN_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("sparsegen", *words)),
            "COMP_CWORD": str(len(words)), "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_shells_complete_commands_operators_and_families() -> None:
    assert completed("tu") == ["tune", "tune-model"]
    assert completed("tune", "--operator", "sparse_soft") == ["sparse_softmax", "sparse_softmax_backward"]
    assert completed("families", "pan") == ["panel_sddmm", "panel_spmm"]
    for command in ("tune", "verify", "source"):
        assert completed(command, "--family", "panel") == ["panel_spmm"]
        assert completed(command, "--operator", "sddmm", "--family", "pan") == ["panel_sddmm"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_line_gives_a_script(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparsegen"],
        env={**os.environ, "_SPARSEGEN_COMPLETE": f"{shell}_source", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "_SPARSEGEN_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["bench", "-o", "/tmp/outs/bench_a.json"], "sparsegen bench -o bench_a.json"),
        (["bench", "--db=/private/t.db", "--data", "/sets/dlmc/"], "sparsegen bench --db=t.db --data dlmc"),
        (["bench", "--matrix", "examples/a b.npz"], "sparsegen bench --matrix 'examples/a b.npz'"),
        (["tune", "--db", "postgresql://h/db", "-n", "64"], "sparsegen tune --db postgresql://h/db -n 64"),
    ],
)
def test_a_recorded_command_names_no_folder_of_the_machine(words: list[str], command: str) -> None:
    assert recorded_command(words) == command


@pytest.mark.parametrize(("typed", "meant"), [("tunemodel", "tune-model"), ("looku", "lookup")])
def test_a_command_that_is_near_is_named(typed: str, meant: str) -> None:
    found = CliRunner().invoke(main.cli, [typed])
    assert found.exit_code == 2 and f"No such command '{typed}'. Did you mean {meant}" in found.output
    assert "Did you mean" not in CliRunner().invoke(main.cli, ["xyz"]).output


def test_a_file_without_its_option_is_told_where_it_goes() -> None:
    found = CliRunner().invoke(main.cli, ["tune", "layer.npz", "-n", "64"])
    assert found.exit_code == 2
    assert "unexpected extra argument (layer.npz). A matrix is given by --matrix FILE." in found.output
    assert "--matrix" not in CliRunner().invoke(main.cli, ["devices", "layer.npz"]).output
