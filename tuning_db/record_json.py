"""Records as JSON: what documents and result files hold of each, and its strict reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.operators import Problem
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.config_reader import read_config
from sparsegen.tuning_db.json_codec import (
    DEVICE,
    FEATURES,
    Read,
    above,
    count,
    finite,
    number,
    optional,
    record,
    text,
    whole,
    word,
)
from sparsegen.tuning_db.json_reader import HEX, Node
from sparsegen.tuning_db.problem_reader import problem_dict, read_problem
from sparsegen.tuning_db.records import (
    Baseline,
    Basis,
    DeviceRates,
    MeasuredAs,
    Measurement,
    Outcome,
    Prediction,
    Sample,
    Variant,
    Workload,
)
from sparsegen.tuning_db.row_checks import LONGEST_DRIVER, LONGEST_REASON, LONGEST_VERSION

COLD_OR_WARM = (MeasuredAs.COLD, MeasuredAs.WARM)  # kinds that every version knows
DIGEST = text(64, "[0-9a-f]{8,64}")
# Optional facts of a prediction.
COMPILED: Mapping[str, Read[Any]] = {"registers": whole, "spill_bytes": whole}
MEASURED: Mapping[str, Read[Any]] = {  # and of a measurement
    "worst_error": lambda node: finite(node.number()),
    **COMPILED,
    "compile_seconds": number,
    "prepare_seconds": number,
    "packed_bytes": whole,
}

# A device, as `conversion.described` gives it; perhaps with rates, which `read_rates` reads.
read_device = record(
    Device,
    {**DEVICE, "shared_memory_per_block": whole, "shared_memory_per_multiprocessor": whole},
    ("rates",),
)


def rates_dict(measured: DeviceRates) -> Json:
    """All but the device."""
    return asdict(measured.rates) | {"measured_at": measured.measured_at.isoformat()}


def read_rates(node: Node, device: Device) -> DeviceRates:
    """Reads a device's measured rates, as `rates_dict` writes them."""
    names = tuple(field.name for field in dataclasses.fields(Rates))
    f = node.fields((*names, "measured_at"))
    rates = Rates(**{name: f[name].number(above=True) for name in names})
    return DeviceRates(device, rates, f["measured_at"].moment())


def workload_dict(workload: Workload) -> Json:
    """Problem, fingerprint and features."""
    return {
        "problem": problem_dict(workload.problem),
        "fingerprint": workload.fingerprint,
        "features": workload.features.stored(),
    }


def read_workload(node: Node) -> Workload:
    """A workload, as `workload_dict` gives it."""
    f = node.fields(("problem", "fingerprint", "features"))
    problem = read_problem(f["problem"])
    features = FEATURES(f["features"])
    rows, columns = problem.features_shape
    if (features.m, features.k) != (rows, columns):
        f["features"].refuse(f"m = {rows} and k = {columns}, as the problem's sizes say")
    return Workload(problem, f["fingerprint"].text(64, HEX), features)


def sample_dict(sample: Sample) -> dict[str, Any]:
    """A sample as every version has it, and what later ones add."""
    kind = sample.measured_as
    values = {
        "cold" if name == "measured_as" else name: kind is not MeasuredAs.WARM
        if name == "measured_as"
        else value
        for name, value in asdict(sample).items()
    }
    return values | ({} if kind in COLD_OR_WARM else {"measured_as": str(kind)})


def read_sample(node: Node) -> Sample:
    """Raises ImportFileError, which names the place in the document."""
    f = node.fields(
        ("median_us", "low_us", "high_us", "count", "cold"), ("clock_mhz", "throttle_reasons", "measured_as")
    )
    kind = MeasuredAs.COLD if f["cold"].boolean() else MeasuredAs.WARM
    return Sample(
        median_us=above(f["median_us"]),
        low_us=number(f["low_us"]),
        high_us=number(f["high_us"]),
        count=count(f["count"]),
        measured_as=word(MeasuredAs)(f["measured_as"]) if "measured_as" in f else kind,
        clock_mhz=optional(f.get("clock_mhz"), whole),
        throttle_reasons=optional(f.get("throttle_reasons"), whole),
    )


