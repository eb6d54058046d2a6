"""Documents of packaged results as text that people can review, and back from columns to an export.

`sparsegen.tuning_db.seed_columns` makes the columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sparsegen.tuning_db.seed_columns import Document
from sparsegen.tuning_db.seed_file import BASELINE, FORMAT, MEASUREMENT, PATTERN, values_of

SAMPLE = ("median_us", "low_us", "high_us", "count", "cold", "measured_as", "clock_mhz", "throttle_reasons")
ONE_A_LINE = {"devices": "[]", "patterns": "{}", "tunables": "{}", "conditions": "{}"}


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
        for family, rows in packed["variants"].items()
        for name, (*values, digest) in rows.items()
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
    members = values_of(columns, row, conditions)
    members["measured_at"] = (start + timedelta(seconds=members.pop("after"))).isoformat()
    sample = {name: members.pop(name) for name in SAMPLE if name in members}
    if sample.get("median_us") is not None:
        members["sample"] = sample
    return {name: value for name, value in members.items() if value is not None}


def text_of(packed: Document) -> str:
    """JSON with one row a line, for reviews and version control."""
    parts = []
    for name, value in packed.items():
        if name == "results":
            parts.append(f'"results": {_lines(map(_group, value), "[]")}')
        elif name == "variants":
            families = (f'"{family}": {_lines(_members(rows), "{}")}' for family, rows in value.items())
            parts.append(f'"{name}": {_lines(families, "{}")}')
        elif name in ONE_A_LINE:
            rows = _members(value) if isinstance(value, dict) else map(_compact, value)
            parts.append(f'"{name}": {_lines(rows, ONE_A_LINE[name])}')
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{" + ",\n".join(parts) + "}\n"


def _members(table: Mapping[str, object]) -> Iterator[str]:
    """The members of an object, each in as few characters as it takes."""
    return (f"{json.dumps(name)}: {_compact(row)}" for name, row in table.items())


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
