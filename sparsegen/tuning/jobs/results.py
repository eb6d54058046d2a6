"""The result file of a job: a line of JSON for each record, on disk before the next thing is measured.

The first line says which job it is of, and on which device. A run that is killed leaves whole lines and perhaps a part
of one: the same command goes on from there. Whoever imports a result holds every record against the bundle that it
is of (`checks`).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegen import backends
from sparsegen.errors import BundleError, DatabaseFullError
from sparsegen.kernels.base import Device, cuda_key
from sparsegen.system.json_object import Json
from sparsegen.system.output_places import is_stream
from sparsegen.system.regular import open_regular
from sparsegen.tuning.jobs.bundle import Bundle, open_bundle
from sparsegen.tuning.jobs.checks import Checks
from sparsegen.tuning.jobs.job import LONGEST_FINGERPRINT
from sparsegen.tuning_db.conversion import described, printable
from sparsegen.tuning_db.exchange import Content
from sparsegen.tuning_db.foreign_devices import facts, require_known_facts
from sparsegen.tuning_db.json_reader import HEX, Node, parse_json, require_readable
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.record_json import (
    baseline_dict,
    measurement_dict,
    rates_dict,
    read_baseline,
    read_device,
    read_measurement,
    read_rates,
)
from sparsegen.tuning_db.records import Baseline, DeviceRates, Measurement, Workload

if TYPE_CHECKING:
    from sparsegen.tuning_db.store import Added, Store

FORMAT, VERSION = "sparsegen-job-result", 1
LARGEST_RESULT = 512 * 2**20  # bytes
LONGEST_LINE = 64 * 2**10  # bytes
LONGEST_DRIVER = 100


@dataclass(frozen=True, slots=True)
class Head:
    """Contents of the first line.

    Attributes:
        job: the bundle's digest.
        compiler: the fingerprint of the toolchain whose binaries ran.
        driver: version of NVIDIA's driver; empty if it is not known.
    """

    job: str
    device: Device
    compiler: str
    driver: str
    started_at: datetime

    def to_dict(self) -> Json:
        return {
            "format": FORMAT,
            "version": VERSION,
            "job": self.job,
            "device": described(self.device),
            "compiler": self.compiler,
            "driver": self.driver,
            "started_at": self.started_at.isoformat(),
        }


@dataclass(frozen=True, slots=True)
class JobResult:
    """Contents of a result file.

    Attributes:
        whole_bytes: bytes of its whole lines.
        is_cut_off: true if a part of a line follows them.
    """

    head: Head
    content: Content
    whole_bytes: int
    is_cut_off: bool


def is_result(path: Path) -> bool:
    """True if a file begins like a job's result."""
    with suppress(OSError, ValueError), open_regular(path) as file:
        return f'"{FORMAT}"'.encode() in file.read(100)
    return False


def read_result(path: Path, bundle: Bundle) -> JobResult:
    """The records of a result file, each held against the bundle that it is of.

    Raises:
        BundleError: it is of another job, or damaged, or holds what the bundle cannot have given; it names the line.
    """
    lines = _WholeLines(path)
    nodes = iter(lines)
    first = next(nodes, None)
    if first is None:
        raise BundleError(f"{path}: not the result of a job: it has no whole line")
    head = _head(first, bundle)
    checks = Checks(bundle, head.device, head.compiler)
    workloads = [task.workload for task in bundle.job.tasks]
    measurements: list[Measurement] = []
    baselines: list[Baseline] = []
    rates: list[DeviceRates] = []
    for node in nodes:
        kinds = node.fields((), ("measurement", "baseline", "rates"))
        if len(kinds) != 1:
            node.refuse("one record")
        ((kind, record),) = kinds.items()
        if kind == "measurement":
            measurements.append(
                checks.measurement(record, read_measurement(record, workloads, [head.device]))
            )
        elif kind == "baseline":
            baselines.append(checks.baseline(record, read_baseline(record, workloads, [head.device])))
        else:
            rates.append(checks.rates(record, read_rates(record, head.device)))
    content = Content(tuple(measurements), tuple(baselines), tuple(rates))
    return JobResult(head, content, lines.nbytes, lines.is_cut_off)


class _WholeLines:
    """The whole lines of a file as JSON, with one at a time in memory.

    Attributes:
        nbytes: bytes of the lines read so far.
        is_cut_off: true if a part of a line follows the last one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.nbytes, self.is_cut_off = 0, False

    def __iter__(self) -> Iterator[Node]:
        """
        Raises:
            BundleError: the file cannot be read, or a line is too long, not UTF-8 or not JSON.
        """
        require_readable(self._path, LARGEST_RESULT, BundleError)
        try:
            with self._path.open("rb") as file:
                for number in count(1):
                    where = f"{self._path}: line {number}"
                    line = file.readline(LONGEST_LINE + 1)
                    if len(line) > LONGEST_LINE:
                        raise BundleError(f"{where} is longer than {LONGEST_LINE} bytes")
                    if not line.endswith(b"\n"):
                        self.is_cut_off = bool(line)
                        return
                    self.nbytes += len(line)
                    yield parse_json(line.decode(), where, BundleError)
        except OSError as error:
            raise BundleError(f"{self._path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise BundleError(f"{where}: not UTF-8 text at byte {error.start}") from None


def _head(node: Node, bundle: Bundle) -> Head:
    members = node.members()
    if "format" not in members or members["format"].value != FORMAT:
        node.refuse("the first line of a job's result")
    f = node.fields(("format", "version", "job", "device", "compiler", "driver", "started_at"))
    if f["version"].value != VERSION:
        f["version"].refuse(f"version {VERSION}; another needs another sparsegen")
    head = Head(
        job=f["job"].text(64, HEX),
        device=read_device(f["device"]),
        compiler=f["compiler"].text(LONGEST_FINGERPRINT, ".+"),
        driver=f["driver"].text(LONGEST_DRIVER),
        started_at=f["started_at"].moment(),
    )
    if head.job != bundle.digest:
        f["job"].refuse(f"{bundle.digest}, the digest of {bundle.path}: it is the result of another bundle")
    if not bundle.job.fits(head.device):
        target = bundle.job.target
        major, minor = target.compute_capability
        f["device"].refuse(
            f"a {target.backend} device of compute capability {major}.{minor}, as the bundle is for"
        )
    if not _has_own_facts(head.device):
        f["device"].refuse(
            "a device with the key of its backend and name, or the emulator with its own facts"
        )
    if bundle.job.compiler and head.compiler != bundle.job.compiler:
        f["compiler"].refuse("the compiler of the bundle's kernels")
    return head


def _has_own_facts(device: Device) -> bool:
    """True if a device has the key of its backend and name and, if it is the emulator, the emulator's properties."""
    emulator = backends.emulator_device()
    if device.backend == emulator.backend:
        return facts(device) == facts(emulator)
    return device.key == cuda_key(device.name, device.compute_capability)


