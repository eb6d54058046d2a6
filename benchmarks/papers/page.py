"""docs/papers.md: of each study what the paper says, what we measured, and what differs, by one rule.

    python -m benchmarks.papers.page [--check]

A study has a table for each device that has a raw file of it. Figures are drawn anew from the raw files, into
docs/papers/.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.markdown import table
from benchmarks.papers import earlier
from benchmarks.papers.earlier import Earlier, earlier_table
from benchmarks.papers.reasons import reasons
from benchmarks.papers.study import FAILED, Document, Study
from benchmarks.suite_tables import short
from sparsegen.system.quantities import counted

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "papers.md"
FIGURES = ROOT / "docs" / "papers"


@dataclass(frozen=True)
class Paper:
    """A part of the page: its studies in order, and what was measured of the paper before them."""

    title: str
    studies: tuple[str, ...]
    before: tuple[Earlier, ...]


PAPERS = (
    Paper("Uniform sparsity", ("uniform_accuracy", "uniform_kernels"), earlier.UNIFORM),
    Paper(
        "Sputnik",
        ("sputnik_kernels", "sputnik_matrices", "mobilenet", "sparse_transformer"),
        earlier.SPUTNIK,
    ),
    Paper("SparseDrop", ("sparsedrop_layer", "sparsedrop_training"), earlier.SPARSEDROP),
    Paper(
        "Sparse DNN Challenge",
        ("sparse_dnn", "sparse_dnn_kernels", "sparse_dnn_padding"),
        earlier.CHALLENGE,
    ),
    Paper("Block-sparse convolution", ("block_convolution", "lidar_network"), earlier.CONVOLUTION),
)
STUDIES = tuple(name for paper in PAPERS for name in paper.studies)
HEAD = """# The papers' own experiments

What five papers showed, measured with this project. `python -m benchmarks.papers.page` writes this page from the raw
files in `benchmarks/results/`; typed by hand is only what the papers say and what differs. Every study is one command,
ends within ten minutes, and goes on where it stopped when it is given again; `python -m benchmarks.papers --data DATA`
runs all of them in turns, the rows that tell most first, and `--list` says what is left and how long it should take.
`DATA` is a folder of [real data](../benchmarks/README.md#the-papers-own-experiments). Columns *beside* something say
whether ours is ahead of it, equal (within 5 %) or behind, in bold. A table may have some rows of its study; – was not
measured yet. Each paper begins with what other benchmarks measured of its claims before.
"""


def studies(names: Iterable[str] = STUDIES) -> Iterator[Study]:
    """All of them, or some."""
    for name in names:
        yield importlib.import_module(f"benchmarks.papers.{name}").STUDY


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    known = {study.name: (study, documents(study, results)) for study in studies()}
    lines = [
        [
            f"[{study.title}](#{anchor(study)})",
            ", ".join(f"{d['device']} ({len(d['rows']):,})" for d in found.values()) or "not yet",
        ]
        for study, found in known.values()
    ]
    parts = [HEAD, table(["study", "measured on (rows)"], lines)]
    for paper in PAPERS:
        parts.append(f"\n## {paper.title}\n\n{earlier_table(paper.before, results)}\n")
        parts += [section(*known[name]) for name in paper.studies]
    return "\n".join(parts)


def anchor(study: Study) -> str:
    """The anchor that GitHub makes of the heading."""
    return re.sub(r"[^\w -]", "", study.title.lower()).replace(" ", "-")


def documents(study: Study, results: Path = RESULTS) -> dict[Path, Document]:
    """Measurements of each device, by its file."""
    found = {file: study.read(file) for file in sorted(results.glob(f"*/{study.raw}.json.xz"))}
    return {file: document for file, document in found.items() if document["rows"]}


def section(study: Study, found: dict[Path, Document]) -> str:
    """Claims, ours, results, what differs and why."""
    claims = table(
        ["the paper", f"on {study.gpu}", "where"], [[c.what, c.value, c.where] for c in study.claims]
    )
    parts = [f"\n### {study.title}\n\n{study.paper}.\n\n{claims}\n"]
    if not found:
        parts.append(f"Not measured yet: `{study.invocation}`.\n")
    for file, document in found.items():
        parts.append(
            f"**{document['device']}**\n\n{study.table(document)}\n\n{origin(study, file, document)}\n"
        )
        results = [*study.results(document)]
        results += [f"**Failed**: {name}: {why}" for name, why in document.get(FAILED, {}).items()]
        results += [f"Behind, {one}" for one in reasons(study, document)]
        parts.append("\n".join(f"- {one}" for one in results) + "\n")
        if figure_of(study, file).is_file():
            place = figure_of(study, file).relative_to(PAGE.parent)
            parts.append(f"![{study.title}, {document['device']}]({place})\n")
    parts.append("What differs:\n\n" + "\n".join(f"- {one}" for one in study.differs) + "\n")
    return "\n".join(parts)


def origin(study: Study, file: Path, document: Document) -> str:
    """The source of the figures, in one line."""
    states = document.get("states") or list(dict.fromkeys(row["state"] for row in document["rows"]))
    driver = f", driver {document['driver']}" if document["driver"] else ""
    by = ", ".join(map(short, states))
    rows = counted(len(document["rows"]), "row")
    return (
        f"{rows}, `{file.parent.name}/{file.name}`{driver}, {document['date']}, measured by {by}; "
        f"made by `{document.get('command', study.invocation)}`."
    )


def figure_of(study: Study, file: Path) -> Path:
    return FIGURES / f"{study.name}-{file.parent.name}.svg"


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if the page is out of date.")
def main(check: bool) -> None:
    if not check:
        for study in studies():
            for file, document in documents(study).items():
                study.draw(document, figure_of(study, file))
    text = page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        click.echo("docs/papers.md is out of date; run python -m benchmarks.papers.page")
        sys.exit(1)


if __name__ == "__main__":
    main()
