"""Exports in columns, as the packaged tuning results are kept: `seed_file` says what stands where."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sparsegen.tuning_db.seed_file import BASELINE, FORMAT, MEASUREMENT, PATTERN

SHORT = 4  # characters of a name, 6 bits each; more where these do not tell the rows of a table apart
SHORT_OF_FEW = 2  # of conditions, which are few

Document = dict[str, Any]
SECOND = timedelta(seconds=1)


def pack(document: Document) -> Document:
    """Turn a document of `exchange.document` into columns; equal documents make equal ones.

    Raises:
        ValueError: the document has predictions.
    """
    if document.get("predictions"):
        raise ValueError("what is packaged was measured: a document with predictions cannot be packed")
    patterns, variants, conditions = _Table(), _Table(), _Table(SHORT_OF_FEW)
    families: dict[str, dict[str, Any]] = {}
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
    for name, (family, *row) in variants.rows().items():
        families.setdefault(family, {})[name] = row
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
        "variants": families,
        "conditions": conditions.rows(),
        "results": results,
    }


class _Table:
    """Distinct rows, named by their own contents."""

    def __init__(self, short: int | None = None) -> None:
        """Gives names of at least ``short`` characters, by default `SHORT`."""
        self._rows: dict[str, Any] = {}
        self._short = SHORT if short is None else short

    def place(self, row: Any) -> str:
        """Add a row, unless it is there; return its whole digest."""
        digest = urlsafe_b64encode(hashlib.sha256(json.dumps(row).encode()).digest()).decode()
        self._rows[digest] = row
        return digest

    def names(self) -> dict[str, str]:
        """The first characters of all digests, as many as tell them apart, in the order of the rows' contents."""
        length = self._short
        while len({digest[:length] for digest in self._rows}) < len(self._rows):
            length += 1
        return {digest: digest[:length] for digest in sorted(self._rows, key=lambda d: str(self._rows[d]))}

    def rows(self) -> dict[str, Any]:
        """All rows by their names."""
        return {name: self._rows[digest] for digest, name in self.names().items()}


def _members(record: Document) -> Document:
    """A record with the members of its sample beside its own, percentiles as nanoseconds from the median."""
    sample = dict(record.get("sample", {}))
    if sample:
        median, low, high = sample["median_us"], sample.pop("low_us"), sample.pop("high_us")
        sample |= {"below_ns": round(1000 * (median - low)), "above_ns": round(1000 * (high - median))}
    return {**{n: value for n, value in record.items() if n != "sample"}, **sample}


def _row(columns: Sequence[str], record: Document, names: Mapping[str, str], start: datetime) -> list[Any]:
    after = (datetime.fromisoformat(record["measured_at"]) - start) / SECOND
    named = {name: names[record[name]] for name in ("variant", "conditions") if name in record}
    members = record | named | {"after": int(after) if after.is_integer() else after}
    row = [members.get(name) for name in columns]
    while row[-1] is None:
        row.pop()
    return row
