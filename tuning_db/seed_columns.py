"""Exports in columns, as the packaged tuning results are kept: `seed_file` says what stands where."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sparsegen.tuning_db.seed_file import BASELINE, FORMAT, MEASUREMENT, PATTERN, TIMES

SHORT = 6  # hexadecimal digits of a name; more where these do not tell the rows of a table apart
SHORT_OF_FEW = 3  # of conditions, which are few
SAMPLE = (*TIMES, "count", "cold", "measured_as", "clock_mhz", "throttle_reasons")
ONE_A_LINE = {"devices": "[]", "patterns": "{}", "tunables": "{}", "variants": "{}", "conditions": "{}"}

Document = dict[str, Any]
SECOND = timedelta(seconds=1)


# --- from columns ------------------------------------------------------------------------------------------


def unpack(packed: Document) -> Document:
    """Return the document of `exchange.document` that `pack` turned; its records stand in groups of a workload.

    Raises:
        ValueError, KeyError: this is not what `pack` makes.
    """
    if packed["format"] != FORMAT:
        raise ValueError(f"packaged results are {FORMAT}, not {packed['format']}")
    tunables, conditions = packed["tunables"], packed["conditions"]
    patterns = {
        name: {"fingerprint": fingerprint, "features": dict(zip(PATTERN, values, strict=True))}
        for name, (fingerprint, *values) in packed["patterns"].items()
    }
    variants = {
        name: {
            "family": family,
            "config": dict(zip(tunables[family], values, strict=True)),
            "source_digest": digest,
        }
        for name, (family, *values, digest) in packed["variants"].items()
    }
    workloads: dict[str, tuple[int, Document]] = {}
    measurements, baselines = [], []
    for group in packed["results"]:
        workload = {"problem": group["problem"], **patterns[group["pattern"]]}
        key = json.dumps([group["problem"], group["pattern"]])
        number, _ = workloads.setdefault(key, (len(workloads), workload))
        place = {"workload": number, "device": group["device"]}
        start = datetime.fromisoformat(group["from"])
        for row in group["measurements"]:
            record = _record(MEASUREMENT, row, conditions, start)
            measurements.append({**place, **variants[record.pop("variant")], **record})
        for row in group["baselines"]:
            record = _record(BASELINE, row, conditions, start)
            baselines.append({**place, **record})
    return {
        "format": "sparsegen-tuning",
        "version": packed["version"],
        "devices": packed["devices"],
        "workloads": [workload for _, workload in workloads.values()],
        "measurements": measurements,
        "baselines": baselines,
    }


def _record(
    columns: Sequence[str], row: Sequence[Any], conditions: Mapping[str, Document], start: datetime
) -> Document:
    """A record as an export has it."""
    members = dict(zip(columns, row, strict=False))
    members |= conditions[members.pop("conditions")]
    members["measured_at"] = (start + timedelta(seconds=members.pop("after"))).isoformat()
    sample = {name: members.pop(name) for name in SAMPLE if name in members}
    if sample.get("median_us") is not None:
        members["sample"] = sample
    return {name: value for name, value in members.items() if value is not None}


# --- to columns --------------------------------------------------------------------------------------------


def pack(document: Document) -> Document:
    """Turn a document of `exchange.document` into columns; equal documents make equal ones.

    Raises:
        ValueError: the document has predictions.
    """
    if document.get("predictions"):
        raise ValueError("what is packaged was measured: a document with predictions cannot be packed")
    patterns, variants, conditions = _Table(), _Table(), _Table(SHORT_OF_FEW)
    groups: dict[tuple[int, int], tuple[list[Document], list[Document]]] = {}
    for m in map(_members, document["measurements"]):
        m["variant"] = variants.place([m.pop("family"), *m.pop("config").values(), m.pop("source_digest")])
        groups.setdefault((m.pop("workload"), m.pop("device")), ([], []))[0].append(m)
    for b in map(_members, document["baselines"]):
        groups.setdefault((b.pop("workload"), b.pop("device")), ([], []))[1].append(b)
    for columns, records in ((MEASUREMENT, 0), (BASELINE, 1)):
        for record in (record for group in groups.values() for record in group[records]):
            common = {
                name: value for name, value in sorted(record.items()) if name not in (*columns, "measured_at")
            }
            record["conditions"] = conditions.place(common)
    for w in document["workloads"]:
        patterns.place([w["fingerprint"], *(w["features"][name] for name in PATTERN)])
    names = patterns.names() | variants.names() | conditions.names()
    results = []
    for (number, device), (ours, others) in groups.items():
        workload = document["workloads"][number]
        pattern = patterns.place([workload["fingerprint"], *(workload["features"][n] for n in PATTERN)])
        start = min(datetime.fromisoformat(record["measured_at"]) for record in (*ours, *others))
        results.append(
            {
                "problem": workload["problem"],
                "pattern": names[pattern],
                "device": device,
                "from": start.isoformat(),
                "measurements": [_row(MEASUREMENT, m, names, start) for m in ours],
                "baselines": [_row(BASELINE, b, names, start) for b in others],
            }
        )
    return {
        "format": FORMAT,
        "version": document["version"],
        "devices": document["devices"],
        "patterns": patterns.rows(),
        "tunables": dict(sorted((m["family"], list(m["config"])) for m in document["measurements"])),
        "variants": variants.rows(),
        "conditions": conditions.rows(),
        "results": results,
    }


class _Table:
    """Distinct rows, named by their own contents."""

    def __init__(self, short: int | None = None) -> None:
        """Give names of so many digits at least, by default `SHORT`."""
        self._rows: dict[str, Any] = {}
        self._short = SHORT if short is None else short

    def place(self, row: Any) -> str:
        """Add a row, unless it is there; return its whole digest."""
        digest = hashlib.sha256(json.dumps(row).encode()).hexdigest()
        self._rows[digest] = row
        return digest

    def names(self) -> dict[str, str]:
        """The first digits of all digests, as many as tell them apart, in the order of the rows' contents."""
        length = self._short
        while len({digest[:length] for digest in self._rows}) < len(self._rows):
            length += 1
        return {digest: digest[:length] for digest in sorted(self._rows, key=lambda d: str(self._rows[d]))}

    def rows(self) -> dict[str, Any]:
        """All rows by their names."""
        return {name: self._rows[digest] for digest, name in self.names().items()}


