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
reach a template. Nothing is imported unless all is valid.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sparsegen.errors import ImportFileError
from sparsegen.kernels import is_of_operator
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.features import Features
from sparsegen.operators import MAX_INDEX, Problem
from sparsegen.tuning_db.config_reader import read_config
from sparsegen.tuning_db.conversion import described
from sparsegen.tuning_db.json_reader import HEX, Node, parse_json, read_text
from sparsegen.tuning_db.problem_reader import problem_dict, read_problem
from sparsegen.tuning_db.records import (
    Baseline,
    Basis,
    DeviceRates,
    Measurement,
    Outcome,
    Prediction,
    Variant,
    Workload,
)
from sparsegen.tuning_db.row_checks import LONGEST_DRIVER, LONGEST_REASON
from sparsegen.tuning_db.sample_json import COLD_OR_WARM, read_sample, sample_dict

if TYPE_CHECKING:  # records are read and written as JSON where there is no SQLAlchemy
    from sparsegen.tuning_db.store import Added, Store

FORMAT = "sparsegen-tuning"
# Each document has the oldest version that can say what it holds.
VERSIONS = VERSION, VERSION_WITH_RATES, VERSION_WITH_KINDS, VERSION_WITH_PREDICTIONS = 1, 2, 3, 4
LARGEST_FILE = 512 * 2**20  # bytes; a hundred thousand measurements take about 60 MB
BIG = 2**63 - 1
LARGEST_ERROR = 1e300


@dataclass(frozen=True, slots=True)
class Content:
    """What a document or a database holds."""

    measurements: tuple[Measurement, ...]
    baselines: tuple[Baseline, ...]
    rates: tuple[DeviceRates, ...] = ()  # of a device the last
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


