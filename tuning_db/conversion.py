"""Conversion between the plain values of `records` and the columns of `models`.

No SQLAlchemy here.

A problem is stored as its operator's name and `Problem.to_dict` in canonical JSON, in which fields that came later are
left out where they have their defaults: so one problem has one form, whichever version wrote it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

from sparsegen.errors import ConfigError
from sparsegen.kernels import read_config
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config, Value
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.features import STORED, Features
from sparsegen.operators import OPERATORS, Problem
from sparsegen.tuning_db.records import (
    Baseline,
    Basis,
    Called,
    Check,
    DeviceRates,
    MeasuredAs,
    Measurement,
    Outcome,
    Prediction,
    Probe,
    Sample,
    Task,
    Tuned,
    Variant,
    Workload,
)
from sparsegen.tuning_db.row_checks import (
    LONGEST_DRIVER,
    LONGEST_REASON,
    LONGEST_VERSION,
    Row,
    damaged,
    to_moment,
)

DEVICE = (  # columns that make a device, in the order of its fields
    "key",
    "name",
    "backend",
    "compute_capability_major",
    "compute_capability_minor",
    "multiprocessors",
    "shared_memory_per_block",
    "shared_memory_per_multiprocessor",
    "l2_bytes",
)
# Columns that hold a record's fields of the same name as they are.
MEASURED = ("worst_error", "registers", "spill_bytes", "compile_seconds", "prepare_seconds", "packed_bytes")
PREDICTED = ("predicted_us", "model", "registers", "spill_bytes")
FEATURES = STORED  # columns of a matrix, in the order of its features

Columns = dict[str, Any]


def printable(text: str) -> str:
    """Text without control characters but line ends and tabs: a terminal would obey a log's escapes."""
    if text.isprintable():  # most is, and this is far faster
        return text[:LONGEST_REASON]
    import unicodedata

    kept = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "�" for c in text)
    return "".join(kept)[:LONGEST_REASON]


class UnknownProblemError(Exception):
    """A row of problems that is of no operator that is installed, or that the operator does not have (yet)."""


def canonical(values: Mapping[str, Value] | Mapping[str, int | float | str]) -> str:
    """JSON with sorted keys and no spaces."""
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":"))


def problem_digest(operator: str, fields: str) -> str:
    """Returns the key of a problem: the SHA-256 of the operator's name and the fields in canonical JSON."""
    return hashlib.sha256(f"{operator} {fields}".encode()).hexdigest()


