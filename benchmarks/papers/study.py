"""Shared parts of the papers' studies: a paper's claim, points measured one by one, and the raw file of both."""

from __future__ import annotations

import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.papers.data import Data
from benchmarks.pictures import save
from benchmarks.study import read_document, result_file, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.system.host_lock import private_lock

KEY = "point"  # the field that names a row of a raw file
LIMIT = 540.0  # seconds after which no further point is begun
INCOMPLETE = 75  # exit status of a study that goes on when it is given again
FAILED = "failed"  # of a raw file: points without a result, and why
BROKEN_OFF = "the process ended before it was measured"
CPU = "cpu"  # PyTorch on the host; nothing of ours runs
EQUAL = 0.05  # by how much a ratio may differ from 1 and still be called equal

Document = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """A paper's claim: in words, as a figure or in place of one, and where."""

    what: str
    value: str
    where: str


@dataclass(frozen=True)
class Setting:
    """The arguments of a run.

    Attributes:
        tiny: small sizes, for a test.
    """

    device: Device
    data: Data
    tiny: bool

    @property
    def place(self) -> Any:
        """The device of PyTorch's tensors."""
        import torch

        return torch.device("cpu") if self.device.key == CPU else torch_place(self.device)

    @property
    def is_timed(self) -> bool:
        """True if times mean anything: on a GPU."""
        return self.device.backend == "cuda"


@dataclass(frozen=True)
class Point:
    """One row of the raw file: its name, and how it is measured."""

    name: str
    measure: Callable[[], dict[str, Any]]


class Study(ABC):
    """One experiment of a paper. Its module is named like it and ends with ``main = STUDY.command()``.

    Attributes:
        name: of the module, of the raw file behind ``papers_``, and of the section's anchor.
        title: of the section.
        paper, gpu: the paper, and what it measured on.
        claims: what the paper says.
        differs: what is not as in the paper, and why; sentences.
        seed: of data, weights and masks; a point may have seeds of its own.
        needs_gpu: whether it measures times, and is complete on a GPU alone.
        on_host: whether it computes on the host alone, whatever the others run on.
    """

    name: str
    title: str
    paper: str
    gpu: str
    claims: Sequence[Claim]
    differs: Sequence[str]
    seed = 0
    needs_gpu = True
    on_host = False

    @abstractmethod
    def points(self, setting: Setting) -> Iterable[Point]:
        """All points, in the order in which they are measured."""

    @abstractmethod
    def table(self, document: Document) -> str:
        """Ours beside the paper's, as Markdown."""

    @abstractmethod
    def results(self, document: Document) -> Sequence[str]:
        """Ahead, equal or behind, a sentence for each claim that can be told from the raw file."""

    def draw(self, document: Document, path: Path) -> bool:
        """Draw the paper's figure with our points into an SVG; False where there is none."""
        return False

    def read(self, path: Path) -> Document:
        """Content of a raw file, for the page."""
        return read_document(path)

    @property
    def raw(self) -> str:
        """Name of the raw file, without its suffix."""
        return f"papers_{self.name}"

    @property
    def invocation(self) -> str:
        """The command that measures it."""
        return f"python -m benchmarks.papers.{self.name} " + (
            "--device cpu" if self.on_host else "--data DATA"
        )

    def run(self, setting: Setting, limit: float, again: bool) -> bool:
        """Measure what the raw file lacks, and write it after every point; whether all is there.

        A point that fails ends the process, whose device may be in any state; the same command goes on with the
        others, and tries those that failed last.

        Args:
            limit: seconds after which no further point is begun.
            again: measure points that the file holds, too.

        Raises:
            click.ClickException: all other points are there, and some failed again.
        """
        ends = time.monotonic() + limit
        raw = RawFile(self, setting, again)
        fresh, failed = raw.left()
        for point in (*fresh, *failed):
            if time.monotonic() > ends:
                click.echo(f"time is up: {point.name} and what follows is left out; the same command goes on")
                return False
            if not raw.measure(point) and point in fresh:
                click.echo(f"{point.name} failed: {raw.failed[point.name]}; the same command goes on")
                return False
        if raw.failed:
            told = "; ".join(f"{name}: {why}" for name, why in raw.failed.items())
            raise click.ClickException(f"{self.name}: {len(raw.failed)} points failed: {told}")
        click.echo(f"{self.name}: complete")
        return True

    def command(self) -> click.Command:
        """The study's command line."""

        @click.command(name=self.name, help=f"{self.title}. {self.paper}")
        @click.option(
            "--device", "name", default="cuda", show_default=True, help="cuda, emulator, or cpu (PyTorch)."
        )
        @click.option(
            "--data",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="Folder of real data (benchmarks/README.md); without it data are generated.",
        )
        @click.option("--tiny", is_flag=True, help="Small sizes, for a test.")
        @click.option("--limit", default=LIMIT, show_default=True, help="Begin no point later, seconds.")
        @click.option("--again", is_flag=True, help="Also points that the raw file holds.")
        def main(name: str, data: Path | None, tiny: bool, limit: float, again: bool) -> None:
            setting = Setting(device_of(name), Data(data), tiny)
            with private_lock(self.raw, Settings.from_environment().cache / "locks"):
                # Another process may measure the same yet: one whose parent was killed.
                if not self.run(setting, limit, again):
                    sys.exit(INCOMPLETE)

        return main


