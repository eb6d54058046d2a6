"""Between the plain values of `records` and the columns of `models`.

A problem is stored as its operator's name and `Problem.to_dict` in canonical JSON, in which fields that came later are
left out where they have their defaults: so one problem has one form, whichever version wrote it.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from sparsegen.errors import ConfigError
from sparsegen.kernels import read_config
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config, Value
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.features import Features
from sparsegen.operators import OPERATORS, Problem
from sparsegen.tuning_db.models import (
    BaselineRow,
    DeviceRatesRow,
    DeviceRow,
    MatrixRow,
    MeasurementRow,
    ProblemRow,
    TimedRow,
    VariantRow,
)
from sparsegen.tuning_db.records import Baseline, DeviceRates, Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.row_checks import LONGEST_REASON, damaged, require_sound

_OUTCOMES = frozenset(Outcome)

Columns = dict[str, Any]


def printable(text: str) -> str:
    """Text without control characters but line ends and tabs: a terminal would obey a log's escapes."""
    if text.isprintable():  # most is, and this is far faster
        return text[:LONGEST_REASON]
    kept = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "�" for c in text)
    return "".join(kept)[:LONGEST_REASON]


class UnknownProblemError(Exception):
    """A row of problems that is of no operator that is installed, or that the operator does not have (yet)."""


def canonical(values: Mapping[str, Value] | Mapping[str, int | float | str]) -> str:
    """JSON with sorted keys and no spaces."""
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":"))


def problem_digest(operator: str, fields: str) -> str:
    """What a problem is found by: the SHA-256 of the operator's name and the fields in canonical JSON."""
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
    """What identifies a device and what its configs depend on; nothing of its place here or of its speed."""
    return {f.name: getattr(device, f.name) for f in fields(device) if f.compare}


def device_columns(device: Device) -> Columns:
    columns = described(device)
    major, minor = columns.pop("compute_capability")
    return columns | {"compute_capability_major": major, "compute_capability_minor": minor}


def rates_columns(measured: DeviceRates) -> Columns:
    """All but the reference to the device."""
    return asdict(measured.rates) | {"measured_at": measured.measured_at}


def matrix_columns(workload: Workload) -> Columns:
    return {"fingerprint": workload.fingerprint} | asdict(workload.features)


def problem_columns(problem: Problem) -> Columns:
    fields = canonical(problem.to_dict())
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
        return {}
    columns = asdict(sample)
    columns["sample_count"] = columns.pop("count")
    return columns


def measurement_columns(measurement: Measurement) -> Columns:
    """All but the references to other tables."""
    names = ("worst_error", "registers", "spill_bytes", "compile_seconds", "prepare_seconds", "packed_bytes")
    return sample_columns(measurement.sample) | {
        "outcome": str(measurement.outcome),
        "reason": printable(measurement.reason),
        "final": measurement.final,
        "measured_at": measurement.measured_at,
        **{name: getattr(measurement, name) for name in names},
    }


def baseline_columns(baseline: Baseline) -> Columns:
    """All but the references to other tables."""
    return sample_columns(baseline.sample) | {
        "contender": baseline.contender,
        "version": printable(baseline.version),
        "measured_at": baseline.measured_at,
    }


# --- rows to values ----------------------------------------------------------------------------------------


def to_device(row: DeviceRow) -> Device:
    """Raises DamagedRowError, as all of these do, for a row that sparsegen would not write."""
    require_sound(row)
    return Device(
        key=row.key,
        name=row.name,
        backend=row.backend,
        compute_capability=(row.compute_capability_major, row.compute_capability_minor),
        multiprocessors=row.multiprocessors,
        shared_memory_per_block=row.shared_memory_per_block,
        shared_memory_per_multiprocessor=row.shared_memory_per_multiprocessor,
        l2_bytes=row.l2_bytes,
    )


def to_problem(row: ProblemRow) -> Problem:
    """Raises UnknownProblemError with the reason in words."""
    require_sound(row)
    return _problem(row.operator, row.fields, row.digest)


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


def to_rates(row: DeviceRatesRow) -> DeviceRates:
    """The row with its device loaded."""
    require_sound(row)
    rates = Rates(**{f.name: getattr(row, f.name) for f in fields(Rates)})
    return DeviceRates(to_device(row.device), rates, row.measured_at)


def to_workload(matrix: MatrixRow, problem: ProblemRow) -> Workload:
    """Raises UnknownProblemError for a problem that this version does not know."""
    require_sound(matrix)
    features = Features(
        m=matrix.m,
        k=matrix.k,
        nnz=matrix.nnz,
        row_mean=matrix.row_mean,
        row_cov=matrix.row_cov,
        row_max=matrix.row_max,
        block_fill=matrix.block_fill,
    )
    of = to_problem(problem)
    if of.matrix_shape != (matrix.m, matrix.k):
        raise damaged(matrix, "m")
    return Workload(of, matrix.fingerprint, features)


def to_variant(row: VariantRow) -> Variant:
    require_sound(row)
    try:
        config = _read_config(row.family, row.config)
    except (ValueError, RecursionError):
        raise damaged(row, "config") from None
    return Variant(config, row.source_digest)


def to_sample(row: TimedRow) -> Sample | None:
    if row.median_us is None:
        return None
    return Sample(
        median_us=row.median_us,
        low_us=row.median_us if row.low_us is None else row.low_us,
        high_us=row.median_us if row.high_us is None else row.high_us,
        count=row.sample_count or 1,
        cold=row.cold is not False,
        clock_mhz=row.clock_mhz,
        throttle_reasons=row.throttle_reasons,
    )


def to_measurement(row: MeasurementRow) -> Measurement:
    """The row with its device, matrix, problem and variant loaded."""
    require_sound(row)
    if row.outcome not in _OUTCOMES or (row.median_us is None) == (row.outcome == Outcome.OK):
        raise damaged(row, "outcome")
    return Measurement(
        workload=to_workload(row.matrix, row.problem),
        device=to_device(row.device),
        variant=to_variant(row.variant),
        outcome=Outcome(row.outcome),
        sample=to_sample(row),
        reason=row.reason,
        worst_error=row.worst_error,
        registers=row.registers,
        spill_bytes=row.spill_bytes,
        compile_seconds=row.compile_seconds,
        prepare_seconds=row.prepare_seconds,
        packed_bytes=row.packed_bytes,
        final=row.final,
        measured_at=row.measured_at,
    )


def to_baseline(row: BaselineRow) -> Baseline:
    """The row with its device, matrix and problem loaded."""
    require_sound(row)
    sample = to_sample(row)
    if sample is None:
        raise damaged(row, "median_us")
    return Baseline(
        workload=to_workload(row.matrix, row.problem),
        device=to_device(row.device),
        contender=row.contender,
        version=row.version,
        sample=sample,
        measured_at=row.measured_at,
    )
