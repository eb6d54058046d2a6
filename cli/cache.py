"""``sparsegen cache``: the compiled variants on disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

from sparsegen.backends.cache import CompileCache
from sparsegen.cli.parts.common import Listing, emit, json_option
from sparsegen.settings import Settings
from sparsegen.system.publish import folder_bytes

BACKENDS = ("cuda", "emulator")


@dataclass(frozen=True, slots=True)
class Entry:
    """One folder of the cache; ``family`` is "(unfinished)" for what a killed compile left behind.

    What compiles under way are writing is none.
    """

    backend: str
    family: str
    folder: Path


@click.group()
def command() -> None:
    """Show or clear the cache of compiled variants.

    Clearing loses nothing but time: variants are compiled again when they are needed.
    """


@command.command()
@json_option
def info(as_json: bool) -> None:
    """Count compiled variants and their bytes, by backend and family."""
    root = Settings.from_environment().cache
    totals: dict[tuple[str, str], list[int]] = defaultdict(list)
    for entry in entries(root):
        totals[entry.backend, entry.family].append(folder_bytes(entry.folder))
    rows = [
        {"backend": backend, "family": family, "variants": len(sizes), "bytes": sum(sizes)}
        for (backend, family), sizes in sorted(totals.items())
    ]
    count, size = sum(map(len, totals.values())), sum(map(sum, totals.values()))
    table = Listing("backend", "family", "kept")
    for (backend, family), sizes in sorted(totals.items()):
        table.add_row(backend, family, amount(len(sizes), sum(sizes)))
    summary = Text(f"{amount(count, size)}, in {root}")
    data = {"folder": str(root), "variants": count, "bytes": size, "families": rows}
    emit(as_json, data, *([table] if rows else []), summary)


@command.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def clear(yes: bool, as_json: bool) -> None:
    """Delete every compiled variant; other files in the folder stay."""
    root = Settings.from_environment().cache
    found = list(entries(root))
    if found and not yes:
        if as_json:
            raise click.UsageError("clear --json needs --yes")
        click.confirm(f"Delete {len(found)} compiled variants in {root}?", abort=True)
    freed = 0
    for entry in found:
        size = folder_bytes(entry.folder)
        CompileCache(root, entry.backend).remove(entry.folder)
        freed += size
    data = {"folder": str(root), "deleted": len(found), "bytes": freed}
    emit(as_json, data, Text(f"deleted {amount(len(found), freed)}, from {root}"))


def entries(root: Path) -> Iterator[Entry]:
    """The cache's own folders: of the names that the toolchains give them, and no links."""
    for backend in BACKENDS:
        part = CompileCache(root, backend)
        for family, folder in part.entries():
            yield Entry(backend, family, folder)
        for folder in part.unfinished():
            yield Entry(backend, "(unfinished)", folder)


def amount(count: int, size: int) -> str:
    """Describes a number of variants and their bytes."""
    unit, divisor = ("MB", 1e6) if size >= 1e6 else ("kB", 1e3)
    return f"{count} variant{'s' * (count != 1)}, {size / divisor:.1f} {unit}"
