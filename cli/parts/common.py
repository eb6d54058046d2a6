"""Options that the commands share, and output as text or JSON; problems from options are in `problems`."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import click
from click.shell_completion import CompletionItem

from sparsegen import arguments
from sparsegen.cli.parts.streams import visible
from sparsegen.errors import ConfigError
from sparsegen.matrix.features import Features
from sparsegen.tuning_db.location import Location

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from sparsegen.kernels.base import Device

F = TypeVar("F", bound=Callable[..., Any])
E = TypeVar("E", bound=StrEnum)
EMULATOR_NOTE = "The emulator proves that a variant is correct; its times say nothing about a GPU's speed."
OUTPUT = ("-o", "--output", "--out")  # every command's option for the file that it writes
PIPE_WIDTH = 120  # columns of what goes to a file or a pipe
WIDEST = 10_000  # columns of a table there
NAMES = "nvidia-h200, a100, l40s, b200, h100, or a JSON file that describes one"


class EnumChoice(click.Choice, Generic[E]):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """One of a `StrEnum`'s values; gives the member."""

    def __init__(self, enum: type[E]) -> None:
        super().__init__([member.value for member in enum])
        self._enum = enum

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> E:
        return self._enum(super().convert(value, param, ctx))


def word_option(*names: str, default: StrEnum, help: str) -> Callable[[F], F]:
    """Adds an option that takes one of its default's kind and gives the member."""
    return click.option(
        *names, type=EnumChoice(type(default)), default=default.value, show_default=True, help=help
    )


class FiniteRange(click.FloatRange):
    """A number in a range, as of `click.FloatRange`, which takes NaN for one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number.", param, ctx)
        return found


class Fingerprint(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """The first digits of a matrix's fingerprint, one at least, in lower case."""

    name = "fingerprint"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch("[0-9a-fA-F]+", str(value)):
            self.fail(
                f"{value!r} is not the beginning of a fingerprint, hexadecimal digits as of `sparsegen db list`",
                param,
                ctx,
            )
        return str(value).lower()


class ByteCount(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """Bytes: a whole number, or text such as 8 GiB, 8G (the same) and 500 MB."""

    name = "bytes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return arguments.nbytes(str(value), self.name)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


def family_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of kernel families that begin so, for a shell's completion; of ``--operator``'s where that was given."""
    from sparsegen.kernels import (  # whoever asks for no completion need not wait for them
        families,
        families_of,
    )

    operator = context.params.get("operator")
    found = families_of(operator) if operator else families().values()
    return [family.name for family in found if family.name.startswith(begun)]


# --- options; each decorator names the parameter that the command receives ---


def memory_limit_option(function: F) -> F:
    """``memory_limit``: int | None, bytes."""
    return click.option(
        "--memory-limit",
        type=ByteCount(),
        help="What reading the file may take, such as 8G; default 100 times its size, at least 256M.",
    )(function)


def overflow_option(function: F) -> F:
    """``allow_overflow``: bool."""
    return click.option(
        "--allow-overflow",
        is_flag=True,
        help="Let finite values of the matrix become infinite in a narrower dtype; they are counted.",
    )(function)


def device_option(function: F) -> F:
    """``device``: str | None, for `sparsegen.backends.find_device`."""
    return click.option(
        "--device",
        help="cuda, cuda:N or emulator; default SPARSEGEN_DEVICE, else the first GPU, else the emulator.",
    )(function)


DB_HELP = "Tuning database: a path or SQLAlchemy URL; default SPARSEGEN_DB, else the user's own."


def db_option(function: F) -> F:
    """``db``: str | None, a path or URL; None means `sparsegen.settings.Settings.db`."""
    return click.option("--db", help=DB_HELP)(function)


def asked_db_option(function: F) -> F:
    """`db_option` of look-ups, which do without a database; people are told where one that they name is not there."""
    return click.option("--db", callback=_noted_if_missing, help=DB_HELP)(function)


def _noted_if_missing(ctx: click.Context, _: click.Parameter, db: str | None) -> str | None:
    path = None if db is None else Location.parse(db).path
    if path is not None and _is_missing(path) and not ctx.meta.get("sparsegen.json"):
        click.echo(f"There is no database at {path}: what comes with sparsegen is asked alone.", err=True)
    return db


def _is_missing(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:  # whoever opens it says why
        return False


def deterministic_option(function: F) -> F:
    """``deterministic``: bool."""
    return click.option(
        "--deterministic",
        is_flag=True,
        help="Only variants of which equal inputs give equal bits on every call; as SPARSEGEN_DETERMINISTIC=1.",
    )(function)


def force_option(function: F) -> F:
    """``force``: bool, for `refuse_existing`."""
    return click.option("--force", is_flag=True, help="Overwrite the output.")(function)


def json_option(function: F) -> F:
    """``as_json``: bool, for `emit`. Errors become JSON as well."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")(function)


def config_option(function: F) -> F:
    """``config``: tuple of ``key=value``, for `parse_config`."""
    return click.option(
        "--config",
        multiple=True,
        metavar="KEY=VALUE",
        help="A tunable's value; may be repeated. See `sparsegen families`.",
    )(function)


def apply_options(options: Iterable[Callable[[F], F]], function: F) -> F:
    """The command with these options, in this order."""
    for option in reversed(tuple(options)):
        function = option(function)
    return function


# --- from options to values ---


def even_features(m: int, k: int, density: float) -> Features:
    """The features of a matrix that is not there: rows of equal length, nonzeros spread evenly."""
    row = round(k * density)
    return Features(m=m, k=k, nnz=m * row, row_mean=row, row_cov=0.0, row_max=row, block_fill=density)