class RawFile:
    """A study's raw file on a device: the rows that it holds, and what failed, written as a whole each time."""

    def __init__(self, study: Study, setting: Setting, again: bool) -> None:
        self._study, self._setting = study, setting
        self._points = list(study.points(setting))
        path = result_file(setting.device, study.raw)
        held = read_document(path) if path.is_file() and not again else {}
        self._rows: dict[str, dict[str, Any]] = {row[KEY]: row for row in held.get("rows", ())}
        self.failed: dict[str, str] = held.get(FAILED, {})

    def left(self) -> tuple[list[Point], list[Point]]:
        """Points that were never begun, and those that failed."""
        missing = [point for point in self._points if point.name not in self._rows]
        return (
            [point for point in missing if point.name not in self.failed],
            [point for point in missing if point.name in self.failed],
        )

    def measure(self, point: Point) -> bool:
        """Measure a point and write it; False if it fails. While it is measured, the file says that it was begun."""
        self.failed[point.name] = self.failed.get(point.name, BROKEN_OFF)
        self._write()
        began = time.monotonic()
        try:
            measured = point.measure()
        except Exception as error:  # whatever it is, the other points must be measured
            traceback.print_exc()
            self.failed[point.name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            self._write()
            return False
        taken = round(time.monotonic() - began, 2)
        self._rows[point.name] = {KEY: point.name, **measured, "seconds": taken}
        del self.failed[point.name]
        self._write()
        click.echo(f"{point.name}: " + ", ".join(f"{k} {v}" for k, v in measured.items() if _is_short(v)))
        return True

    def _write(self) -> None:
        """Rows in the order of the points; those of other settings lie behind."""
        order = {point.name: number for number, point in enumerate(self._points)}
        rows = sorted(self._rows.values(), key=lambda row: order.get(row[KEY], len(order)))
        folder = self._setting.data.folder
        given = {} if folder is None else {str(folder): "DATA"}
        command = ["python -m", f"benchmarks.papers.{self._study.name}"]
        facts = {FAILED: self.failed} if self.failed else {}
        write_results(
            self._setting.device,
            self._study.raw,
            rows,
            command=" ".join([*command, *(given.get(word, word) for word in sys.argv[1:])]),
            seed=self._study.seed,
            **facts,
        )


def device_of(name: str) -> Device:
    """A device of sparsegen's, or the host's CPU for what PyTorch alone computes."""
    if name != CPU:
        return find_device(name)
    import torch

    return replace(find_device("emulator"), key=CPU, name=f"CPU, PyTorch {torch.__version__}")


def result(what: str, ratio: float | None) -> str:
    """A sentence of a ratio that is above 1 where ours is better: ahead, equal or behind."""
    if ratio is None:
        return f"{what}: not measured."
    if abs(ratio - 1) <= EQUAL:
        return f"{what}: equal ({ratio:.2f} ×)."
    return f"{what}: {'ahead' if ratio > 1 else '**behind**'} ({ratio:.2f} ×)."


def rows_by(document: Document, *keys: str) -> dict[tuple[Any, ...], Row]:
    """The rows that have all these fields, by them."""
    return {tuple(row[k] for k in keys): row for row in document["rows"] if all(k in row for k in keys)}


def svg(figure: Any, path: Path) -> bool:
    """Save a figure as pictures are committed; true, as `Study.draw` says it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
    return True


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float) and len(str(value)) < 40
