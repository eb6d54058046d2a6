"""Tables of a report, with links within the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """Words that lead to an anchor of the same page."""

    text: str
    anchor: str


Cell = str | Link | tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table with a head.

    Attributes:
        text_columns: how many columns from the left are text; the others are numbers, set to the right. The
            first names its row.
        anchors: an id for each row, to link to; empty for none.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    text_columns: int = 1
    anchors: tuple[str, ...] = ()
