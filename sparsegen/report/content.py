"""Content of a page, apart from how it looks: sections and sources."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.report.canvas import Chart
from sparsegen.report.tables import Table


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what it is about, and what it shows.

    Attributes:
        lead: paragraphs.
        missing: one sentence for each thing that is not shown, and why.
    """

    anchor: str
    title: str
    lead: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if it shows nothing but its explanation."""
        return not (self.tables or self.charts)


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel's CUDA source; ``uses`` says which shapes it is rendered for."""

    anchor: str
    title: str
    uses: str
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """All of a page. ``facts`` are the conditions under which was measured, as names and values."""

    title: str
    device: str
    made: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    sources: tuple[Source, ...]

    @property
    def shown(self) -> tuple[Section, ...]:
        """The sections that have something to show, which the page has."""
        return tuple(section for section in self.sections if not section.is_empty)
