"""Tables of a report, with links within the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """Words that lead to an anchor of the same page."""

    text: str
    anchor: str


Cell = str | Link | tuple[Link, ...]


def plain(cell: Cell) -> str:
    """A cell's words."""
    if isinstance(cell, str):
        return cell
    return ", ".join(link.text for link in ((cell,) if isinstance(cell, Link) else cell))


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a head.

    Attributes:
        text_columns: number of text columns from the left; the others are numbers, set to the right. The first names
            its row.
        anchors: an id for each row, to link to; empty for none.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    text_columns: int = 1
    anchors: tuple[str, ...] = ()