def _members(record: Document) -> Document:
    """A record with the members of its sample beside its own."""
    return {**{n: value for n, value in record.items() if n != "sample"}, **record.get("sample", {})}


def _row(columns: Sequence[str], record: Document, names: Mapping[str, str], start: datetime) -> list[Any]:
    after = (datetime.fromisoformat(record["measured_at"]) - start) / SECOND
    named = {name: names[record[name]] for name in ("variant", "conditions") if name in record}
    members = record | named | {"after": int(after) if after.is_integer() else after}
    row = [members.get(name) for name in columns]
    while row[-1] is None:
        row.pop()
    return row


# --- text --------------------------------------------------------------------------------------------------


def text_of(packed: Document) -> str:
    """JSON with one row a line, for reviews and version control."""
    parts = []
    for name, value in packed.items():
        if name == "results":
            parts.append(f'"results": {_lines(map(_group, value), "[]")}')
        elif name in ONE_A_LINE:
            rows = (
                (f"{json.dumps(key)}: {_compact(row)}" for key, row in value.items())
                if isinstance(value, dict)
                else map(_compact, value)
            )
            parts.append(f'"{name}": {_lines(rows, ONE_A_LINE[name])}')
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{" + ",\n".join(parts) + "}\n"


def _group(group: Mapping[str, object]) -> str:
    """A workload on a line, and a line for each row of it."""
    parts = (
        f'"{name}":{_lines(map(_compact, value), "[]") if isinstance(value, list) else _compact(value)}'
        for name, value in group.items()
    )
    return "{" + ",".join(parts) + "}"


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _lines(values: Iterable[str], around: str) -> str:
    return around[0] + ",".join(f"\n{value}" for value in values) + "\n" + around[1]
