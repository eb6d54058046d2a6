"""A report as one HTML file that loads nothing: style, drawings and sources are inside."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sparsegen.report.canvas import Chart
from sparsegen.report.colours import palette
from sparsegen.report.content import Report
from sparsegen.report.inputs import Progress
from sparsegen.report.tables import Link


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sparsegen.report", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    environment.tests["link"] = lambda value: isinstance(value, Link)
    return environment


def to_html(report: Report, progress: Progress) -> str:
    """The page. Text is escaped, whatever a file or a database says; only drawings are put in as they are."""
    charts = [chart for section in report.sections for chart in section.charts]

    def svg(chart: Chart) -> Markup:
        progress(f"drawing {charts.index(chart) + 1} of {len(charts)}: {chart.name}")
        return Markup(chart.svg())  # matplotlib escapes the texts in it

    style = (files("sparsegen.report") / "style.css").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            style=Markup(style),
            light=Markup(palette(0)),
            dark=Markup(palette(1)),
            svg=svg,
        )
    )
