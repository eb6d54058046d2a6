"""Published layers: tuning results as one read-only SQLite file, for a package or a container's image.

The file has the tables of any database, and two more: who published it and when, and for each device what its times
were measured with. `Settings.layers` has it read between the project's database and the packaged results.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparsegen import __version__
from sparsegen.errors import DatabaseCorruptError, DatabaseError
from sparsegen.kernels import is_of_operator
from sparsegen.kernels.base import Device
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_file, reported
from sparsegen.tuning_db import (
    exchange,
    ranking,
    schema_versions,
    seed_columns,
    seed_file,
    sqlite_files,
)
from sparsegen.tuning_db.conversion import printable
from sparsegen.tuning_db.exchange import Content
from sparsegen.tuning_db.reading import RecordsReader
from sparsegen.tuning_db.records import Measurement, Workload

HEAD_TABLE, DEVICES_TABLE = schema_versions.PUBLISHED_TABLE, "published_devices"
LONGEST_TEXT = 1000
READ_ONLY = 0o444
MOST_DEVICES = 10_000


@dataclass(frozen=True, slots=True)
class Tools:
    """Versions of a device's driver and compiler; empty if not known."""

    driver: str = ""
    compiler: str = ""


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device in a published layer.

    Attributes:
        driver, compiler: versions on the publishing machine, if it has the device; else as given, or empty.
        clock_low_mhz, clock_high_mhz: range of the multiprocessors' clock during the measurements; None if not known.
        measured_from, measured_to: the first and the last measurement, ISO 8601.
    """

    key: str
    name: str
    driver: str
    compiler: str
    clock_low_mhz: int | None
    clock_high_mhz: int | None
    measured_from: str
    measured_to: str
    workloads: int
    measurements: int


@dataclass(frozen=True, slots=True)
class Published:
    """A layer's description of itself.

    Attributes:
        by, at: who published it, and when (ISO 8601).
        version: sparsegen's version.
    """

    by: str
    at: str
    note: str
    version: str
    devices: tuple[PublishedDevice, ...]

    def to_dict(self) -> Json:
        """JSON values."""
        return asdict(self)


def publish(
    source: RecordsReader,
    path: Path,
    *,
    by: str,
    note: str = "",
    winners_alone: bool = False,
    tools_of: Callable[[Device], Tools],
) -> Published:
    """Write all that a database holds as a layer, and replace what is there.

    Args:
        by: who publishes it.
        winners_alone: keep of each workload only the variants in its finals, or the best one: a smaller file, from
            which less can be learned for other workloads.
        tools_of: asked for every device.

    Raises:
        DatabaseError: nothing is there to publish.
        OutputError: the file cannot be written.
    """
    measurements = [
        m for m in source.all_measurements() if is_of_operator(m.variant.config, m.workload.problem.operator)
    ]
    if winners_alone:
        measurements = _winners(measurements)
    if not measurements:
        raise DatabaseError(f"{source.location} holds no measurements to publish")
    content = Content(tuple(measurements), tuple(source.all_baselines()), tuple(source.all_rates()))
    told = Published(
        printable(by)[:LONGEST_TEXT],
        datetime.now(UTC).isoformat(timespec="seconds"),
        printable(note)[:LONGEST_TEXT],
        __version__,
        tuple(_devices(measurements, tools_of)),
    )
    with (
        reported(path, "name another file with --out"),
        closing(sqlite3.connect(":memory:", isolation_level=None)) as memory,
    ):
        seed_file.fill(memory, [seed_columns.pack(exchange.document(content))])
        _describe(memory, told)
        with publish_file(path, READ_ONLY) as out:
            out.write(memory.serialize())
    return told


def _winners(measurements: Iterable[Measurement]) -> list[Measurement]:
    by_workload: dict[tuple[str, Workload], list[Measurement]] = defaultdict(list)
    for m in measurements:
        by_workload[m.device.key, m.workload].append(m)
    kept: list[Measurement] = []
    for known in by_workload.values():
        finals = [m for m in known if m.final]
        best = ranking.best(known)
        kept += finals or ([] if best is None else [best])
    return kept


def _devices(
    measurements: Iterable[Measurement], tools_of: Callable[[Device], Tools]
) -> Iterable[PublishedDevice]:
    by_device: dict[Device, list[Measurement]] = defaultdict(list)
    for m in measurements:
        by_device[m.device].append(m)
    for device, known in sorted(by_device.items(), key=lambda item: item[0].key):
        clocks = [m.sample.clock_mhz for m in known if m.sample is not None and m.sample.clock_mhz]
        moments = [m.measured_at for m in known]
        tools = tools_of(device)
        yield PublishedDevice(
            key=device.key,
            name=device.name,
            driver=printable(tools.driver)[:LONGEST_TEXT],
            compiler=printable(tools.compiler)[:LONGEST_TEXT],
            clock_low_mhz=min(clocks, default=None),
            clock_high_mhz=max(clocks, default=None),
            measured_from=min(moments).isoformat(),
            measured_to=max(moments).isoformat(),
            workloads=len({m.workload for m in known}),
            measurements=len(known),
        )


_HEAD = {"by": "published_by", "at": "published_at", "note": "note", "version": "sparsegen_version"}
_DEVICE = tuple(f.name for f in fields(PublishedDevice))


def _describe(connection: sqlite3.Connection, told: Published) -> None:
    columns = ", ".join(f"{name} TEXT NOT NULL" for name in _HEAD.values())
    connection.execute(f"CREATE TABLE {HEAD_TABLE} ({columns})")
    connection.execute(
        f"INSERT INTO {HEAD_TABLE} VALUES (?, ?, ?, ?)", tuple(getattr(told, name) for name in _HEAD)
    )
    connection.execute(f"CREATE TABLE {DEVICES_TABLE} ({', '.join(_DEVICE)})")
    places = ", ".join("?" * len(_DEVICE))
    connection.executemany(
        f"INSERT INTO {DEVICES_TABLE} VALUES ({places})", [astuple(device) for device in told.devices]
    )


def read_published(path: Path) -> Published | None:
    """Reads a layer's description of itself; None for a database that was not published.

    Raises:
        DatabaseCorruptError: it says what `publish` does not write.
        DatabaseError: and its other children: it cannot be read.
    """
    sqlite_files.check_file(path, read_only=True)
    try:
        with closing(sqlite_files.connect(path, read_only=True, lock_timeout=30.0)) as connection:
            tables = {
                name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if HEAD_TABLE not in tables:
                return None
            heads = connection.execute(
                f"SELECT {', '.join(_HEAD.values())} FROM {HEAD_TABLE} LIMIT 2"
            ).fetchall()
            rows = connection.execute(
                f"SELECT {', '.join(_DEVICE)} FROM {DEVICES_TABLE} LIMIT {MOST_DEVICES}"
            ).fetchall()
    except sqlite_files.FAILURES as error:
        raise sqlite_files.typed(error, path) from error
    if len(heads) != 1 or not _are_texts(heads[0]) or not all(map(_is_sound, rows)):
        raise DatabaseCorruptError(
            f"{path} does not say of itself what a published layer does; publish it again"
        )
    by, at, note, version = heads[0]
    return Published(by, at, note, version, tuple(PublishedDevice(*row) for row in rows))


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(v, str) and len(v) <= LONGEST_TEXT and printable(v) == v for v in values)


def _is_sound(row: tuple[Any, ...]) -> bool:
    device = PublishedDevice(*row)
    texts = (
        device.key,
        device.name,
        device.driver,
        device.compiler,
        device.measured_from,
        device.measured_to,
    )
    clocks = (device.clock_low_mhz, device.clock_high_mhz)
    return (
        _are_texts(texts)
        and all(c is None or (type(c) is int and c >= 0) for c in clocks)
        and all(type(c) is int and c >= 0 for c in (device.workloads, device.measurements))
    )
