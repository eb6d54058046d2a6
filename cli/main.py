"""The ``sparsegen`` command: its subcommands are imported when they are called, so that help is instant."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from typing import Any, NoReturn

import click

from sparsegen import __version__, backends
from sparsegen.backends.cuda import early_init
from sparsegen.cli.parts import verbose
from sparsegen.cli.parts.streams import checked_output, visible
from sparsegen.errors import MachineError, OutputError, SparsegenError

INTERRUPTED = 130  # exit code of Ctrl-C, as shells expect

# Name -> one line of help. The module that `module_of` names exports `command`.
COMMANDS = {
    "prune": "Zero the weights that matter least, in a pattern.",
    "mask": "Write a mask of sparse attention.",
    "tune": "Search for the fastest variant for a matrix and record it.",
    "tune-model": "Tune every pruned layer of a model.",
    "ship": "Write a converted model as a program that plain PyTorch runs.",
    "lookup": "Say what would run for a matrix, and why.",
    "network": "Make, tune, run and verify sparse networks.",
    "bench": "Time our variants and what users would pick instead, side by side.",
    "report": "Write charts, tables and sources as one offline HTML page.",
    "verify": "Check a variant's result against float64.",
    "source": "Print the CUDA source, PTX or SASS of a variant.",
    "families": "List kernel families with their tuning spaces and constraints.",
    "job": "Make bundles that measure on GPUs which cannot be reached.",
    "db": "List, show, compare, publish and exchange tuning databases; pin choices.",
    "devices": "List the devices that variants can run on.",
    "doctor": "Say what is missing on this machine, and how to get it.",
    "cache": "Show or clear the cache of compiled variants.",
}
ON_A_DEVICE = {"verify", "tune", "tune-model", "ship", "devices"}  # they ask the driver for it
LOOK_UPS = {"lookup", "source"}  # they ask it where no description of a GPU is remembered


def module_of(command: str) -> str:
    """Returns the module of a command."""
    return f"sparsegen.cli.{command.replace('-', '_')}"


def recorded_command(words: list[str]) -> str:
    """The command as result files keep it: of files in folders of this machine the names alone."""
    kept = [re.sub(r"(^|=)/(?:[^/]*/)*([^/]+)/?$", r"\1\2", word) for word in words]
    return shlex.join(["sparsegen", *kept])


class LazyGroup(click.Group):
    """Imports a subcommand when it is asked for; turns errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if not ctx.meta.get("sparsegen.emulator") and _asks_driver(cmd_name):
            early_init.begin_once()
        command: click.Command = importlib.import_module(module_of(cmd_name)).command
        verbose.accept_verbose(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS:
            import difflib  # no command that exists needs it

            near = difflib.get_close_matches(args[0], COMMANDS)
            if near:
                raise click.UsageError(f"No such command '{args[0]}'. Did you mean {' or '.join(near)}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # click's own version imports every command for its help.
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["sparsegen.json"] = "--json" in args
        ctx.meta["sparsegen.emulator"] = any("emulator" in word for word in args)
        ctx.meta["sparsegen.command"] = visible(recorded_command(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SparsegenError as error:
            trace = verbose.traceback_of(ctx, error)
            _fail(ctx, type(error).__name__, str(error), error.exit_code, trace, error.help)
        except click.ClickException as error:
            if not ctx.meta["sparsegen.json"]:
                told = visible(error.message + _advice(error))
                error.message = told  # type: ignore[misc]  # final by declaration alone
                raise  # click shows the usage with it
            kind = "UsageError" if isinstance(error, click.UsageError) else type(error).__name__
            _fail(ctx, kind, error.format_message(), error.exit_code)
        except MemoryError as error:
            trace = verbose.traceback_of(ctx, error)
            told = f"this machine has not enough memory left for that: {error or 'no more could be had'}"
            _fail(ctx, MemoryError.__name__, told, MachineError.exit_code, trace)
        except (KeyboardInterrupt, click.Abort) as error:
            if isinstance(error, click.Abort) and not isinstance(error.__context__, KeyboardInterrupt):
                raise  # a question was answered by no, or not at all
            trace = verbose.traceback_of(ctx, error)
            _fail(ctx, "KeyboardInterrupt", "interrupted", INTERRUPTED, trace)


def _advice(error: click.ClickException) -> str:
    """The option that a file without one was meant for."""
    if not isinstance(error, click.UsageError) or "unexpected extra argument" not in error.message:
        return ""
    options = () if error.ctx is None else error.ctx.command.params
    return ". A matrix is given by --matrix FILE." * any("--matrix" in option.opts for option in options)


def _asks_driver(command: str) -> bool:
    """True if a command will wait for NVIDIA's driver, as far as its name and the environment tell."""
    if command in LOOK_UPS:
        return backends.remembered_device() is None and backends.may_be_gpu(None)
    return command in ON_A_DEVICE and backends.may_be_gpu(None)


def _fail(
    ctx: click.Context, kind: str, message: str, exit_code: int, trace: str = "", help_at: str = ""
) -> NoReturn:
    """End with an error: JSON on stdout where ``--json`` was given, else lines on stderr; with a traceback and the
    address of help where there are any.
    """
    if ctx.meta["sparsegen.json"]:
        told = {"type": kind, "message": message}
        told |= {name: text for name, text in (("help", help_at), ("traceback", trace)) if text}
        try:
            click.echo(json.dumps({"error": told}))
            raise click.exceptions.Exit(exit_code)
        except OutputError:
            pass  # the error may be that nothing can be written there
    click.echo(f"error: {visible(message)}", err=True)
    if help_at:
        click.echo(f"help: {help_at}", err=True)
    click.echo(visible(trace), err=True, nl=False)
    raise click.exceptions.Exit(exit_code)


@click.group(
    cls=LazyGroup,
    params=[verbose.OPTION],
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 bad input, 4 no device or tool, "
    "5 no valid variant, 6 database.",
)
@click.version_option(__version__, prog_name="sparsegen")
def cli() -> None:
    """Tune, record, dispatch and inspect sparse GPU kernels.

    Begin with `sparsegen tune --matrix FILE -n 64`; what is missing for it, `sparsegen doctor` says.
    """


def main() -> None:
    """The entry point of the ``sparsegen`` script."""
    try:
        with checked_output():
            cli(prog_name="sparsegen")
    except OutputError as error:  # of help and version, which no command prints
        click.echo(f"error: {error}\nhelp: {error.help}", err=True)
        sys.exit(error.exit_code)
