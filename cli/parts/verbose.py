"""``--verbose``: log messages and tracebacks on stderr, for whoever looks for what went wrong."""

from __future__ import annotations

import logging
import sys
from traceback import format_exception

import click

from sparsegen.cli.parts.streams import visible

MARK = "sparsegen.verbose"  # in the context's `meta`
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class StderrHandler(logging.Handler):
    """Writes to what stderr is at the time: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(visible(self.format(record)) + "\n")
        except Exception:
            self.handleError(record)


def _begin(context: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    """Show all that sparsegen logs until the command ends."""
    if not is_wanted or context.meta.get(MARK):
        return
    context.meta[MARK] = True
    logger, handler = logging.getLogger("sparsegen"), StderrHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    level_before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)

    def end() -> None:
        logger.removeHandler(handler)
        logger.setLevel(level_before)

    context.find_root().call_on_close(end)


OPTION = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_begin,
    help="Show log messages, and with an error where it was raised.",
)


def accept_verbose(command: click.Command) -> None:
    """Give a command, and those within it, the option: people type it at the end."""
    if OPTION not in command.params:
        command.params.append(OPTION)
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            accept_verbose(inner)


def traceback_of(context: click.Context, error: BaseException) -> str:
    """Traceback of an error, child processes included; empty without ``--verbose``."""
    return "".join(format_exception(error)) if context.meta.get(MARK) else ""
