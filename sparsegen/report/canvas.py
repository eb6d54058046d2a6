"""Charts: what the sections draw on, as SVG for the page and PNG for papers. The only importer of matplotlib.

SVG colours become CSS variables, so that one drawing serves a light and a dark page.
"""

from __future__ import annotations

import io
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sparsegen.errors import PackageMissingError, ReportError
from sparsegen.report.colours import Colour
from sparsegen.report.tables import Table
from sparsegen.system.extras import install_command

try:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
except ImportError as error:
    raise PackageMissingError(
        f"charts need matplotlib, which is not installed: {install_command('report')}"
    ) from error

PNG_DPI = 220


STYLE: dict[Any, Any] = {  # Any: each release of matplotlib has another list of names
    "svg.fonttype": "none",  # text stays text: to be read out, searched and selected
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.which": "major",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.parse_math": False,
    "axes.edgecolor": Colour.MUTED.light,
    "axes.labelcolor": Colour.INK.light,
    "text.color": Colour.INK.light,
    "xtick.color": Colour.MUTED.light,
    "ytick.color": Colour.MUTED.light,
    "xtick.labelcolor": Colour.INK.light,
    "ytick.labelcolor": Colour.INK.light,
    "grid.color": Colour.GRID.light,
    "figure.facecolor": Colour.PAPER.light,
    "axes.facecolor": Colour.PAPER.light,
}
SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}href"


class Panel:
    """One pair of axes. Points carry tips, which browsers show when the pointer rests on them."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes
        self.tips: dict[str, list[str]] = {}

    def points(
        self,
        x: Sequence[float],
        y: Sequence[float],
        tips: Sequence[str],
        *,
        colour: Colour,
        marker: str = "o",
        label: str | None = None,
        hollow: bool = False,
        size: float = 22.0,
    ) -> None:
        """Markers; ``tips`` has a line of text for each."""
        name = f"tips{len(self.tips)}"
        self.tips[name] = list(tips)
        edge = {"facecolors": "none", "edgecolors": colour.light} if hollow else {"color": colour.light}
        self.axes.scatter(
            x, y, s=size, marker=marker, label=label, linewidths=0.9, gid=name, zorder=3, alpha=0.85, **edge
        )

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float],
        *,
        colour: Colour,
        label: str | None = None,
        width: float = 1.4,
        steps: bool = False,
    ) -> None:
        drawstyle = "steps-post" if steps else "default"
        self.axes.plot(x, y, color=colour.light, label=label, linewidth=width, drawstyle=drawstyle, zorder=2)

    def level(self, *, x: float | None = None, y: float | None = None, text: str = "") -> None:
        """A dashed line across the panel at x or at y, with words beside it."""
        style = {"color": Colour.INK.light, "linewidth": 0.9, "linestyle": "--", "zorder": 1}
        place = {"fontsize": 8.0, "color": Colour.INK.light}
        if x is not None:
            self.axes.axvline(x, **style)
            at = (x, 0.99)
            self.axes.annotate(
                text, at, (4, 0), self.axes.get_xaxis_transform(), "offset points", va="top", **place
            )
        if y is not None:
            self.axes.axhline(y, **style)
            at = (0.01, y)
            self.axes.annotate(
                text, at, (0, 3), self.axes.get_yaxis_transform(), "offset points", va="bottom", **place
            )

    def bars(self, names: Sequence[str], values: Sequence[float], *, colour: Colour) -> None:
        """Horizontal bars, the first on top, each with its value in percent."""
        self.axes.barh(range(len(names)), values, color=colour.light, height=0.65)
        self.axes.set_yticks(range(len(names)), labels=names)
        self.axes.invert_yaxis()
        self.axes.grid(False, axis="y")
        for place, value in enumerate(values):
            self.axes.annotate(
                f"{100 * value:.0f} %", (value, place), (3, 0), textcoords="offset points", va="center"
            )
        self.axes.set_xlim(0, max(values) * 1.18)

    def cells(self, cells: Sequence[HeatCell], columns: Sequence[str], rows: Sequence[str]) -> None:
        """A grid of coloured cells with words in them; a cell may be a link within the page."""
        for cell in cells:
            corner = (cell.column - 0.48, cell.row - 0.48)
            box = Rectangle(corner, 0.96, 0.96, color=cell.colour.light, alpha=0.24)
            self.axes.add_patch(box)
            self.axes.text(
                cell.column,
                cell.row,
                cell.text,
                ha="center",
                va="center",
                fontsize=8.0,
                color=Colour.INK.light,
                url=cell.link or None,
            )
        self.axes.set_xlim(-0.5, len(columns) - 0.5)
        self.axes.set_ylim(len(rows) - 0.5, -0.5)
        self.axes.set_xticks(range(len(columns)), labels=columns, fontsize=8.0 if len(columns) > 5 else None)
        self.axes.set_yticks(range(len(rows)), labels=rows)
        self.axes.grid(False)

    def swatch(self, colour: Colour, label: str) -> None:
        """A line of the legend without anything drawn."""
        self.axes.scatter([], [], marker="s", color=colour.light, alpha=0.5, label=label)

    def labels(self, x: str, y: str) -> None:
        self.axes.set_xlabel(x)
        self.axes.set_ylabel(y)

    def log_y(self, text: Callable[[float], str]) -> None:
        self.axes.set_yscale("log")
        _few_ticks(self.axes.yaxis, self.axes.get_ylim(), text)

    def log_x(self, text: Callable[[float], str]) -> None:
        self.axes.set_xscale("log")
        _few_ticks(self.axes.xaxis, self.axes.get_xlim(), text)

    def ticks_x(self, places: Sequence[float], texts: Sequence[str]) -> None:
        self.axes.set_xticks(places, labels=texts)
        self.axes.xaxis.set_minor_locator(NullLocator())

    def whole_numbers_x(self) -> None:
        self.axes.xaxis.get_major_locator().set_params(integer=True)

    def percent_y(self) -> None:
        """The whole range of shares, 0 to 100 %."""
        self.axes.set_ylim(0, 1.03)
        self.axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
        self.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))

    def percent_x(self) -> None:
        self.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))

    def limits_x(self, low: float, high: float) -> None:
        self.axes.set_xlim(low, high)

    def legend(self) -> None:
        """Above the axes, where it hides no point."""
        _, labels = self.axes.get_legend_handles_labels()
        if labels:
            self.axes.legend(
                loc="lower left",
                bbox_to_anchor=(-0.14, 1.0),
                ncols=min(3, len(labels)),
                columnspacing=1.0,
                handletextpad=0.4,
                borderaxespad=0.2,
            )


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell of `Panel.cells`; column and row count from 0, the first row is on top."""

    column: int
    row: int
    colour: Colour
    text: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing with its words.

    Attributes:
        name: name of the PNG file and of the anchor: lower-case words joined by hyphens.
        title: title with operator, dtype and layout.
        caption: explanation of how to read it, n, and the parts that are left out.
        alt: description of the drawing, for those who do not see it.
        numbers: table of the drawn numbers.
        width, height: inches on paper.
    """

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[Panel], None]
    width: float = 4.6
    height: float = 3.5
    numbers: Table | None = None

    def svg(self) -> str:
        """The drawing as an ``<svg>`` element without namespaces of other tools, sized by its frame."""
        figure, panel = self._drawn()
        out = io.StringIO()
        with matplotlib.rc_context({**STYLE, "svg.hashsalt": self.name}), _quiet():
            figure.savefig(out, format="svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.04)
        return inline(out.getvalue(), self.name, self.alt, panel.tips)

    def png(self, path: Path) -> None:
        """Write the drawing in the light colours at 220 dots per inch; title and caption are its metadata.

        Raises:
            ReportError: the file cannot be written.
        """
        figure, _ = self._drawn()
        try:
            with matplotlib.rc_context(STYLE), _quiet():
                words = {"Title": self.title, "Description": self.caption, "Software": None}
                figure.savefig(
                    path, format="png", dpi=PNG_DPI, bbox_inches="tight", pad_inches=0.04, metadata=words
                )
        except OSError as error:
            raise ReportError(f"{path}: cannot be written: {error.strerror}") from error

    def _drawn(self) -> tuple[Any, Panel]:
        with matplotlib.rc_context(STYLE), _quiet():
            figure = Figure(figsize=(self.width, self.height))
            panel = Panel(figure.add_subplot())
            self.draw(panel)
            panel.legend()
        return figure, panel


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses a log line for each font that this machine lacks: the page has fonts of its own."""
    log = logging.getLogger("matplotlib.font_manager")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _few_ticks(axis: Any, limits: tuple[float, float], text: Callable[[float], str]) -> None:
    """Ticks at every digit within two octaves; beyond, at powers of two, at 1, 2 and 5, or at powers of ten.

    Powers of two stand for sizes, and not for numbers below 1, whose digits would be many.
    """
    low, high = limits
    octaves = math.log2(high / low) if low > 0 else 0.0
    if octaves <= 2:
        axis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), numticks=12))
    elif octaves <= 6 and low >= 1:
        axis.set_major_locator(LogLocator(base=2, numticks=12))
    elif octaves <= 11:
        axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
    else:
        axis.set_major_locator(LogLocator(base=10, numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))


