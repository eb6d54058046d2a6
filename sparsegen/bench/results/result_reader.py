"""The document of a result file, validated value by value; `sparsegen.bench.results.result_file` is the way in."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

from sparsegen.bench.results.results import (
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
from sparsegen.matrix.features import Features
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import MAX_INDEX
from sparsegen.tuning_db.json_reader import Node, parse_json
from sparsegen.tuning_db.problem_reader import read_problem

NAME, VERSION = "sparsegen-bench", 4
BIG = 2**63 - 1
LONG = 4000  # characters

E = TypeVar("E", bound=StrEnum)


def load(text: str, source: str) -> Results:
    """The results of a document; see `read`."""
    root = parse_json(text, source, ResultsError)
    _require_version(root)
    f = root.fields(("schema", "device", "versions", "protocol", "rates", "invocations", "rows"))
    rows: dict[Any, Row] = {}
    for node in f["rows"].items():
        row = _row(node)
        if row.key in rows:
            raise ResultsError(f"{source}: {node.path}: a second row for {row.key}")
        rows[row.key] = row
    return Results(
        device=_device(f["device"]),
        versions={name: node.text(LONG) for name, node in f["versions"].members().items()},
        protocol=_protocol(f["protocol"]),
        rates=None if f["rates"].value is None else _rates(f["rates"]),
        invocations=tuple(_invocation(node) for node in f["invocations"].items()),
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


def _device(node: Node) -> BenchDevice:
    f = node.fields(tuple(field.name for field in fields(BenchDevice)))
    version = [part.integer(0, 1000) for part in f["compute_capability"].items()]
    if len(version) != 2:
        f["compute_capability"].refuse("two integers")
    return BenchDevice(
        key=f["key"].text(200, ".+"),
        name=f["name"].text(200),
        backend=f["backend"].text(40, "[a-z]+"),
        compute_capability=(version[0], version[1]),
        multiprocessors=f["multiprocessors"].integer(0, MAX_INDEX),
        l2_bytes=f["l2_bytes"].integer(0, BIG),
        driver=f["driver"].text(100),
    )


def _protocol(node: Node) -> Protocol:
    f = node.fields(("l2", "rounds", "samples", "tune"))
    return Protocol(
        l2=_word(f["l2"], L2),
        rounds=f["rounds"].integer(1, MAX_INDEX),
        samples=f["samples"].integer(1, MAX_INDEX),
        tune=f["tune"].text(40, ".+"),
    )


def _rates(node: Node) -> Rates:
    f = node.fields(("copy_bytes_per_s", "flop_per_s", "empty_kernel_us"))
    members = f["flop_per_s"].members()
    unknown = set(members) - set(Arithmetic)
    if unknown:
        f["flop_per_s"].refuse(f"no member {sorted(unknown)[0]!r}")
    return Rates(
        copy_bytes_per_s=f["copy_bytes_per_s"].number(above=True),
        flop_per_s={Arithmetic(name): rate.number(above=True) for name, rate in members.items()},
        empty_kernel_us=f["empty_kernel_us"].number(),
    )


def _invocation(node: Node) -> Invocation:
    f = node.fields(("command", "started", "seconds"))
    return Invocation(f["command"].text(LONG), f["started"].moment(), f["seconds"].number())


ROW = ("suite", "case", "problem", "source", "nnz", "fingerprint", "features", "floor", "cells")


def _row(node: Node) -> Row:
    f = node.fields(ROW, ("reference", "state", "measured"))
    cells = tuple(_cell(cell) for cell in f["cells"].items())
    if len({cell.baseline for cell in cells}) != len(cells):
        f["cells"].refuse("each baseline once")
    features = _features(f["features"])
    nnz = f["nnz"].integer(0, MAX_INDEX)
    if features.nnz != nnz:
        f["features"].refuse(f"nnz = {nnz}, as in the row")
    return Row(
        suite=f["suite"].text(200, ".+"),
        case=f["case"].text(LONG, ".+"),
        problem=read_problem(f["problem"]),
        source=f["source"].text(LONG),
        nnz=nnz,
        fingerprint=f["fingerprint"].text(64, "[0-9a-f]{64}"),
        features=features,
        floor=_floor(f["floor"]),
        cells=cells,
        reference=f["reference"].text(LONG) if "reference" in f else "",
        state=f["state"].text(LONG) if "state" in f else "",
        measured=f["measured"].moment() if "measured" in f else None,
    )


def _features(node: Node) -> Features:
    f = node.fields(tuple(field.name for field in fields(Features)))
    values = {
        field.name: f[field.name].integer(0, BIG) if field.type == "int" else f[field.name].number()
        for field in fields(Features)
    }
    return Features(**values)  # type: ignore[arg-type]  # each by its own declared type


def _floor(node: Node) -> Floor:
    f = node.fields(("bytes", "flop", "memory_us", "compute_us", "us"), ("computed",))
    return Floor(
        bytes=f["bytes"].integer(0, BIG),
        flop=f["flop"].integer(0, BIG),
        memory_us=_number(f.get("memory_us")),
        compute_us=_number(f.get("compute_us")),
        computed=f["computed"].number() if "computed" in f else 1.0,
    )


TIMING = ("us", "low_us", "high_us", "samples", "rounds_us", "clock_mhz", "throttle_reasons")


def _cell(node: Node) -> Cell:
    needed = ("baseline", "kind", "arithmetic", "status", "detail", "reason")
    f = node.fields(
        needed,
        (
            "variant",
            "digest",
            *TIMING,
            "preparation_ms",
            "memory_bytes",
            "worst_error",
            "tried",
            "implementations",
        ),
    )
    status = _word(f["status"], Status)
    reason = "" if f["reason"].value is None else f["reason"].text(LONG)
    timing = _timing(node, f) if f.get("us") is not None and f["us"].value is not None else None
    if (status is Status.OK) != (timing is not None):
        node.refuse("a time (us) exactly when the status is ok")
    if (status is Status.OK) == bool(reason):
        f["reason"].refuse("null" if status is Status.OK else f"why the status is {status}")
    return Cell(
        baseline=f["baseline"].text(80, "[a-zA-Z0-9_.-]+"),
        kind=_word(f["kind"], Kind),
        arithmetic=_word(f["arithmetic"], Arithmetic),
        status=status,
        detail=f["detail"].text(LONG),
        variant=_variant(f["variant"]) if "variant" in f else None,
        digest=f["digest"].text(64, "[0-9a-f]{64}") if "digest" in f else "",
        reason=reason,
        timing=timing,
        preparation_ms=_number(f.get("preparation_ms")),
        memory_bytes=_integer(f.get("memory_bytes")),
        worst_error=_number(f.get("worst_error")),
        tried=_integer(f.get("tried")),
        implementations=tuple(_implementation(one) for one in f["implementations"].items())
        if "implementations" in f
        else (),
    )


def _implementation(node: Node) -> ImplementationTime:
    f = node.fields(("detail",), ("us", "reason", "variant"))
    us, reason = _number(f.get("us")), f["reason"].text(LONG) if "reason" in f else ""
    if (us is None) != bool(reason):
        node.refuse("either a time (us) or a reason")
    variant = _variant(f["variant"]) if "variant" in f else None
    return ImplementationTime(f["detail"].text(LONG), us, reason, variant)


def _variant(node: Node) -> Config:
    """Perhaps an `UnknownConfig`: a file outlives the config that it was measured with."""
    f = node.fields(("family", "config"))
    config = f["config"].members()
    for member in config.values():
        if type(member.value) not in (int, bool, str):
            member.refuse("an integer, true, false or a word")
    return read_config(f["family"].text(80, ".+"), {name: member.value for name, member in config.items()})


def _timing(cell: Node, f: dict[str, Node]) -> Timing:
    for name in ("low_us", "high_us", "samples"):
        if name not in f:
            cell.refuse(f"a member {name!r} beside 'us'")
    us, low, high = f["us"].number(above=True), f["low_us"].number(), f["high_us"].number()
    if not low <= us <= high:
        f["us"].refuse(f"a median between low_us ({low:g}) and high_us ({high:g})")
    rounds = tuple(node.number() for node in f["rounds_us"].items()) if "rounds_us" in f else ()
    return Timing(
        us=us,
        low_us=low,
        high_us=high,
        samples=f["samples"].integer(1, MAX_INDEX),
        rounds_us=rounds,
        clock_mhz=_integer(f.get("clock_mhz")),
        throttle_reasons=_integer(f.get("throttle_reasons")),
    )


def _word(node: Node, kind: type[E]) -> E:
    if node.value not in list(kind):
        node.refuse(f"one of {', '.join(kind)}")
    return kind(node.value)


def _number(node: Node | None) -> float | None:
    return None if node is None or node.value is None else node.number()


def _integer(node: Node | None) -> int | None:
    return None if node is None or node.value is None else node.integer(0, BIG)
