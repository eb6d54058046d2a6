"""Files of the study of sparse networks on several GPUs (`python -m benchmarks.network_devices`), validated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparsegen.errors import ResultsError
from sparsegen.tuning_db.json_reader import Node, parse_json, read_text

BENCHMARK = "network_devices"
LARGEST_FILE = 1 << 24  # bytes
BIG = 2**63 - 1
NEEDED = ("case", "neurons", "layers", "inputs", "ms", "tera_edges_per_second", "living", "devices")
ON_DEVICES = ("efficiency", "inputs_of", "batch", "state", "measured")
STREAMED = ("weights", "over_resident", "segments", "segments_copied", "segment_bytes")


@dataclass(frozen=True, slots=True)
class DevicesRow:
    """A network's time on some GPUs, by wall clock from inputs to totals on the host.

    Attributes:
        case: ``alive`` or ``challenge-like``.
        efficiency: time on one GPU over this one and their number; None for rows of one GPU that are about streaming.
        weights: resident, or streamed from pinned memory or by way of staging memory; empty where it is not about that.
        over_resident: time over that with resident layers; None likewise.
    """

    case: str
    neurons: int
    layers: int
    inputs: int
    devices: int
    ms: float
    tera_edges: float
    efficiency: float | None
    weights: str
    over_resident: float | None


@dataclass(frozen=True, slots=True)
class DevicesStudy:
    """A file of one machine."""

    file: str
    device: str
    date: str
    rows: tuple[DevicesRow, ...]


def read(path: Path) -> DevicesStudy:
    """A file of the study.

    Raises:
        ResultsError: it cannot be read, or is another file.
    """
    root = parse_json(read_text(path, LARGEST_FILE, ResultsError), str(path), ResultsError)
    members = root.members()
    named = members.get("benchmark")
    if named is None or named.value != BENCHMARK or not {"device", "date", "rows"} <= set(members):
        raise ResultsError(
            f"{path}: not a file of `python -m benchmarks.{BENCHMARK}`; result files of sparsegen bench are for --bench"
        )
    rows = tuple(_row(node) for node in members["rows"].items())
    return DevicesStudy(path.name, members["device"].text(200), members["date"].text(10), rows)


def _row(node: Node) -> DevicesRow:
    f = node.fields(NEEDED, ON_DEVICES + STREAMED)
    neurons, layers, inputs, devices = (
        f[name].integer(1, BIG) for name in ("neurons", "layers", "inputs", "devices")
    )
    return DevicesRow(
        case=f["case"].text(100, ".+"),
        neurons=neurons,
        layers=layers,
        inputs=inputs,
        devices=devices,
        ms=f["ms"].number(above=True),
        tera_edges=f["tera_edges_per_second"].number(),
        efficiency=f["efficiency"].number() if "efficiency" in f else None,
        weights=f["weights"].text(100) if "weights" in f else "",
        over_resident=f["over_resident"].number() if "over_resident" in f else None,
    )
