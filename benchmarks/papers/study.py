"""Shared parts of the papers' studies: a paper's claim, points measured one by one, and the raw file of both."""

from __future__ import annotations

import math
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.papers.budget import START, Budget
from benchmarks.papers.data import Data
from benchmarks.pictures import save
from benchmarks.study import read_document, result_file, rows_of, torch_place, write_results
from sparsegen.backends import find_device, find_devices
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.system.host_lock import private_lock

KEY = "point"  # the field that names a row of a raw file
LIMIT = 540.0  # seconds after which no further point is begun
INCOMPLETE = 75  # exit status of a study that goes on when it is given again
FAILED = "failed"  # of a raw file: points without a result, and why
BROKEN_OFF = "the process ended before it was measured"
TURNS = "papers_turns"  # the raw file of how long studies took
CPU = "cpu"  # PyTorch on the host; nothing of ours runs
ALL, PARTS = "all", ("untimed", "timed")  # of a study's points
BEHIND = "**behind**"  # what `outcome` says of a ratio
EQUAL = 0.05  # by how much a ratio may differ from 1 and still be called equal

Command = TypeVar("Command", bound=Callable[..., object])
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
        gpus: number of GPUs of this kind.
        shared: a folder for what processes side by side make once for all; None for one process.
    """

    device: Device
    data: Data
    tiny: bool
    gpus: int = 1
    shared: Path | None = None

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
    """One row of the raw file.

    Attributes:
        expected: seconds that it should take on one H200.
        is_timed: whether it times anything: then nothing else may run beside it.
        group: points of a group share what a process makes once.
    """

    name: str
    measure: Callable[[], dict[str, Any]]
    expected: float
    is_timed: bool = True
    group: str = ""


def setting_options(command: Command) -> Command:
    """Give a command the options of a `Setting`, and how many points are measured at a time."""
    for option in (
        click.option(
            "--together",
            type=click.IntRange(1),
            default=1,
            help="Measure so many points that time nothing at a time, on all GPUs.",
        ),
        click.option("--tiny", is_flag=True, help="Small sizes, for a test."),
        click.option(
            "--data",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="Folder of real data (benchmarks/README.md); without it data are generated.",
        ),
        click.option("--device", default="cuda", show_default=True, help="cuda, emulator, or cpu (PyTorch)."),
    ):
        command = option(command)
    return command


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
        """All points that are known, those that tell most first; no device is touched. Results may call for others."""

    @abstractmethod
    def table(self, document: Document) -> str:
        """Ours beside the paper's, as Markdown."""

    @abstractmethod
    def results(self, document: Document) -> Sequence[str]:
        """Ahead, equal or behind, a sentence for each claim that can be told from the raw file."""

    def why(self, document: Document, name: str) -> str:
        """The cause by which a row of the table or a result is behind, as the raw file tells it.

        Args:
            name: the row's first cell, or what the result is about.
        """
        return "why was not looked into yet"

    def draw(self, document: Document, path: Path) -> bool:
        """Draw the paper's figure with our points into an SVG; False where there is none."""
        return False

    def read(self, path: Path) -> Document:
        """Content of a raw file, for the page."""
        return read_document(path)

    def held(self, setting: Setting) -> Document:
        """Content of the raw file of a device, with no rows where there is none."""
        path = result_file(setting.device, self.raw)
        return read_document(path) if path.is_file() else {"rows": []}

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

    def progress(self, setting: Setting) -> Progress:
        """The rows that the raw file holds, and what is left."""
        raw = RawFile(self, setting, again=False)
        left = [point for points in raw.left() for point in points]
        return Progress(len(raw.points) - len(left), len(left), sum(point.expected for point in left))

    @property
    def module(self) -> str:
        """The name of its module, which other processes import."""
        return f"benchmarks.papers.{self.name}"

    def run(self, setting: Setting, budget: Budget, again: bool, together: int = 1, part: str = ALL) -> bool:
        """Measure what the raw file lacks, and write it after every point; whether all is there.

        A point that fails ends the process, whose device may be in any state; the same command goes on with the
        others, and tries those that failed last. A point that should take longer than is left is passed over, but the
        first one of a turn.

        Args:
            again: measure points that the file holds, too.
            together: how many points that time nothing are measured at a time, before the others.
            part: ``untimed`` for these alone, ``timed`` for the others alone, or ``all``.

        Raises:
            click.ClickException: all other points are there, and some failed again.
        """
        raw = RawFile(self, setting, again)
        fresh, failed = ([p for p in some if part in (ALL, PARTS[p.is_timed])] for some in raw.left())
        alone = [*fresh, *failed]
        if together > 1:
            passed = self._side_by_side(raw, [p for p in alone if not p.is_timed], setting, budget, together)
            if new := [point.name for point in fresh if point.name in raw.failed]:
                click.echo(f"{len(new)} points failed: {', '.join(new)}; the same command goes on")
                return False
            alone = [point for point in alone if point.is_timed]
        else:
            passed = 0
        is_first = not passed
        for point in alone:
            if not budget.allows(point.expected, first=is_first):
                passed += 1
                continue
            is_first = False
            if not raw.measure(point) and point in fresh:
                click.echo(f"{point.name} failed: {raw.failed[point.name]}; the same command goes on")
                return False
        if passed:
            click.echo(f"time is up: {passed} points are left; the same command goes on")
            return False
        if broken := {point.name: raw.failed[point.name] for point in failed if point.name in raw.failed}:
            told = "; ".join(f"{name}: {why}" for name, why in broken.items())
            raise click.ClickException(f"{self.name}: {len(broken)} points failed: {told}")
        if [*map(attrgetter("name"), self.points(setting))] != [*map(attrgetter("name"), raw.points)]:
            return self.run(setting, budget, False, together, part)  # results call for further points
        click.echo(f"{self.name}: complete" + ("" if part == ALL else f", what is {part}"))
        return True

    def _side_by_side(
        self, raw: RawFile, points: list[Point], setting: Setting, budget: Budget, together: int
    ) -> int:
        """Measure points that time nothing, some at a time; the number of those for which there was no time."""
        from benchmarks.papers.together import Together

        calls = raw.begin, raw.hold, raw.fail, raw.leave
        return len(Together(self.module, setting, together, budget, *calls).measure(points)) if points else 0

    def command(self) -> click.Command:
        """The study's command line."""

        @click.command(name=self.name, help=f"{self.title}. {self.paper}")
        @setting_options
        @click.option("--limit", default=LIMIT, show_default=True, help="Begin no point later, seconds.")
        @click.option("--within", default=math.inf, help="Begin no point that should end later, seconds.")
        @click.option("--again", is_flag=True, help="Also points that the raw file holds.")
        @click.option(
            "--part",
            type=click.Choice([ALL, *PARTS]),
            default=ALL,
            help="Only points that time something, or not.",
        )
        def main(
            device: str,
            data: Path | None,
            tiny: bool,
            limit: float,
            within: float,
            again: bool,
            together: int,
            part: str,
        ) -> None:
            budget, began = Budget.of(limit, within), time.monotonic()
            setting = setting_of(device, data, tiny)
            with private_lock(self.raw, Settings.from_environment().cache / "locks"):
                # Another process may measure the same yet: one whose parent was killed.
                before = Progress(0, 0, 0.0) if again else self.progress(setting)
                try:
                    is_complete = self.run(setting, budget, again, together, part)
                finally:
                    write_turn(self, setting, before, time.monotonic() - began)
                if not is_complete:
                    sys.exit(INCOMPLETE)

        return main


