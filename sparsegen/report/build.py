"""The report: from inputs to a page, and to its files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sparsegen import __version__
from sparsegen.bench.results.results import Results
from sparsegen.errors import ReportError
from sparsegen.report import words
from sparsegen.report.canvas import Chart
from sparsegen.report.colours import palette
from sparsegen.report.content import Report
from sparsegen.report.inputs import Inputs, Progress, gather
from sparsegen.report.material import Material
from sparsegen.report.sections import ALL
from sparsegen.report.tables import Link
from sparsegen.system.publish import publish_text
from sparsegen.tuning_db.store import Store

EMULATOR = "emulator"  # the key of the device that the CPU plays
EMULATED = (
    " These are times of a CPU that plays a GPU: they prove nothing about any GPU, neither how fast a variant is nor "
    "which one is the fastest. What the emulator proves is that results are right."
)


@dataclass(frozen=True, slots=True)
class Written:
    """Files that `build` wrote."""

    page: Path
    bytes: int
    images: tuple[Path, ...]
    report: Report


def build(
    output: Path,
    *,
    files: Sequence[Path],
    store: Store | None,
    device: str | None = None,
    images: Path | None = None,
    progress: Progress,
) -> Written:
    """Write the report of one device.

    Args:
        files: result files of ``sparsegen bench``.
        device: its key; None for the first file's, else the one with most records in the database.
        images: a folder for the charts as PNG; made if it is not there.
        progress: gets a line for each step.

    Raises:
        ResultsError, DatabaseError: an input cannot be read.
        ReportError: there is nothing to report on, or a file cannot be written.
    """
    inputs = gather(files, store, device, progress)
    progress("analysing")
    report = compose(Material.of(inputs))
    html = to_html(report, progress)
    try:
        nbytes = publish_text(output, html)
        if images is not None:
            images.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(f"{error.filename or output}: cannot be written: {error.strerror}") from error
    written = []
    if images is not None:
        for chart in (chart for section in report.sections for chart in section.charts):
            progress(f"drawing {chart.name}.png")
            chart.png(images / f"{chart.name}.png")
            written.append(images / f"{chart.name}.png")
    return Written(output, nbytes, tuple(written), report)


def compose(material: Material) -> Report:
    """Every section in order; facts say why some have nothing to show, and are left out of the page."""
    sections = [section(material) for section in ALL]
    empty = [("not shown", f"{one.title}. {' '.join(one.missing)}") for one in sections if one.is_empty]
    inputs = material.inputs
    parts = [name for name, _ in inputs.results]
    origin = [f"result files: {words.listed(parts)}"] if parts else []
    origin += [f"database: {inputs.database.rpartition('/')[2]}"] if inputs.database else []
    return Report(
        title=f"sparsegen report: {inputs.device_name}",
        device=f"{words.count(len(material.points), 'workload')} on {inputs.device_name}. {material.origin}"
        + (EMULATED if inputs.device_key == EMULATOR else ""),
        made=f"Made by sparsegen {__version__} from {'; '.join(origin)}.",
        facts=(*_facts(inputs), *empty),
        sections=tuple(sections),
        sources=material.catalogue.sources,
    )


def _facts(inputs: Inputs) -> list[tuple[str, str]]:
    facts = [("device", f"{inputs.device_name} ({inputs.device_key})")]
    for name, part in inputs.results:
        facts += [(f"{name}: {what}", value) for what, value in _file_facts(part)]
    if inputs.measurements:
        moments = [m.measured_at for m in inputs.measurements]
        span = f"{min(moments):%Y-%m-%d} to {max(moments):%Y-%m-%d}"
        counted = words.count(len(inputs.measurements), "measurement")
        facts.append(("database", f"{counted} of this device, {span}"))
        libraries = sorted({b.version.partition(" (")[0] for b in inputs.baselines})
        if libraries:
            facts.append(("baselines by", words.listed(libraries)))
    return facts + [("left out", note) for note in inputs.notes]


def _file_facts(part: Results) -> list[tuple[str, str]]:
    protocol = part.protocol
    facts = [
        ("rows", f"{len(part.rows):,}"),
        (
            "protocol",
            f"L2 {protocol.l2}, {words.count(protocol.rounds, 'round')} in turn of {protocol.samples} calls, "
            f"tune {protocol.tune}",
        ),
        ("versions", ", ".join(f"{name} {version}" for name, version in part.versions.items())),
    ]
    if part.device.driver:
        facts.append(("driver", part.device.driver))
    if part.rates is not None:
        rates = ", ".join(
            f"{name} {words.figure(rate / 1e12)} TFLOP/s" for name, rate in part.rates.flop_per_s.items()
        )
        copy = f"copy {words.figure(part.rates.copy_bytes_per_s / 1e9)} GB/s (read + written)"
        empty = f"empty kernel {words.microseconds(part.rates.empty_kernel_us)}"
        facts.append(("measured rates", ", ".join(text for text in (copy, rates, empty) if text)))
    facts += [
        ("made by", f"{i.command} ({i.started:%Y-%m-%d %H:%M} UTC, {words.figure(i.seconds)} s)")
        for i in part.invocations
    ]
    return facts


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