def inline(document: str, name: str, alt: str, tips: dict[str, list[str]]) -> str:
    """matplotlib's SVG made part of a page: own ids, CSS colours, tips, words for screen readers."""
    root = ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", document, count=1))
    for metadata in root.findall(f"{SVG}metadata"):
        root.remove(metadata)
    for group in list(root.iter(f"{SVG}g")):
        texts = tips.get(group.get("id", ""), [])
        for mark, text in zip(_marks(group), texts, strict=True) if texts else ():
            ElementTree.SubElement(mark, f"{SVG}title").text = text
    has_links = False
    seen: set[str] = set()
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        own = element.attrib.pop("id", None)
        if own is not None and own not in seen:  # matplotlib defines equal markers again, under an equal id
            seen.add(own)
            element.set("id", f"{name}-{own}")
        reference = element.attrib.pop(XLINK, None)
        if reference is not None:
            is_link = element.tag == "a"
            has_links |= is_link
            element.set("href", reference if is_link else f"#{name}-{reference.removeprefix('#')}")
        for attribute, value in element.items():
            if "url(#" in value:
                element.set(attribute, value.replace("url(#", f"url(#{name}-"))
        element.attrib.pop("target", None)
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    # A drawing with links is no single image to a screen reader: its links must stay reachable.
    root.set("role", "group" if has_links else "img")
    root.set("aria-label", alt)
    text = ElementTree.tostring(root, encoding="unicode")
    for colour in Colour:
        text = text.replace(colour.light, f"var({colour.variable})")
    return re.sub(r'font: ([^;"]*?) \'DejaVu Sans\'[^;"]*', r"font: \1 var(--font)", text)


def _marks(group: ElementTree.Element) -> list[ElementTree.Element]:
    """The points of a scatter: references to one marker, or a path each where that is shorter."""
    defined = {path for defs in group.iter(f"{SVG}defs") for path in defs.iter(f"{SVG}path")}
    return list(group.iter(f"{SVG}use")) or [p for p in group.iter(f"{SVG}path") if p not in defined]