@dataclass(frozen=True)
class Progress:
    """The state of a study on a device: rows that are there, rows that are not, and seconds that these should take."""

    held: int
    left: int
    expected: float


def write_turn(study: Study, setting: Setting, before: Progress, taken: float) -> None:
    """Record how long a turn of a study took, beside what was expected of the rows that it measured."""
    after = study.progress(setting)
    if after.held == before.held:
        return
    row = {
        "study": study.name,
        "rows": after.held - before.held,
        "left": after.left,
        "seconds": round(taken, 1),
        "expected_seconds": round(START + before.expected - after.expected, 1),
        "expected_left_seconds": round(after.expected, 1),
    }
    with private_lock(TURNS, Settings.from_environment().cache / "locks"):  # studies may run side by side
        rows = [*rows_of(result_file(setting.device, TURNS)), row]
        write_results(setting.device, TURNS, rows, command=_invoked(study, setting))


def _invoked(study: Study, setting: Setting) -> str:
    """The command line of this process, with DATA for the folder of data."""
    folder = setting.data.folder
    given = {} if folder is None else {str(folder): "DATA"}
    words = [
        "python -m",
        f"benchmarks.papers.{study.name}",
        *(given.get(word, word) for word in sys.argv[1:]),
    ]
    return " ".join(words)


