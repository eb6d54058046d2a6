"""``sparsegen report``: one offline HTML page from result files and the tuning database."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.text import Text

from sparsegen.cli.parts.common import OUTPUT, db_option, emit, json_option, make_console
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.publish import refuse_other
from sparsegen.system.quantities import counted
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.store import Store

if TYPE_CHECKING:
    from sparsegen.report.content import Section
    from sparsegen.report.tables import Table


@click.command()
@click.option(
    "--bench",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A result file of `sparsegen bench`; may be repeated.",
)
@db_option
@click.option("--device", help="Key of the device to report on (see `sparsegen db list`).")
@click.option(
    *OUTPUT,
    default="report.html",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page.",
)
@click.option(
    "--png",
    "images",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also write every chart as PNG here.",
)
@json_option
def command(
    files: tuple[Path, ...],
    db: str | None,
    device: str | None,
    output: Path,
    images: Path | None,
    as_json: bool,
) -> None:
    """Write one HTML page that loads nothing: charts, tables and the winners' sources."""
    refuse_other(output, ".html")
    # Imported here, so that --help works without matplotlib.
    from sparsegen.report.build import build

    console = make_console(stderr=True)
    live = console.is_terminal and not as_json
    with _open(db, needed=not files) as store, console.status("") if live else nullcontext() as status:

        def progress(text: str) -> None:
            if status is not None:
                status.update(Text(text))

        written = build(output, files=files, store=store, device=device, images=images, progress=progress)
    data = {
        "output": written.page,
        "bytes": written.bytes,
        "sections": [
            {
                "name": section.anchor,
                "charts": [chart.name for chart in section.charts],
                "tables": [_table(table) for table in _tables(section)],
                "missing": section.missing,
            }
            for section in written.report.sections
        ],
        "sources": len(written.report.sources),
        "images": written.images,
    }
    charts = sum(len(section.charts) for section in written.report.sections)
    holds = counted(charts, "chart"), counted(len(written.report.sources), "source"), _size(written.bytes)
    lines = [f"{written.page}: {', '.join(holds)}"]
    if images is not None:
        lines.append(f"{images}: {counted(len(written.images), 'image')}")
    lines += [f"{s.title}: {sentence}" for s in written.report.sections for sentence in s.missing]
    emit(as_json, data, *(Text(line) for line in lines))


def _tables(section: Section) -> list[Table]:
    """Tables of a section, and the numbers of its charts."""
    return [*section.tables, *(chart.numbers for chart in section.charts if chart.numbers is not None)]


def _table(table: Table) -> Json:
    from sparsegen.report.tables import plain

    rows = [[plain(cell) for cell in row] for row in table.rows]
    return {"caption": table.caption, "head": list(table.head), "rows": rows}


def _open(db: str | None, *, needed: bool) -> Store | nullcontext[None]:
    """The database for reading; none if it was not asked for, is not needed and is not there."""
    place = db or Settings.from_environment().db
    path = Location.parse(place).path
    if not needed and db is None and path is not None and not path.exists():
        return nullcontext()
    return Store.open(place, read_only=True)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
