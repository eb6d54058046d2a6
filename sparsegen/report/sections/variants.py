"""The table of winning variants, with links to their sources."""

from __future__ import annotations

from sparsegen.bench.results.summary import geometric
from sparsegen.report import words
from sparsegen.report.catalogue import Entry
from sparsegen.report.content import Section
from sparsegen.report.material import Material
from sparsegen.report.tables import Cell, Link, Table

LEAD = (
    "Every config that won somewhere, the most frequent first. A source depends on the config, the type, the layout "
    "and whether tiles divide the shape, so a variant can have several; all stand at the end of this page.",
)


def section(material: Material) -> Section:
    entries = material.catalogue.entries
    if not entries:
        nothing = ("No workload has a winner whose family and config are known.",)
        return Section("variants", "Variants", LEAD, missing=nothing)
    missing = tuple(f"{e.name}: its source is not shown: {e.unrendered}." for e in entries if e.unrendered)
    head = (
        "variant",
        "family",
        "config",
        "sources",
        "workloads won",
        "over dense",
        "over the best other sparse",
    )
    table = Table(
        "Winning variants",
        head,
        tuple(_row(entry) for entry in entries),
        text_columns=4,
        anchors=tuple(entry.anchor for entry in entries),
    )
    return Section("variants", "Variants", LEAD, tables=(table,), missing=missing)


def _row(entry: Entry) -> tuple[Cell, ...]:
    dense = [p.over_dense for p in entry.wins if p.over_dense]
    sparse = [p.over_sparse for p in entry.wins if p.over_sparse]
    config = entry.variant.settings
    links = tuple(Link(anchor.removeprefix("source-"), anchor) for anchor in entry.sources)
    return (
        entry.name,
        entry.variant.family_name,
        config,
        links or words.MISSING,
        str(len(entry.wins)),
        words.factor(geometric(dense).value),
        words.factor(geometric(sparse).value),
    )
