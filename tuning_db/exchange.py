"""Export to JSON, import from it, and merge another database: all through the same strict validation.

The document::

    {"format": "sparsegen-tuning", "version": 1,
     "devices": [...], "workloads": [{"problem": ..., "fingerprint": ..., "features": ...}],
     "measurements": [{"workload": 0, "device": 0, "family": ..., "config": {...}, ...}],
     "baselines": [{"workload": 0, "device": 0, "contender": ..., ...}]}

Version 2 says that some devices have a member ``rates``: what they were measured to do. Version 3 says that there are
times measured as "clean" or "graph", or measurements with a driver; version 4, that there is a list ``predictions``.
Probes and checks are left out: they are of the machine that made them. ``workload`` and ``device`` are positions in the
lists above them. A config passes only if its family knows every value (`Family.config`), so no text from a file can
reach a template. Nothing is imported unless all is valid; rows of families that are not installed, as they are of an
older sparsegen, are passed over with one line.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sparsegen.errors import ImportFileError
from sparsegen.kernels import families, is_of_operator
from sparsegen.kernels.base import Device
from sparsegen.operators import Problem
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.conversion import described
from sparsegen.tuning_db.foreign_devices import is_emulator_by_half, require_known_facts
from sparsegen.tuning_db.json_reader import Node, parse_json, read_text
from sparsegen.tuning_db.record_json import (
    COLD_OR_WARM,
    baseline_dict,
    measurement_dict,
    prediction_dict,
    rates_dict,
    read_baseline,
    read_device,
    read_measurement,
    read_prediction,
    read_rates,
    read_workload,
    workload_dict,
)
from sparsegen.tuning_db.records import Baseline, DeviceRates, Measurement, Prediction, Workload

if TYPE_CHECKING:  # records are read and written as JSON where there is no SQLAlchemy
    from sparsegen.tuning_db.store import Added, Store

log = logging.getLogger(__name__)

FORMAT = "sparsegen-tuning"
FAMILY = re.compile("[a-z][a-z0-9_]*")
# Each document has the oldest version that can say what it holds.
VERSIONS = VERSION, VERSION_WITH_RATES, VERSION_WITH_KINDS, VERSION_WITH_PREDICTIONS = 1, 2, 3, 4
LARGEST_FILE = 512 * 2**20  # bytes; a hundred thousand measurements take about 60 MB


@dataclass(frozen=True, slots=True)
class Content:
    """Contents of a document or a database."""

    measurements: tuple[Measurement, ...]
    baselines: tuple[Baseline, ...]
    rates: tuple[DeviceRates, ...] = ()  # the last rates of each device
    predictions: tuple[Prediction, ...] = ()


# --- export ------------------------------------------------------------------------------------------------


def export_json(store: Store) -> tuple[str, int]:
    """The whole database as a document, and how many measurements were left out.

    Left out are those of problems, families and config values that this sparsegen does not declare (any more), and
    those by families of other operators: an import would refuse them.
    """
    everything = store.all_measurements()
    kept = [m for m in everything if _is_importable(m)]
    left_out = len(everything) - len(kept) + sum(problem.measurements for problem in store.unknown_problems())
    predictions = tuple(p for p in store.all_predictions() if _is_importable(p))
    content = Content(tuple(kept), tuple(store.all_baselines()), tuple(store.all_rates()), predictions)
    return dump(content), left_out


def _is_importable(record: Measurement | Prediction) -> bool:
    return is_of_operator(record.variant.config, record.workload.problem.operator)


def document(content: Content) -> Json:
    """The document of these records, before it becomes text."""
    devices: dict[str, tuple[int, Device]] = {}
    workloads: dict[tuple[Problem, str], tuple[int, Workload]] = {}

    def refer(record: Measurement | Baseline | Prediction) -> Json:
        device, workload = record.device, record.workload
        key = (workload.problem, workload.fingerprint)
        return {
            "workload": workloads.setdefault(key, (len(workloads), workload))[0],
            "device": devices.setdefault(device.key, (len(devices), device))[0],
        }

    measurements = [refer(m) | measurement_dict(m) for m in content.measurements]
    baselines = [refer(b) | baseline_dict(b) for b in content.baselines]
    predictions = [refer(p) | prediction_dict(p) for p in content.predictions]
    rates = {r.device.key: r for r in content.rates}
    for r in rates.values():
        devices.setdefault(r.device.key, (len(devices), r.device))
    return {
        "format": FORMAT,
        "version": _version(content),
        "devices": [
            described(device) | ({"rates": rates_dict(rates[key])} if key in rates else {})
            for key, (_, device) in devices.items()
        ],
        "workloads": [workload_dict(workload) for _, workload in workloads.values()],
        "measurements": measurements,
        "baselines": baselines,
        **({"predictions": predictions} if predictions else {}),
    }


def dump(content: Content) -> str:
    """The text of these records, one a line; equal records make equal text."""
    parts = []
    for name, value in document(content).items():
        if isinstance(value, list):
            parts.append(f'"{name}": [' + ",".join("\n" + json.dumps(record) for record in value) + "\n]")
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{" + ",\n".join(parts) + "}\n"


def _version(content: Content) -> int:
    """The oldest that can say all of it."""
    if content.predictions:
        return VERSION_WITH_PREDICTIONS
    kinds = {m.sample.measured_as for m in content.measurements if m.sample is not None}
    kinds |= {b.sample.measured_as for b in content.baselines}
    if kinds.difference(COLD_OR_WARM) or any(m.driver for m in content.measurements):
        return VERSION_WITH_KINDS
    return VERSION_WITH_RATES if content.rates else VERSION


# --- import ------------------------------------------------------------------------------------------------


def import_json(store: Store, text: str, source: str) -> Added:
    """Validate the whole document, then add what is not there yet, all or nothing.

    Args:
        source: the file's name, for error texts.

    Raises:
        ImportFileError: it names the place in the document.
    """
    return add(store, load(text, source), source)


def merge(into: Store, other: Store) -> Added:
    """Add what another database holds, by the same rules as an import."""
    return add(into, read_database(other), other.location)


def add(store: Store, content: Content, source: str) -> Added:
    """Add what is not there yet of the records that were read from elsewhere, all or nothing.

    Raises:
        ImportFileError: the database knows one of the devices with other facts.
    """
    require_known_facts(store, _devices(content), source, ImportFileError)
    return store.add_all(content.measurements, content.baselines, content.rates, content.predictions)


def read_export(path: Path) -> Content:
    """`load` of a file of at most 512 MiB."""
    return load(read_text(path, LARGEST_FILE), str(path))


def read_database(other: Store) -> Content:
    """`load` of what a database exports."""
    text, _ = export_json(other)
    return load(text, other.location)


def load(text: str, source: str) -> Content:
    """The records of a document, each value checked.

    Raises:
        ImportFileError: it names the place in the document.
    """
    root = parse_json(text, source)
    head = root.members()
    if "format" not in head or head["format"].value != FORMAT:
        raise ImportFileError(f'{source}: not an export of sparsegen: "format" is not "{FORMAT}"')
    if "version" not in head or head["version"].value not in VERSIONS:
        known = f"version {', '.join(map(str, VERSIONS))}; another needs another sparsegen"
        (head.get("version") or root).refuse(known)
    has_predictions = head["version"].value == VERSION_WITH_PREDICTIONS
    fields = root.fields(
        ("format", "version", "devices", "workloads", "measurements", "baselines"),
        ("predictions",) if has_predictions else (),
    )
    listed = [node.members() for node in fields["devices"].items()]
    devices = _once(fields["devices"], _read_foreign, lambda device: device.key)
    workloads = _once(fields["workloads"], read_workload, lambda w: (w.problem, w.fingerprint))
    return Content(
        tuple(read_measurement(node, workloads, devices) for node in _installed(fields["measurements"])),
        tuple(read_baseline(node, workloads, devices) for node in fields["baselines"].items()),
        tuple(
            read_rates(members["rates"], device)
            for members, device in zip(listed, devices, strict=True)
            if "rates" in members
        ),
        tuple(
            read_prediction(node, workloads, devices)
            for node in (_installed(fields["predictions"]) if "predictions" in fields else ())
        ),
    )


def _installed(rows: Node) -> Iterator[Node]:
    """Rows of installed families; a warning tells of the others."""
    strangers: Counter[str] = Counter()
    for row in rows.items():
        named = row.members().get("family")
        name = None if named is None else named.value
        if isinstance(name, str) and FAMILY.fullmatch(name) and name not in families():
            strangers[name] += 1
        else:
            yield row
    if strangers:
        told = ", ".join(f"{count} of {name}" for name, count in sorted(strangers.items()))
        log.warning("%s: %s of no installed family are passed over: %s", rows.source, rows.path[2:], told)


def _read_foreign(node: Node) -> Device:
    device = read_device(node)
    if is_emulator_by_half(device):
        node.refuse("a device that has all of the emulator's facts, or neither its key nor its backend")
    return device


def _devices(content: Content) -> set[Device]:
    records = (content.measurements, content.baselines, content.rates, content.predictions)
    return {record.device for of_kind in records for record in of_kind}


T = TypeVar("T")


def _once(nodes: Node, read: Callable[[Node], T], identity: Callable[[T], Hashable]) -> list[T]:
    """The values of a list, none of which stands in it twice."""
    seen: dict[Hashable, T] = {}
    for node in nodes.items():
        value = read(node)
        if identity(value) in seen:
            node.refuse("listed once")
        seen[identity(value)] = value
    return list(seen.values())