def dump(content: Content) -> str:
    """The document of these records; equal records make equal text."""
    devices: dict[str, tuple[int, Device]] = {}
    workloads: dict[tuple[Problem, str], tuple[int, Workload]] = {}

    def refer(record: Measurement | Baseline | Prediction) -> dict[str, Any]:
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
    document: dict[str, Any] = {
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
    # One record a line: fit for version control, and no larger than it must be.
    parts = []
    for name, value in document.items():
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


def rates_dict(measured: DeviceRates) -> dict[str, Any]:
    """All but the device."""
    return asdict(measured.rates) | {"measured_at": measured.measured_at.isoformat()}


def workload_dict(workload: Workload) -> dict[str, Any]:
    return {
        "problem": problem_dict(workload.problem),
        "fingerprint": workload.fingerprint,
        "features": asdict(workload.features),
    }


MEASURED = {  # optional facts of a measurement: whether they are integers
    "worst_error": False,
    "registers": True,
    "spill_bytes": True,
    "compile_seconds": False,
    "prepare_seconds": False,
    "packed_bytes": True,
}


COMPILED = ("registers", "spill_bytes")  # optional facts of a prediction


def measurement_dict(m: Measurement) -> dict[str, Any]:
    """All but workload and device."""
    facts = {name: getattr(m, name) for name in MEASURED if getattr(m, name) is not None}
    if m.worst_error is not None:  # infinite for an unwritten output, and JSON has no infinity
        facts["worst_error"] = min(m.worst_error, LARGEST_ERROR)
    return {
        "family": m.variant.family,
        "config": m.variant.config.to_dict(),
        "source_digest": m.variant.source_digest,
        "outcome": str(m.outcome),
        **({"sample": sample_dict(m.sample)} if m.sample else {}),
        **({"reason": m.reason} if m.reason else {}),
        **facts,
        **({"driver": m.driver} if m.driver else {}),
        "final": m.final,
        "measured_at": m.measured_at.isoformat(),
    }


def baseline_dict(b: Baseline) -> dict[str, Any]:
    """All but workload and device."""
    return {
        "contender": b.contender,
        "version": b.version,
        "sample": sample_dict(b.sample),
        "measured_at": b.measured_at.isoformat(),
    }


def prediction_dict(p: Prediction) -> dict[str, Any]:
    """All but workload and device."""
    facts = {name: getattr(p, name) for name in COMPILED if getattr(p, name) is not None}
    return {
        "family": p.variant.family,
        "config": p.variant.config.to_dict(),
        "source_digest": p.variant.source_digest,
        "predicted_us": p.predicted_us,
        "basis": str(p.basis),
        "model": p.model,
        **facts,
        "predicted_at": p.predicted_at.isoformat(),
    }


# --- import ------------------------------------------------------------------------------------------------


def import_json(store: Store, text: str, source: str) -> Added:
    """Validate the whole document, then add what is not there yet, all or nothing.

    Args:
        source: the file's name, for error texts.

    Raises:
        ImportFileError: it names the place in the document.
    """
    content = load(text, source)
    return store.add_all(content.measurements, content.baselines, content.rates, content.predictions)


def import_file(store: Store, path: Path) -> Added:
    """`import_json` of a file of at most 512 MiB."""
    return import_json(store, read_text(path, LARGEST_FILE), str(path))


def merge(into: Store, other: Store) -> Added:
    """Add what another database holds, by the same rules as an import."""
    text, _ = export_json(other)
    return import_json(into, text, other.location)


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
    devices = _once(fields["devices"], read_device, lambda device: device.key)
    workloads = _once(fields["workloads"], read_workload, lambda w: (w.problem, w.fingerprint))
    return Content(
        tuple(read_measurement(node, workloads, devices) for node in fields["measurements"].items()),
        tuple(read_baseline(node, workloads, devices) for node in fields["baselines"].items()),
        tuple(
            read_rates(members["rates"], device)
            for members, device in zip(listed, devices, strict=True)
            if "rates" in members
        ),
        tuple(
            _prediction(node, workloads, devices)
            for node in (fields["predictions"].items() if "predictions" in fields else ())
        ),
    )


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


def read_device(node: Node) -> Device:
    """A device, as `conversion.described` gives it; perhaps with rates, which `read_rates` reads."""
    sizes = ("multiprocessors", "shared_memory_per_block", "shared_memory_per_multiprocessor", "l2_bytes")
    f = node.fields(("key", "name", "backend", "compute_capability", *sizes), ("rates",))
    version = [part.integer(0, 1000) for part in f["compute_capability"].items()]
    if len(version) != 2:
        f["compute_capability"].refuse("two integers")
    return Device(
        key=f["key"].text(200, ".+"),
        name=f["name"].text(200),
        backend=f["backend"].text(40, "[a-z]+"),
        compute_capability=(version[0], version[1]),
        multiprocessors=f["multiprocessors"].integer(0, MAX_INDEX),
        shared_memory_per_block=f["shared_memory_per_block"].integer(0, BIG),
        shared_memory_per_multiprocessor=f["shared_memory_per_multiprocessor"].integer(0, BIG),
        l2_bytes=f["l2_bytes"].integer(0, BIG),
    )


def read_rates(node: Node, device: Device) -> DeviceRates:
    """What a device was measured to do, as `rates_dict` gives it."""
    names = tuple(field.name for field in dataclasses.fields(Rates))
    f = node.fields((*names, "measured_at"))
    rates = Rates(**{name: f[name].number(above=True) for name in names})
    return DeviceRates(device, rates, f["measured_at"].moment())


def read_workload(node: Node) -> Workload:
    """A workload, as `workload_dict` gives it."""
    f = node.fields(("problem", "fingerprint", "features"))
    problem = read_problem(f["problem"])
    names = ("m", "k", "nnz", "row_mean", "row_cov", "row_max", "block_fill")
    v = f["features"].fields(names)
    features = Features(
        m=v["m"].integer(0, MAX_INDEX),
        k=v["k"].integer(0, MAX_INDEX),
        nnz=v["nnz"].integer(0, MAX_INDEX),
        row_mean=v["row_mean"].number(),
        row_cov=v["row_cov"].number(),
        row_max=v["row_max"].integer(0, MAX_INDEX),
        block_fill=v["block_fill"].number(),
    )
    rows, columns = problem.matrix_shape
    if (features.m, features.k) != (rows, columns):
        f["features"].refuse(f"m = {rows} and k = {columns}, the matrix's rows and columns in the problem")
    return Workload(problem, f["fingerprint"].text(64, HEX), features)


def _variant(f: dict[str, Node], problem: Problem) -> Variant:
    digest = f["source_digest"].text(64, "[0-9a-f]{8,64}")
    return Variant(read_config(f["family"], f["config"], problem), digest)


def _pick(node: Node, candidates: list[Any]) -> Any:
    return candidates[node.integer(0, len(candidates) - 1)]


def read_measurement(node: Node, workloads: list[Workload], devices: list[Device]) -> Measurement:
    """A measurement, as `measurement_dict` gives it, with the places of its workload and its device in these lists."""
    needed = ("workload", "device", "family", "config", "source_digest", "outcome", "final", "measured_at")
    f = node.fields(needed, ("sample", "reason", "driver", *MEASURED))
    workload = _pick(f["workload"], workloads)
    outcome = f["outcome"].text(40)
    if outcome not in list(Outcome):
        f["outcome"].refuse(f"one of {', '.join(Outcome)}")
    if ("sample" in f) != (outcome == Outcome.OK):
        node.refuse("a sample exactly when the outcome is ok")
    facts: dict[str, Any] = {
        name: f[name].integer(0, BIG) if whole else f[name].number()
        for name, whole in MEASURED.items()
        if name in f
    }
    if "worst_error" in facts:
        facts["worst_error"] = min(facts["worst_error"], LARGEST_ERROR)
    return Measurement(
        workload=workload,
        device=_pick(f["device"], devices),
        variant=_variant(f, workload.problem),
        outcome=Outcome(outcome),
        sample=read_sample(f["sample"]) if "sample" in f else None,
        reason=f["reason"].text(LONGEST_REASON) if "reason" in f else "",
        final=f["final"].boolean(),
        measured_at=f["measured_at"].moment(),
        driver=f["driver"].text(LONGEST_DRIVER) if "driver" in f else "",
        **facts,
    )


def _prediction(node: Node, workloads: list[Workload], devices: list[Device]) -> Prediction:
    needed = ("workload", "device", "family", "config", "source_digest", "predicted_us", "basis", "model")
    f = node.fields((*needed, "predicted_at"), COMPILED)
    workload, basis = _pick(f["workload"], workloads), f["basis"].text(20)
    if basis not in list(Basis):
        f["basis"].refuse(f"one of {', '.join(Basis)}")
    return Prediction(
        workload=workload,
        device=_pick(f["device"], devices),
        variant=_variant(f, workload.problem),
        predicted_us=f["predicted_us"].number(above=True),
        basis=Basis(basis),
        model=f["model"].text(64, "[0-9a-f]{8,64}"),
        predicted_at=f["predicted_at"].moment(),
        **{name: f[name].integer(0, BIG) for name in COMPILED if name in f},
    )


def read_baseline(node: Node, workloads: list[Workload], devices: list[Device]) -> Baseline:
    """A baseline, as `baseline_dict` gives it, with the positions of its workload and its device in these lists."""
    f = node.fields(("workload", "device", "contender", "version", "sample", "measured_at"))
    return Baseline(
        workload=_pick(f["workload"], workloads),
        device=_pick(f["device"], devices),
        contender=f["contender"].text(40, "[a-z0-9_]+"),
        version=f["version"].text(200),
        sample=read_sample(f["sample"]),
        measured_at=f["measured_at"].moment(),
    )