def parse_config(pairs: Iterable[str]) -> dict[str, str]:
    """``key=value`` pairs to a dictionary; the family checks names and values.

    Raises:
        click.BadParameter: no equals sign, or a key given twice.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not (key and equals and value):
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--config")
        if key in values:
            raise click.BadParameter(f"{key} is given twice", param_hint="--config")
        values[key] = value
    return values


# --- output ---


def note_emulator(devices: Iterable[Device], *, as_json: bool) -> None:
    """Tell people that times are no GPU's, where one of the devices is the emulator."""
    if not as_json and any(device.backend == "emulator" for device in devices):
        click.echo(EMULATOR_NOTE, err=True)


class Copied:
    """Lines that people copy, such as commands and paths: never folded by us, however narrow the terminal.

    Args:
        heading: description of them.
        lines: each is printed as one line, indented.
    """

    def __init__(self, heading: str, *lines: str) -> None:
        self.heading, self.lines = heading, lines


class Listing:
    """A table; where the terminal is too narrow for its columns, a block of lines for each row: no fact is cut."""

    def __init__(self, *headings: str) -> None:
        self.headings = headings
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self.rows.append(tuple(map(visible, cells)))

    @property
    def width(self) -> int:
        """Columns of a terminal that the table needs."""
        from rich.cells import cell_len

        lines = [self.headings, *self.rows]
        return sum(2 + max(cell_len(line[i]) for line in lines) for i in range(len(self.headings)))

    def fitting(self, width: int) -> RenderableType:
        """The table, or the blocks."""
        from rich.table import Table
        from rich.text import Text

        if self.width <= width:
            table = Table(*self.headings, box=None, padding=(0, 2, 0, 0))
            for row in self.rows:
                table.add_row(*map(Text, row))
            return table
        blocks = Table.grid(padding=(0, 2))
        blocks.add_column(style="dim", no_wrap=True)
        blocks.add_column(overflow="fold")
        for number, row in enumerate(self.rows):
            if number:
                blocks.add_row("", "")
            for heading, cell in zip(self.headings, row, strict=True):
                if cell:
                    blocks.add_row(heading, Text(cell))
        return blocks


Part: TypeAlias = "RenderableType | Copied | Listing"


def emit(as_json: bool, data: Mapping[str, object], *parts: Part) -> None:
    """Print ``data`` as one JSON object, or else the parts for people.

    Lines of a plain string are wrapped on a terminal, further in than they began, and elsewhere left as they
    are; tables have no trailing blanks in a file or a pipe. Without tables, rich is not imported.
    """
    if as_json:
        click.echo(to_json(data))
        return
    texts = [part for part in parts if isinstance(part, str)]
    is_terminal = sys.stdout.isatty()
    if len(texts) == len(parts):
        width = shutil.get_terminal_size().columns
        shown = [_hanging(text, width) for text in texts] if is_terminal else texts
        click.echo("\n".join(visible(line.rstrip()) for line in "\n".join(shown).split("\n")))
        return
    console = make_console()
    if is_terminal:
        from rich.text import Text

        for part in parts:
            is_text = isinstance(part, str | Text)
            _print(console, _hanging(str(part), console.width) if is_text else part)
        return
    # Whoever reads a pipe line by line gets tables as wide as they are, but for columns of prose.
    console.width = max(console.width, *(_least_width(console, part) for part in parts))
    with console.capture() as printed:
        for part in parts:
            _print(console, part)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _least_width(console: Console, part: Part) -> int:
    """Columns in which no cell is cut; 0 of what may be wrapped."""
    from rich.table import Table

    if isinstance(part, Listing):
        return part.width
    if isinstance(part, Table) and any(column.no_wrap for column in part.columns):
        return console.measure(part, options=console.options.update(width=WIDEST)).maximum
    return 0


def _print(console: Console, part: Part) -> None:
    if isinstance(part, Copied):
        _print(console, part.heading)
        for line in part.lines:
            console.print(f"  {line}", soft_wrap=True)  # the terminal wraps it, and copies it as one line
    elif isinstance(part, Listing):
        console.print(part.fitting(console.width))
    else:
        console.print(part, soft_wrap=isinstance(part, str))


def _hanging(text: str, width: int) -> str:
    """Every line wrapped to the width, what does not fit four columns further in."""
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(
            line.strip(),
            width,
            initial_indent=indent,
            subsequent_indent=indent + "    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append("\n".join(wrapped))
    return "\n".join(lines)


def to_json(data: Mapping[str, object]) -> str:
    """JSON of what commands print; paths and moments become text."""
    return json.dumps(data, indent=2, default=str)


def make_console(*, stderr: bool = False) -> Console:
    """A console that uses the terminal's width, and a fixed one where there is no terminal."""
    from sparsegen.cli.parts.console import SafeConsole

    stream = sys.stderr if stderr else sys.stdout
    return SafeConsole(
        file=stream, highlight=False, emoji=False, markup=False, width=None if stream.isatty() else PIPE_WIDTH
    )


def target_option(what: str, more: str = "") -> Callable[[Any], Any]:
    """The option of a command, which does this for a GPU that is not here; ``more`` ends its help."""
    return click.option(
        "--for",
        "target",
        metavar="TARGET",
        shell_complete=_completed,
        help=f"{what} for a GPU that is not here: {NAMES}.{more}",
    )


def _completed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the names of descriptions."""
    from sparsegen.tuning.prediction.targets import targets

    return [CompletionItem(name) for name in targets() if name.startswith(incomplete)]
