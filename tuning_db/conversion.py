"""Between the plain values of `records` and the columns of `models`."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from sparsegen.errors import DatabaseCorruptError
from sparsegen.kernels import families
from sparsegen.kernels.base import Device, Value, tunables
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

LONGEST_REASON = 4000  # characters; a compiler's log can be far longer and is in the cache anyway

Columns = dict[str, Any]


def printable(text: str) -> str:
    """Text without control characters but line ends and tabs: a terminal would obey a log's escapes."""
    if text.isprintable():  # most is, and this is far faster
        return text[:LONGEST_REASON]
    kept = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "�" for c in text)
    return "".join(kept)[:LONGEST_REASON]


def canonical_config(config: Mapping[str, Value]) -> str:
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"))


def ordered_config(family: str, config: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """The config in its family's declaration order; what the family does not know comes last, by name."""
    known = families().get(family)
    names = [t.name for t in tunables(known.config_type)] if known else []
    return tuple(
        (name, config[name]) for name in [*names, *sorted(set(config) - set(names))] if name in config
    )


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


NO_FIELD: Columns = {
    "m": 0,
    "k": 0,
    "n": 0,
    "dtype": "",
    "layout": "",
    "epilogue": "",
    "batch": 1,
    "item_values": "",
}  # as `ProblemRow` says


def problem_columns(problem: Problem) -> Columns:
    return {"operator": problem.operator} | NO_FIELD | problem.all_fields()


def variant_columns(variant: Variant) -> Columns:
    return {
        "family": variant.family,
        "config": canonical_config(variant.config_dict),
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


def to_rates(row: DeviceRatesRow) -> DeviceRates:
    """The row with its device loaded."""
    rates = Rates(**{f.name: getattr(row, f.name) for f in fields(Rates)})
    return DeviceRates(to_device(row.device), rates, row.measured_at)


def to_workload(matrix: MatrixRow, problem: ProblemRow) -> Workload:
    """Raises DatabaseCorruptError for a problem that this version does not know."""
    fields = {name: getattr(problem, name) for name in NO_FIELD}
    features = Features(
        m=matrix.m,
        k=matrix.k,
        nnz=matrix.nnz,
        row_mean=matrix.row_mean,
        row_cov=matrix.row_cov,
        row_max=matrix.row_max,
        block_fill=matrix.block_fill,
    )
    try:
        known = OPERATORS[problem.operator].from_dict(fields)
    except (KeyError, ValueError) as error:
        raise DatabaseCorruptError(f"problem {problem.id} is none that sparsegen writes: {error}") from None
    return Workload(known, matrix.fingerprint, features)


def to_variant(row: VariantRow) -> Variant:
    """Raises DatabaseCorruptError when the config is not a JSON object."""
    try:
        config = json.loads(row.config)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise DatabaseCorruptError(f"variant {row.id}: its config is not a JSON object: {row.config[:80]!r}")
    return Variant(row.family, ordered_config(row.family, config), row.source_digest)


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
    sample = to_sample(row)
    assert sample is not None, "the table's CHECK constraint holds this"
    return Baseline(
        workload=to_workload(row.matrix, row.problem),
        device=to_device(row.device),
        contender=row.contender,
        version=row.version,
        sample=sample,
        measured_at=row.measured_at,
    )
