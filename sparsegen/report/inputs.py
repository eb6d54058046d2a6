"""Inputs of a report: result files and one device's part of a tuning database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import Results
from sparsegen.errors import ReportError
from sparsegen.report import points, words
from sparsegen.report.points import Point
from sparsegen.tuning_db.records import Baseline, Measurement, Tuned
from sparsegen.tuning_db.store import Store

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything of one device.

    Attributes:
        results: the result files' contents, by file name, in the order given.
        database: place of the records; empty without a database.
        notes: parts that were left out, in sentences.
    """

    device_key: str
    device_name: str
    results: tuple[tuple[str, Results], ...]
    database: str
    measurements: tuple[Measurement, ...]
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]

    @property
    def has_bench(self) -> bool:
        return any(part.rows for _, part in self.results)

    def points(self) -> list[Point]:
        """The rows of the result files; without any, the database's winners and their baselines."""
        if self.has_bench:
            return points.from_results(part for _, part in self.results)
        return points.from_records(self.measurements, self.baselines)


def gather(
    files: Sequence[Path],
    store: Store | None,
    device: str | None,
    progress: Progress,
) -> Inputs:
    """Read result files and a database.

    Args:
        device: key of the device to report on; None for the first file's, else the one with most records in the
            database.

    Raises:
        ResultsError, DatabaseError: a file or the database cannot be read.
        ReportError: nothing is known of the device, or a workload stands in two of the files.
    """
    parts = []
    batches = 0
    for file in files:
        progress(f"reading {file}")
        read = result_file.read(file)
        single = tuple(row for row in read.rows if row.batch == 1)  # points of one batch element are compared
        batches += len(read.rows) - len(single)
        parts.append((file.name, replace(read, rows=single)))
    listed = [] if store is None else store.list_workloads()
    tuned = [t for t in listed if t.workload.problem.batch == 1]
    batches += len(listed) - len(tuned)
    key = device or _most_known([part for _, part in parts], tuned)
    mine = tuple((name, part) for name, part in parts if part.device.key == key)
    known = [t for t in tuned if t.device.key == key]
    if not mine and not known:
        raise ReportError(_nothing(key, [part for _, part in parts], tuned))
    _require_once(mine)
    measurements: list[Measurement] = []
    baselines: list[Baseline] = []
    if store is not None:
        for number, t in enumerate(known, 1):
            progress(f"reading {store.location}: workload {number} of {len(known)}")
            measurements += store.measurements(t.workload, t.device)
            baselines += store.baselines(t.workload, t.device)
    name = mine[0][1].device.name if mine else known[0].device.name
    return Inputs(
        device_key=key,
        device_name=name,
        results=mine,
        database="" if store is None else store.location,
        measurements=tuple(measurements),
        baselines=tuple(baselines),
        notes=(*_left_out(key, [part for _, part in parts], tuned), *_batches(batches)),
    )


def _most_known(parts: Sequence[Results], tuned: Sequence[Tuned]) -> str:
    if parts:
        return parts[0].device.key
    held: Counter[str] = Counter()
    for t in tuned:
        held[t.device.key] += t.measurements
    if not held:
        raise ReportError(
            "nothing to report on: no result file is given, and the database holds no measurement; "
            "run `sparsegen tune` or `sparsegen bench`, or name others with --db and --bench"
        )
    return held.most_common(1)[0][0]


def _nothing(key: str, parts: Sequence[Results], tuned: Sequence[Tuned]) -> str:
    others = sorted({part.device.key for part in parts} | {t.device.key for t in tuned})
    return f"nothing is known of the device {key!r}; known are {', '.join(others) or 'none'}"


def _require_once(parts: Sequence[tuple[str, Results]]) -> None:
    seen: dict[object, str] = {}
    for name, part in parts:
        for row in part.rows:
            if row.key in seen:
                raise ReportError(f"{row.key} stands in both {seen[row.key]} and {name}; give one of them")
            seen[row.key] = name


def _batches(number: int) -> list[str]:
    if not number:
        return []
    return [
        f"{words.count(number, 'workload')} of several batch elements left out: the report compares single ones."
    ]


def _left_out(key: str, parts: Sequence[Results], tuned: Sequence[Tuned]) -> list[str]:
    notes = []
    rows: Counter[str] = Counter()
    for part in parts:
        rows[part.device.name] += len(part.rows) if part.device.key != key else 0
    for name, number in rows.items():
        if number:
            notes.append(f"{words.count(number, 'row')} of {name} left out: a report is of one device.")
    workloads = Counter(t.device.name for t in tuned if t.device.key != key)
    for name, number in workloads.items():
        notes.append(
            f"{words.count(number, 'workload')} of {name} in the database left out: a report is of one device."
        )
    return notes
