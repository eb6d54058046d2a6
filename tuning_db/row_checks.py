"""Checks that rows hold what sparsegen writes: SQLite keeps text in columns of numbers, and files can be edited.

A row that does not is passed over where it is read, by a warning that names it, so that one bad row breaks no look-up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Protocol

from sparsegen.kernels.rates import Rates
from sparsegen.operators import MAX_INDEX
from sparsegen.tuning_db.records import Basis, Called, MeasuredAs, Outcome, Task

Check = Callable[[Any], bool]
BIG = 2**63 - 1
FIRST_YEAR = 2020
LONGEST_REASON = 4000  # characters; a compiler's log can be far longer and is in the cache anyway
LONGEST_DRIVER = 40
LONGEST_VERSION = 200  # length of a baseline's library version
LONGEST_SHOWN = 80  # characters of a value in a warning


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Row(Protocol):
    """Row of a query, by the names of its columns."""

    def __getitem__(self, name: str, /) -> Any: ...


def to_moment(value: object) -> datetime:
    """A moment in UTC; SQLite keeps it as text without a time zone.

    Raises:
        ValueError, OverflowError: it is none.
    """
    if not isinstance(value, str | datetime):
        raise ValueError(f"no moment: {value!r}")
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class DamagedRowError(Exception):
    """A row that holds what sparsegen does not write; the message names table, row, column and value."""


def require_sound(row: Row, tables: Iterable[str]) -> None:
    """Check every column that a query of `reading` took from these tables.

    Raises:
        DamagedRowError: see there.
    """
    for table in tables:
        prefix = _PREFIX.get(table, "")
        for name, is_sound in _CHECKS[table].items():
            if not is_sound(row[prefix + name]):
                raise damaged(row, table, name)
    if "measurements" in tables and (
        row["outcome"] not in _OUTCOMES or (row["median_us"] is None) == (row["outcome"] == Outcome.OK)
    ):
        raise damaged(row, "measurements", "outcome")
    if "checks" in tables and row["outcome"] not in _OUTCOMES:
        raise damaged(row, "checks", "outcome")
    if "baselines" in tables and row["median_us"] is None:
        raise damaged(row, "baselines", "median_us")


def damaged(row: Row, table: str, column: str) -> DamagedRowError:
    """The error for a column that holds what it should not."""
    prefix = _PREFIX.get(table, "")
    shown = repr(row[prefix + column])
    shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
    return DamagedRowError(f"{table} row {row[prefix + 'id']}: {column} = {shown}")


def _whole(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _text(longest: int, pattern: str = r"[\s\S]*") -> Check:
    matches = re.compile(pattern).fullmatch

    def is_sound(value: object) -> bool:
        if type(value) is not str or len(value) > longest or matches(value) is None:
            return False
        return value.isprintable() or _CONTROL.search(value) is None

    return is_sound


def _is_moment(value: object) -> bool:
    """SQLite keeps moments as text."""
    try:
        return to_moment(value).year >= FIRST_YEAR
    except (ValueError, OverflowError):
        return False


def _is_number(value: object) -> bool:
    return type(value) is float and 0 <= value < math.inf


def _is_time(value: object) -> bool:
    return type(value) is float and 0 < value < math.inf


def _is_error(value: object) -> bool:
    return type(value) is float and value >= 0  # infinite for a result that was not written


def _is_truth(value: object) -> bool:
    """SQLite keeps False and True as 0 and 1."""
    return type(value) in (bool, int) and value in (0, 1)


_OUTCOMES, _KINDS = frozenset(Outcome), frozenset(MeasuredAs)
_PREFIX = {  # prefix of a table's columns in the queries of `reading`
    "devices": "device_",
    "matrices": "matrix_",
    "problems": "problem_",
    "variants": "variant_",
}
_count, _size = _whole(0, BIG), _whole(0, MAX_INDEX)
_SAMPLE: dict[str, Check] = {
    "median_us": _or_none(_is_time),
    "low_us": _or_none(_is_number),
    "high_us": _or_none(_is_number),
    "sample_count": _or_none(_whole(1, MAX_INDEX)),
    "measured_as": lambda value: value in _KINDS,
    "clock_mhz": _or_none(_count),
    "throttle_reasons": _or_none(_count),
    "measured_at": _is_moment,
}
_CHECKS: Mapping[str, Mapping[str, Check]] = {
    "devices": {
        "key": _text(200, ".+"),
        "name": _text(200, ".*"),
        "backend": _text(40, "[a-z]+"),
        "compute_capability_major": _whole(0, 1000),
        "compute_capability_minor": _whole(0, 1000),
        "multiprocessors": _size,
        "shared_memory_per_block": _count,
        "shared_memory_per_multiprocessor": _count,
        "l2_bytes": _count,
    },
    "device_rates": {**{field.name: _is_time for field in fields(Rates)}, "measured_at": _is_moment},
    "matrices": {
        "fingerprint": _text(64, "[0-9a-f]{64}"),
        "m": _size,
        "k": _size,
        "nnz": _size,
        "row_mean": _is_number,
        "row_cov": _is_number,
        "row_max": _size,
        "block_fill": _is_number,
    },
    "problems": {"operator": _text(40), "fields": _text(BIG), "digest": _text(64)},
    "variants": {
        "family": _text(80),
        "config": _text(BIG),
        "source_digest": _text(64, "[0-9a-f]{8,64}"),
    },
    "measurements": {
        **_SAMPLE,
        "outcome": _text(20),
        "reason": _text(LONGEST_REASON),
        "worst_error": _or_none(_is_error),
        "registers": _or_none(_count),
        "spill_bytes": _or_none(_count),
        "compile_seconds": _or_none(_is_number),
        "prepare_seconds": _or_none(_is_number),
        "packed_bytes": _or_none(_count),
        "final": _is_truth,
        "driver": _text(LONGEST_DRIVER),
    },
    "probes": {
        "sparse_us": _is_time,
        "dense_us": _is_time,
        "sample_count": _whole(1, MAX_INDEX),
        "measured_as": lambda value: value in _KINDS,
        "called": frozenset(Called).__contains__,
        "task": frozenset(Task).__contains__,
        "context": _text(64, "[0-9a-f]{64}|"),
        "driver": _text(LONGEST_DRIVER),
        "measured_at": _is_moment,
    },
    "checks": {
        "outcome": _text(20),
        "reason": _text(LONGEST_REASON),
        "worst_error": _or_none(_is_error),
        "seconds": _is_number,
        "driver": _text(LONGEST_DRIVER),
        "measured_at": _is_moment,
    },
    "predictions": {
        "predicted_us": _is_time,
        "basis": frozenset(Basis).__contains__,
        "model": _text(64, "[0-9a-f]{8,64}"),
        "registers": _or_none(_count),
        "spill_bytes": _or_none(_count),
        "predicted_at": _is_moment,
    },
    "baselines": {**_SAMPLE, "contender": _text(40, "[a-z0-9_]+"), "version": _text(LONGEST_VERSION)},
}