class ResultFile(MemoryLayer):
    """A result file that is being written, and what is in it; one process holds it at a time.

    Attributes:
        path: path of the file.

    Raises:
        BundleError: the file is not a result of this job on this device, or another process writes it.
    """

    def __init__(self, path: Path, bundle: Bundle, head: Head) -> None:
        self.path = path.absolute()
        self._number = {_key(task.workload): i for i, task in enumerate(bundle.job.tasks)}
        known = Content((), ())
        if is_stream(path):
            raise BundleError(
                f"{path}: this is a device or a pipe, from which no run goes on; name a file with --out"
            )
        try:
            self._file = path.open("ab")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BundleError(f"{path}: another process writes it; name another file with --out") from None
        except OSError as error:
            raise BundleError(f"{path}: {error.strerror}; name another file with --out") from None
        try:
            if self._file.tell():
                known = self._take_up(bundle, head)
            else:
                self._write(head.to_dict())
        except BaseException:
            self._file.close()
            raise
        super().__init__(known.measurements, known.baselines, known.rates)

    def _take_up(self, bundle: Bundle, head: Head) -> Content:
        """Reads what an earlier run left, and cuts off the incomplete line that it may have ended with."""
        if not self._has_whole_line():  # killed in the first line
            self._file.truncate(0)
            self._write(head.to_dict())
            return Content((), ())
        found = read_result(self.path, bundle)
        if found.head.device != head.device or found.head.compiler != head.compiler:
            raise BundleError(
                f"{self.path}: it was begun on {found.head.device.name} with another driver's device or compiler; name "
                "another file with --out"
            )
        self._file.truncate(found.whole_bytes)
        return found.content

    def _has_whole_line(self) -> bool:
        with self.path.open("rb") as file:
            return file.readline(LONGEST_LINE + 1).endswith(b"\n")

    def add_all(
        self,
        measurements: Iterable[Measurement],
        baselines: Iterable[Baseline],
        rates: Iterable[DeviceRates] = (),
    ) -> None:
        """Record all of them; they are on disk when this returns."""
        listed, timed, told = list(measurements), list(baselines), list(rates)
        for m in listed:
            m = replace(m, reason=printable(m.reason))
            self._write({"measurement": self._refer(m.workload) | measurement_dict(m)})
        for b in timed:
            b = replace(b, version=printable(b.version))
            self._write({"baseline": self._refer(b.workload) | baseline_dict(b)})
        for r in told:
            self._write({"rates": rates_dict(r)})
        self.take(listed, timed, told)

    def add_baseline(self, b: Baseline) -> None:
        """Record a baseline."""
        self.add_all((), [b])

    def add_rates(self, rates: DeviceRates) -> None:
        """Record what the device does."""
        self.add_all((), (), [rates])

    def _refer(self, workload: Workload) -> dict[str, int]:
        return {"workload": self._number[_key(workload)], "device": 0}

    def _write(self, record: Json) -> None:
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise DatabaseFullError(
                f"{self.path}: {error.strerror}; the same command goes on from here"
            ) from error

    def close(self) -> None:
        self._file.close()


def begun(bundle: Bundle, device: Device, compiler: str, driver: str) -> Head:
    """The first line of a new result."""
    return Head(bundle.digest, device, compiler, printable(driver)[:LONGEST_DRIVER], datetime.now(UTC))


def _key(workload: Workload) -> tuple[Any, str]:
    return workload.problem, workload.fingerprint


def read_verified(result: Path, bundle: Path) -> JobResult:
    """`read_result`, after the bundle's own files were held against its manifest.

    Raises:
        BundleError: the result or the bundle is damaged, they do not belong together, or the result holds what cannot
            be.
    """
    with open_bundle(bundle) as opened:
        opened.verify()
        return read_result(result, opened)


def add_result(store: Store, found: JobResult, source: Path) -> Added:
    """Add what is not there yet of a result that was read, all or nothing.

    Raises:
        BundleError: the database knows the device with other facts; nothing is added.
        DatabaseError: the database cannot be written.
    """
    require_known_facts(store, [found.head.device], source, BundleError)
    content = found.content
    return store.add_all(content.measurements, content.baselines, content.rates)