class RawFile:
    """A study's raw file on a device: the rows that it holds, and what failed, written as a whole each time.

    Attributes:
        points: all points of the study.
        failed: those without a result, and why.
    """

    def __init__(self, study: Study, setting: Setting, again: bool) -> None:
        self._study, self._setting = study, setting
        self.points = list(study.points(setting))
        held = {} if again else study.held(setting)
        self._rows: dict[str, dict[str, Any]] = {row[KEY]: row for row in held.get("rows", ())}
        self.failed: dict[str, str] = held.get(FAILED, {})

    def left(self) -> tuple[list[Point], list[Point]]:
        """Points that were never begun, and those that failed."""
        missing = [point for point in self.points if point.name not in self._rows]
        return (
            [point for point in missing if point.name not in self.failed],
            [point for point in missing if point.name in self.failed],
        )

    def measure(self, point: Point) -> bool:
        """Measure a point and write it; False if it fails. While it is measured, the file says that it was begun."""
        self.begin(point)
        began = time.monotonic()
        try:
            measured = point.measure()
        except Exception as error:  # whatever it is, the other points must be measured
            traceback.print_exc()
            self.fail(point, why_failed(error))
            return False
        self.hold(point, measured, time.monotonic() - began)
        return True

    def begin(self, point: Point) -> None:
        """Write that a point was begun."""
        self.failed[point.name] = self.failed.get(point.name, BROKEN_OFF)
        self._write()

    def fail(self, point: Point, why: str) -> None:
        """Write why there is no row of a point."""
        self.failed[point.name] = why
        self._write()

    def leave(self, point: Point) -> None:
        """Write nothing of a point that was begun, unless it failed before."""
        if self.failed.get(point.name) == BROKEN_OFF:
            del self.failed[point.name]
        self._write()

    def hold(self, point: Point, measured: dict[str, Any], taken: float) -> None:
        """Write the row of a point."""
        self._rows[point.name] = {
            KEY: point.name,
            **measured,
            "seconds": round(taken, 2),
            "expected_seconds": round(point.expected, 1),
        }
        del self.failed[point.name]
        self._write()
        click.echo(f"{point.name}: " + ", ".join(f"{k} {v}" for k, v in measured.items() if _is_short(v)))

    def _write(self) -> None:
        """Rows in the order of the points; those of other settings lie behind."""
        order = {point.name: number for number, point in enumerate(self.points)}
        rows = sorted(self._rows.values(), key=lambda row: order.get(row[KEY], len(order)))
        facts = {FAILED: self.failed} if self.failed else {}
        write_results(
            self._setting.device,
            self._study.raw,
            rows,
            command=_invoked(self._study, self._setting),
            seed=self._study.seed,
            **facts,
        )


def setting_of(name: str, data: Path | None, tiny: bool) -> Setting:
    """The setting of a device by name."""
    device = device_of(name)
    gpus = len(find_devices("all")) if device.backend == "cuda" else 1
    return Setting(device, Data(data), tiny, gpus)


def device_of(name: str) -> Device:
    """A device of sparsegen's, or the host's CPU for what PyTorch alone computes."""
    if name != CPU:
        return find_device(name)
    import torch

    return replace(find_device("emulator"), key=CPU, name=f"CPU, PyTorch {torch.__version__}")


def result(what: str, ratio: float | None) -> str:
    """A sentence of a ratio that is above 1 where ours is better: ahead, equal or behind."""
    return f"{what}: not measured." if ratio is None else f"{what}: {outcome(ratio)} ({ratio:.2f} ×)."


def outcome(ratio: float | None) -> str:
    """A ratio that is above 1 where ours is better, in a word."""
    if ratio is None:
        return "not measured yet"
    if abs(ratio - 1) <= EQUAL:
        return "equal"
    return "ahead" if ratio > 1 else BEHIND


def ahead_from(ratios: Mapping[float, float | None]) -> float | None:
    """The least key from which on all ratios that were measured are above 1; None if the last one is not."""
    found = None
    for key in sorted(ratios, reverse=True):
        over = ratios[key]
        if over is not None and over <= 1:
            break
        found = key if over is not None else found
    return found


def svg(figure: Any, path: Path) -> bool:
    """Save a figure as pictures are committed; true, as `Study.draw` says it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
    return True


def why_failed(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _is_short(value: Any) -> bool:
    return isinstance(value, str | int | float) and len(str(value)) < 40
