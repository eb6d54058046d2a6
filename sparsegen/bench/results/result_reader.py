"""The document of a result file, validated value by value; `sparsegen.bench.results.result_file` is the way in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsegen.bench.results.results import (
    DIGITS,
    BenchDevice,
    Cell,
    Floor,
    ImplementationTime,
    Invocation,
    Kind,
    Protocol,
    Rates,
    Results,
    Row,
    Status,
    Timing,
)
from sparsegen.errors import ResultsError, ResultsNewerError
from sparsegen.kernels import read_config
from sparsegen.kernels.config import Config
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import Arithmetic
from sparsegen.tuning_db.json_codec import (
    DEVICE,
    FEATURES,
    Read,
    above,
    config_values,
    count,
    listed,
    moment,
    number,
    optional,
    present,
    record,
    size,
    text,
    whole,
    word,
)
from sparsegen.tuning_db.json_reader import HEX, Node, parse_json
from sparsegen.tuning_db.problem_reader import read_problem

NAME, VERSION = "sparsegen-bench", 4
LONG = 4000  # characters


def load(document: str, source: str) -> Results:
    """The results of a document; see `read`."""
    root = parse_json(document, source, ResultsError)
    _require_version(root)
    f = root.fields(("schema", "device", "versions", "protocol", "rates", "invocations", "rows"))
    rows: dict[Any, Row] = {}
    for node in f["rows"].items():
        row = _row(node)
        if row.key in rows:
            raise ResultsError(f"{source}: {node.path}: a second row for {row.key}")
        rows[row.key] = row
    return Results(
        device=_DEVICE(f["device"]),
        versions={name: node.text(LONG) for name, node in f["versions"].members().items()},
        protocol=_PROTOCOL(f["protocol"]),
        rates=optional(f["rates"], _RATES),
        invocations=listed(_INVOCATION)(f["invocations"]),
        rows=tuple(rows.values()),
    )


def _require_version(root: Node) -> None:
    """Refuse other schemas."""
    schema = root.members().get("schema")
    name, _, version = str(schema.value if schema else "").partition("/")
    if name != NAME or not version.isdecimal():
        raise ResultsError(
            f'{root.source}: not a result file of sparsegen bench: "schema" is not "{NAME}/{VERSION}"'
        )
    if int(version) > VERSION:
        raise ResultsNewerError(
            f"{root.source}: written by a newer sparsegen ({name}/{version}); this one reads {NAME}/{VERSION}"
        )
    if int(version) < VERSION:
        raise ResultsError(f"{root.source}: {name}/{version} is a schema that no release of sparsegen wrote")


def _flop_per_s(node: Node) -> dict[Arithmetic, float]:
    members = node.members()
    unknown = set(members) - set(Arithmetic)
    if unknown:
        node.refuse(f"no member {sorted(unknown)[0]!r}")
    return {Arithmetic(name): above(rate) for name, rate in members.items()}


def _variant(node: Node) -> Config:
    """Perhaps an `UnknownConfig`: a file outlives the config that it was measured with."""
    f = node.fields(("family", "config"))
    return read_config(f["family"].text(80, ".+"), config_values(f["config"]))


_DEVICE = record(BenchDevice, {**DEVICE, "driver": text(100)})
_PROTOCOL = record(Protocol, {"l2": word(L2), "rounds": count, "samples": count, "tune": text(40, ".+")})
_RATES = record(Rates, {"copy_bytes_per_s": above, "flop_per_s": _flop_per_s, "empty_kernel_us": number})
_INVOCATION = record(Invocation, {"command": text(LONG), "started": moment, "seconds": number})
_FLOOR = record(  # "us" is told for readers of the file
    Floor,
    {"bytes": whole, "flop": whole, "memory_us": number, "compute_us": number, "computed": number},
    ("us",),
)
_TIMING: Mapping[str, Read[Any]] = {
    "us": above,
    "low_us": number,
    "high_us": number,
    "samples": count,
    "rounds_us": listed(number),
    "clock_mhz": whole,
    "throttle_reasons": whole,
}


def _implementation(node: Node) -> ImplementationTime:
    f = node.fields(("detail",), ("us", "reason", "variant"))
    us, reason = optional(f.get("us"), number), optional(f.get("reason"), text(LONG)) or ""
    if (us is None) != bool(reason):
        node.refuse("either a time (us) or a reason")
    return ImplementationTime(f["detail"].text(LONG), us, reason, optional(f.get("variant"), _variant))


_CELL: Mapping[str, Read[Any]] = {
    "baseline": text(80, "[a-zA-Z0-9_.-]+"),
    "kind": word(Kind),
    "arithmetic": word(Arithmetic),
    "status": word(Status),
    "detail": text(LONG),
    "reason": text(LONG),
    "variant": _variant,
    "digest": text(64, f"[0-9a-f]{{{DIGITS},64}}"),
    "preparation_ms": number,
    "memory_bytes": whole,
    "worst_error": number,
    "tried": whole,
    "implementations": listed(_implementation),
}
_NEEDED = ("baseline", "kind", "arithmetic", "status", "detail", "reason")


def _cell(node: Node) -> Cell:
    """A cell; its timing's members stand beside its own."""
    f = node.fields(_NEEDED, (*(name for name in _CELL if name not in _NEEDED), *_TIMING))
    own, timed = present(f, _CELL, _CELL), present(f, _TIMING, _TIMING)
    is_ok = own["status"] is Status.OK
    if is_ok != ("us" in timed):
        node.refuse("a time (us) exactly when the status is ok")
    if is_ok == bool(own.get("reason")):
        f["reason"].refuse("null" if is_ok else f"why the status is {own['status']}")
    return Cell(**own, timing=_timing(node, timed) if is_ok else None)


def _timing(cell: Node, timed: dict[str, Any]) -> Timing:
    for name in ("low_us", "high_us", "samples"):
        if name not in timed:
            cell.refuse(f"a member {name!r} beside 'us'")
    if not timed["low_us"] <= timed["us"] <= timed["high_us"]:
        cell.members()["us"].refuse(
            f"a median between low_us ({timed['low_us']:g}) and high_us ({timed['high_us']:g})"
        )
    return Timing(**timed)


_ROW = record(
    Row,
    {
        "suite": text(200, ".+"),
        "case": text(LONG, ".+"),
        "problem": read_problem,
        "source": text(LONG),
        "nnz": size,
        "fingerprint": text(64, HEX),
        "features": FEATURES,
        "floor": _FLOOR,
        "cells": listed(_cell),
        "reference": text(LONG),
        "state": text(LONG),
        "measured": moment,
    },
)


def _row(node: Node) -> Row:
    row, f = _ROW(node), node.members()
    if len({cell.baseline for cell in row.cells}) != len(row.cells):
        f["cells"].refuse("each baseline once")
    if row.features.nnz != row.nnz:
        f["features"].refuse(f"nnz = {row.nnz}, as in the row")
    return row
