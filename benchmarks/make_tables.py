"""Make every table of measured figures from the raw results.

    python -m benchmarks.make_tables [--check]

Tables of single rows become files beside the raw results, in ``results/<device>/tables/``. Shorter ones stand in pages
between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``. Nothing in either is typed by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks import (
    attention_tables,
    convolution_tables,
    drawn_tables,
    front_table,
    low_bit_tables,
    masked_tables,
    off_the_list_tables,
    overview_tables,
    study,
    study_tables,
    suite_tables,
    uniform_tables,
    zoo_tables,
)
from benchmarks.anchors import peers
from benchmarks.study import read_document
from sparsegen.errors import SparsegenError

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results" / "nvidia-h100-80gb-hbm3-sm90"
DEVICES = sorted(RESULTS.parent.iterdir())  # all that were measured
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)


def of_rows(name: str, made: Callable[[study_tables.Rows], str]) -> Callable[[], str]:
    """A table out of the rows of a study's file."""
    return of_file(name, lambda document: made(document["rows"]))


def of_file(name: str, made: Callable[[Mapping[str, Any]], str]) -> Callable[[], str]:
    """A table out of a study's file, or a line that says that there is none."""

    def fill_in() -> str:
        file = RESULTS / f"{name}.json.xz"
        if not file.is_file():
            return f"Not measured yet: there is no `{file.name}` (benchmarks/README.md)."
        document = read_document(file)
        return made(document) + origin(document)

    return fill_in


def rows_of(name: str) -> study_tables.Rows:
    """The rows of a study's file; none where there is no such file."""
    return study.rows_of(RESULTS / f"{name}.json.xz")


def origin(document: Mapping[str, Any]) -> str:
    """Describes the source of a study's figures, in one line."""
    states = dict.fromkeys(row.get("state", suite_tables.OLDER) for row in document["rows"])
    return (
        f"\n\n{document['device']}, driver {document['driver']}, {document['date']}; measured by "
        f"{', '.join(map(suite_tables.short, states))}; made by `{document['command']}`."
    )


TABLES: Mapping[str, Callable[[], str]] = {
    "front": lambda: front_table.drawn(DEVICES),
    "lists": lambda: front_table.lists(RESULTS, peers()),
    "performance": lambda: suite_tables.performance(RESULTS),
    "drawn": lambda: drawn_tables.drawn(DEVICES),
    "off-the-list": lambda: off_the_list_tables.problems(DEVICES),
    "strongest": lambda: suite_tables.strongest(RESULTS, peers()),
    "decode": lambda: suite_tables.decode(RESULTS),
    "low-bit": lambda: low_bit_tables.race(DEVICES),
    "convolution-times": lambda: convolution_tables.times(RESULTS),
    "convolution-blobs": lambda: convolution_tables.times(RESULTS, blobs=True),
    "convolution-others": lambda: convolution_tables.others(RESULTS),
    "convolution-peers": lambda: convolution_tables.peers(RESULTS),
    "sddmm": lambda: suite_tables.sddmm(RESULTS, peers()),
    "uniform": lambda: uniform_tables.points(RESULTS),
    "uniform-summary": lambda: uniform_tables.summary(RESULTS),
    "unseen": lambda: suite_tables.unseen(RESULTS),
    "ablation": of_file("ablation_float32", study_tables.ablation),
    "search": of_file("search_quality", study_tables.search),
    "never-slower": of_file("never_slower", study_tables.never_slower),
    "host": of_file("host_cost", study_tables.host),
    "decode-n8": of_rows("sweep_decode_n8", study_tables.sweep),
    "decode-n32": of_rows("sweep_decode_n32", study_tables.sweep),
    "decode-strips": of_rows("sweep_decode_strips", study_tables.sweep),
    "softmax": lambda: attention_tables.softmax(RESULTS, peers()),
    "attention": lambda: attention_tables.attention(RESULTS),
    "fixed-masks": lambda: attention_tables.fixed(DEVICES),
    "single-warps": lambda: attention_tables.warps(DEVICES),
    "training": of_rows("training", study_tables.training),
    "graph-capture": of_rows("graph_capture", study_tables.graph_capture),
    "masked-products": lambda: masked_tables.products(RESULTS),
    "masked-overview": lambda: overview_tables.masked_products(RESULTS),
    "convolution-overview": lambda: overview_tables.convolutions(RESULTS),
    "zoo": lambda: zoo_tables.models(DEVICES),
    "networks-overview": lambda: overview_tables.networks(RESULTS),
}
# Tables that are too long for a page.
FILES = (
    *("lists", "sddmm", "uniform", "decode-n8", "decode-n32", "decode-strips", "softmax", "attention"),
    "masked-products",
)
# Suites whose rows stand in tables of their own.
OWN_TABLES = convolution_tables.SUITE, masked_tables.SUITE, "attention", "sddmm", "softmax"


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a table is out of date.")
def main(check: bool) -> None:
    try:
        texts = {path: fill(path.read_text()) for path in PAGES} | dict(files())
    except SparsegenError as error:
        click.echo(str(error))
        sys.exit(1)
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    gone = [path for path in tables_folder().glob("*.md") if path not in texts]
    if check and (stale or gone):
        listed = ", ".join(path.name for path in (*stale, *gone))
        click.echo(f"out of date: {listed}; run python -m benchmarks.make_tables")
        sys.exit(1)
    if check:
        return
    tables_folder().mkdir(parents=True, exist_ok=True)
    for path in stale:
        path.write_text(texts[path])
    for path in gone:
        path.unlink()


def tables_folder() -> Path:
    return RESULTS / "tables"


def files() -> Iterator[tuple[Path, str]]:
    """The tables that are files of their own."""
    for name in FILES:
        yield tables_folder() / f"{name}.md", f"# {name}\n\n{TABLES[name]()}\n"
    for suite in dict.fromkeys(
        row.suite for row in suite_tables.whole(RESULTS).rows if row.suite not in OWN_TABLES
    ):
        yield tables_folder() / f"suite-{suite}.md", suite_tables.suite(RESULTS, suite) + "\n"


def fill(text: str) -> str:
    """The text with every table made anew.

    Raises:
        SparsegenError: a table that is not known, has no end, or cannot be made.
    """
    for name in re.findall(r"<!-- ([a-z0-9-]+):begin -->", text):
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if name not in TABLES:
            raise SparsegenError(f"no table is called {name}; there are {', '.join(TABLES)}")
        before, rest = text.split(begin, 1)
        if end not in rest:
            raise SparsegenError(f"{begin} has no {end}")
        text = f"{before}{begin}\n{TABLES[name]()}\n{end}{rest.split(end, 1)[1]}"
    return text


if __name__ == "__main__":
    main()