@lru_cache(maxsize=65536)
def _read_config(family: str, text: str) -> Config:
    """The config of a row; one that was read is not checked again.

    Raises:
        ValueError: not a JSON object.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("not an object")
    return read_config(family, values)


# --- values to columns -------------------------------------------------------------------------------------


def described(device: Device) -> Columns:
    """Returns the columns that identify a device and those that its configs depend on, without its place and its
    speed.
    """
    return {f.name: getattr(device, f.name) for f in fields(device) if f.compare}


def device_columns(device: Device) -> Columns:
    columns = described(device)
    major, minor = columns.pop("compute_capability")
    return columns | {"compute_capability_major": major, "compute_capability_minor": minor}


def rates_columns(measured: DeviceRates) -> Columns:
    """All but the reference to the device."""
    return asdict(measured.rates) | {"measured_at": measured.measured_at}


def matrix_columns(workload: Workload) -> Columns:
    return {"fingerprint": workload.fingerprint} | workload.features.stored()


@lru_cache(maxsize=4096)  # each record of a problem is found by these
def problem_columns(problem: Problem) -> Mapping[str, str]:
    fields = canonical(problem.distinct())
    digest = problem_digest(problem.operator, fields)
    return {"operator": problem.operator, "fields": fields, "digest": digest}


def variant_columns(variant: Variant) -> Columns:
    return {
        "family": variant.family,
        "config": canonical(variant.config.to_dict()),
        "source_digest": variant.source_digest,
    }


def sample_columns(sample: Sample | None) -> Columns:
    if sample is None:
        return {"measured_as": str(MeasuredAs.COLD)}  # the kind that was to be measured
    columns = asdict(sample)
    columns["sample_count"] = columns.pop("count")
    columns["measured_as"] = str(sample.measured_as)
    return columns


def measurement_columns(measurement: Measurement) -> Columns:
    """All but the references to other tables."""
    return sample_columns(measurement.sample) | {
        "outcome": str(measurement.outcome),
        "reason": printable(measurement.reason),
        "final": measurement.final,
        "measured_at": measurement.measured_at,
        "driver": printable(measurement.driver)[:LONGEST_DRIVER],
        **{name: getattr(measurement, name) for name in MEASURED},
    }


def baseline_columns(baseline: Baseline) -> Columns:
    """All but the references to other tables."""
    return sample_columns(baseline.sample) | {
        "contender": baseline.name,
        "version": printable(baseline.version)[:LONGEST_VERSION],
        "measured_at": baseline.measured_at,
    }


def prediction_columns(prediction: Prediction) -> Columns:
    """All but the references to other tables."""
    return {"basis": str(prediction.basis), "predicted_at": prediction.predicted_at} | {
        name: getattr(prediction, name) for name in PREDICTED
    }


def probe_columns(probe: Probe) -> Columns:
    """All but the references to other tables."""
    return {
        "sparse_us": probe.sparse_us,
        "dense_us": probe.dense_us,
        "sample_count": probe.count,
        "measured_as": str(probe.measured_as),
        "driver": printable(probe.driver)[:LONGEST_DRIVER],
        "measured_at": probe.measured_at,
        "called": str(probe.called),
        "task": str(probe.task),
        "context": probe.context,
    }


def check_columns(check: Check) -> Columns:
    """All but the references to other tables."""
    return {
        "outcome": str(check.outcome),
        "reason": printable(check.reason),
        "worst_error": check.worst_error,
        "seconds": check.seconds,
        "driver": printable(check.driver)[:LONGEST_DRIVER],
        "measured_at": check.measured_at,
    }


# --- rows to values ----------------------------------------------------------------------------------------


_of_device = itemgetter(*(f"device_{name}" for name in DEVICE))
_of_matrix = itemgetter(*(f"matrix_{name}" for name in FEATURES))


def to_device(row: Row) -> Device:
    return _device(*_of_device(row))


@lru_cache(maxsize=256)  # there are few, and one comes with every row
def _device(key: str, name: str, backend: str, major: int, minor: int, *sizes: int) -> Device:
    multiprocessors, per_block, per_multiprocessor, l2_bytes = sizes
    return Device(
        key, name, backend, (major, minor), multiprocessors, per_block, per_multiprocessor, l2_bytes
    )


def to_problem(row: Row) -> Problem:
    """Raises UnknownProblemError with the reason in words."""
    return _problem(row["problem_operator"], row["problem_fields"], row["problem_digest"])


@lru_cache(maxsize=4096)  # a problem has many measurements, each of which comes with its row
def _problem(operator: str, fields: str, digest: str) -> Problem:
    kind = OPERATORS.get(operator)
    if kind is None:
        raise UnknownProblemError(f"no operator {operator!r}; there are {', '.join(OPERATORS)}")
    try:
        problem = kind.from_dict(json.loads(fields))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, ConfigError) as error:
        raise UnknownProblemError(f"no problem of {operator}: {fields[:200]}: {error}") from None
    if problem_columns(problem)["digest"] != digest:
        raise UnknownProblemError(f"not as this sparsegen writes a problem of {operator}: {fields[:200]}")
    return problem


def to_rates(row: Row) -> DeviceRates:
    rates = Rates(**{f.name: row[f.name] for f in fields(Rates)})
    return DeviceRates(to_device(row), rates, to_moment(row["measured_at"]))


def to_workload(row: Row) -> Workload:
    """Raises UnknownProblemError for a problem that this version does not know, DamagedRowError for another matrix."""
    features = Features(*_of_matrix(row))
    of = to_problem(row)
    if of.features_shape != (features.m, features.k):
        raise damaged(row, "matrices", "m")
    return Workload(of, row["matrix_fingerprint"], features)


def to_variant(row: Row) -> Variant:
    """Raises DamagedRowError for a config that is not a JSON object."""
    try:
        config = _read_config(row["variant_family"], row["variant_config"])
    except (ValueError, RecursionError):
        raise damaged(row, "variants", "config") from None
    return Variant(config, row["variant_source_digest"])


def to_sample(row: Row) -> Sample | None:
    median = row["median_us"]
    if median is None:
        return None
    low, high = row["low_us"], row["high_us"]
    return Sample(
        median_us=median,
        low_us=median if low is None else low,
        high_us=median if high is None else high,
        count=row["sample_count"] or 1,
        measured_as=MeasuredAs(row["measured_as"]),
        clock_mhz=row["clock_mhz"],
        throttle_reasons=row["throttle_reasons"],
    )


def _of_variant(row: Row, *same: str) -> Columns:
    """Fields of a record of a variant: what it refers to, and those that are as the columns of their names."""
    found = {"workload": to_workload(row), "device": to_device(row), "variant": to_variant(row)}
    return found | {name: row[name] for name in same}


def to_measurement(row: Row) -> Measurement:
    return Measurement(
        **_of_variant(row, "reason", "driver", *MEASURED),
        outcome=Outcome(row["outcome"]),
        sample=to_sample(row),
        final=bool(row["final"]),
        measured_at=to_moment(row["measured_at"]),
    )


def to_baseline(row: Row) -> Baseline:
    sample = to_sample(row)
    assert sample is not None, "the table's CHECK constraint holds this"
    return Baseline(
        workload=to_workload(row),
        device=to_device(row),
        name=row["contender"],
        version=row["version"],
        sample=sample,
        measured_at=to_moment(row["measured_at"]),
    )


def to_prediction(row: Row) -> Prediction:
    return Prediction(
        **_of_variant(row, *PREDICTED),
        basis=Basis(row["basis"]),
        predicted_at=to_moment(row["predicted_at"]),
    )


def to_probe(row: Row) -> Probe:
    return Probe(
        **_of_variant(row, "sparse_us", "dense_us", "driver", "context"),
        count=row["sample_count"],
        measured_as=MeasuredAs(row["measured_as"]),
        measured_at=to_moment(row["measured_at"]),
        called=Called(row["called"]),
        task=Task(row["task"]),
    )


def to_check(row: Row) -> Check:
    return Check(
        **_of_variant(row, "driver", "seconds", "reason", "worst_error"),
        outcome=Outcome(row["outcome"]),
        measured_at=to_moment(row["measured_at"]),
    )


def is_of_kind(row: Row, kind: tuple[str, ...]) -> bool:
    """True if a row's problem is of this kind, or none that is told, which reading the row then reports."""
    operator = OPERATORS.get(row["problem_operator"])
    if operator is None:
        return True
    try:
        return operator.kind_of(json.loads(row["problem_fields"])) == kind
    except (ValueError, AttributeError, RecursionError):  # JSON that is no object has no `get`
        return True


def to_tuned(row: Row) -> Tuned:
    try:
        last = to_moment(row["last_measured_at"])
    except (ValueError, OverflowError):  # the row with it is passed over where it is read
        last = datetime.fromtimestamp(0, UTC)
    return Tuned(to_workload(row), to_device(row), row["measurements"], row["ok"], last)