def measurement_dict(m: Measurement) -> dict[str, Any]:
    """All but workload and device."""
    facts = {name: getattr(m, name) for name in MEASURED if getattr(m, name) is not None}
    if m.worst_error is not None:  # infinite for an unwritten output
        facts["worst_error"] = finite(m.worst_error)
    return {
        "family": m.variant.family,
        "config": m.variant.config.to_dict(),
        "source_digest": m.variant.source_digest,
        "outcome": str(m.outcome),
        **({"sample": sample_dict(m.sample)} if m.sample else {}),
        **({"reason": m.reason} if m.reason else {}),
        **facts,
        **({"driver": m.driver} if m.driver else {}),
        "final": m.final,
        "measured_at": m.measured_at.isoformat(),
    }


def read_measurement(node: Node, workloads: list[Workload], devices: list[Device]) -> Measurement:
    """A measurement, as `measurement_dict` gives it, with the places of its workload and its device in these lists."""
    needed = ("workload", "device", "family", "config", "source_digest", "outcome", "final", "measured_at")
    f = node.fields(needed, ("sample", "reason", "driver", *MEASURED))
    workload = _pick(f["workload"], workloads)
    outcome = word(Outcome)(f["outcome"])
    if ("sample" in f) != (outcome is Outcome.OK):
        node.refuse("a sample exactly when the outcome is ok")
    facts: dict[str, Any] = {name: read(f[name]) for name, read in MEASURED.items() if name in f}
    return Measurement(
        workload=workload,
        device=_pick(f["device"], devices),
        variant=_variant(f, workload.problem),
        outcome=outcome,
        sample=read_sample(f["sample"]) if "sample" in f else None,
        reason=f["reason"].text(LONGEST_REASON) if "reason" in f else "",
        final=f["final"].boolean(),
        measured_at=f["measured_at"].moment(),
        driver=f["driver"].text(LONGEST_DRIVER) if "driver" in f else "",
        **facts,
    )


def baseline_dict(b: Baseline) -> Json:
    """All but workload and device."""
    return {
        "contender": b.name,
        "version": b.version,
        "sample": sample_dict(b.sample),
        "measured_at": b.measured_at.isoformat(),
    }


def read_baseline(node: Node, workloads: list[Workload], devices: list[Device]) -> Baseline:
    """A baseline, as `baseline_dict` gives it, with the places of its workload and its device in these lists."""
    f = node.fields(("workload", "device", "contender", "version", "sample", "measured_at"))
    return Baseline(
        workload=_pick(f["workload"], workloads),
        device=_pick(f["device"], devices),
        name=f["contender"].text(40, "[a-z0-9_]+"),
        version=f["version"].text(LONGEST_VERSION),
        sample=read_sample(f["sample"]),
        measured_at=f["measured_at"].moment(),
    )


def prediction_dict(p: Prediction) -> Json:
    """All but workload and device."""
    facts = {name: getattr(p, name) for name in COMPILED if getattr(p, name) is not None}
    return {
        "family": p.variant.family,
        "config": p.variant.config.to_dict(),
        "source_digest": p.variant.source_digest,
        "predicted_us": p.predicted_us,
        "basis": str(p.basis),
        "model": p.model,
        **facts,
        "predicted_at": p.predicted_at.isoformat(),
    }


def read_prediction(node: Node, workloads: list[Workload], devices: list[Device]) -> Prediction:
    """A prediction, as `prediction_dict` gives it, with the places of its workload and its device in these lists."""
    needed = ("workload", "device", "family", "config", "source_digest", "predicted_us", "basis", "model")
    f = node.fields((*needed, "predicted_at"), tuple(COMPILED))
    workload = _pick(f["workload"], workloads)
    return Prediction(
        workload=workload,
        device=_pick(f["device"], devices),
        variant=_variant(f, workload.problem),
        predicted_us=f["predicted_us"].number(above=True),
        basis=word(Basis)(f["basis"]),
        model=f["model"].text(64, "[0-9a-f]{8,64}"),
        predicted_at=f["predicted_at"].moment(),
        **{name: read(f[name]) for name, read in COMPILED.items() if name in f},
    )


def _variant(f: dict[str, Node], problem: Problem) -> Variant:
    return Variant(read_config(f["family"], f["config"], problem), DIGEST(f["source_digest"]))


def _pick(node: Node, candidates: list[Any]) -> Any:
    return candidates[node.integer(0, len(candidates) - 1)]
