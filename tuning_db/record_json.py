"""Records as JSON: what documents and result files hold of each, and its strict reader."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict
from typing import Any

from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.features import Features
from sparsegen.operators import MAX_INDEX, Problem
from sparsegen.system.json_object import Json
from sparsegen.tuning_db.config_reader import read_config
from sparsegen.tuning_db.json_reader import HEX, Node
from sparsegen.tuning_db.problem_reader import problem_dict, read_problem
from sparsegen.tuning_db.records import (
    Baseline,
    Basis,
    DeviceRates,
    Measurement,
    Outcome,
    Prediction,
    Variant,
    Workload,
)
from sparsegen.tuning_db.row_checks import BIG, LONGEST_DRIVER, LONGEST_REASON, LONGEST_VERSION
from sparsegen.tuning_db.sample_json import read_sample, sample_dict

LARGEST_ERROR = 1e300  # in place of an infinite one
MEASURED = {  # optional facts of a measurement: whether they are integers
    "worst_error": False,
    "registers": True,
    "spill_bytes": True,
    "compile_seconds": False,
    "prepare_seconds": False,
    "packed_bytes": True,
}
COMPILED = ("registers", "spill_bytes")  # optional facts of a prediction


def read_device(node: Node) -> Device:
    """A device, as `conversion.described` gives it; perhaps with rates, which `read_rates` reads."""
    sizes = ("multiprocessors", "shared_memory_per_block", "shared_memory_per_multiprocessor", "l2_bytes")
    f = node.fields(("key", "name", "backend", "compute_capability", *sizes), ("rates",))
    version = [part.integer(0, 1000) for part in f["compute_capability"].items()]
    if len(version) != 2:
        f["compute_capability"].refuse("two integers")
    return Device(
        key=f["key"].text(200, ".+"),
        name=f["name"].text(200),
        backend=f["backend"].text(40, "[a-z]+"),
        compute_capability=(version[0], version[1]),
        multiprocessors=f["multiprocessors"].integer(0, MAX_INDEX),
        shared_memory_per_block=f["shared_memory_per_block"].integer(0, BIG),
        shared_memory_per_multiprocessor=f["shared_memory_per_multiprocessor"].integer(0, BIG),
        l2_bytes=f["l2_bytes"].integer(0, BIG),
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
        "features": asdict(workload.features),
    }


def read_workload(node: Node) -> Workload:
    """A workload, as `workload_dict` gives it."""
    f = node.fields(("problem", "fingerprint", "features"))
    problem = read_problem(f["problem"])
    names = ("m", "k", "nnz", "row_mean", "row_cov", "row_max", "block_fill")
    v = f["features"].fields(names)
    features = Features(
        m=v["m"].integer(0, MAX_INDEX),
        k=v["k"].integer(0, MAX_INDEX),
        nnz=v["nnz"].integer(0, MAX_INDEX),
        row_mean=v["row_mean"].number(),
        row_cov=v["row_cov"].number(),
        row_max=v["row_max"].integer(0, MAX_INDEX),
        block_fill=v["block_fill"].number(),
    )
    rows, columns = problem.features_shape
    if (features.m, features.k) != (rows, columns):
        f["features"].refuse(f"m = {rows} and k = {columns}, as the problem's sizes say")
    return Workload(problem, f["fingerprint"].text(64, HEX), features)


def measurement_dict(m: Measurement) -> Json:
    """All but workload and device."""
    facts = {name: getattr(m, name) for name in MEASURED if getattr(m, name) is not None}
    if m.worst_error is not None:  # infinite for an unwritten output, and JSON has no infinity
        facts["worst_error"] = min(m.worst_error, LARGEST_ERROR)
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
    outcome = f["outcome"].text(40)
    if outcome not in list(Outcome):
        f["outcome"].refuse(f"one of {', '.join(Outcome)}")
    if ("sample" in f) != (outcome == Outcome.OK):
        node.refuse("a sample exactly when the outcome is ok")
    facts: Json = {
        name: f[name].integer(0, BIG) if whole else f[name].number()
        for name, whole in MEASURED.items()
        if name in f
    }
    if "worst_error" in facts:
        facts["worst_error"] = min(facts["worst_error"], LARGEST_ERROR)
    return Measurement(
        workload=workload,
        device=_pick(f["device"], devices),
        variant=_variant(f, workload.problem),
        outcome=Outcome(outcome),
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
    f = node.fields((*needed, "predicted_at"), COMPILED)
    workload, basis = _pick(f["workload"], workloads), f["basis"].text(20)
    if basis not in list(Basis):
        f["basis"].refuse(f"one of {', '.join(Basis)}")
    return Prediction(
        workload=workload,
        device=_pick(f["device"], devices),
        variant=_variant(f, workload.problem),
        predicted_us=f["predicted_us"].number(above=True),
        basis=Basis(basis),
        model=f["model"].text(64, "[0-9a-f]{8,64}"),
        predicted_at=f["predicted_at"].moment(),
        **{name: f[name].integer(0, BIG) for name in COMPILED if name in f},
    )


def _variant(f: dict[str, Node], problem: Problem) -> Variant:
    digest = f["source_digest"].text(64, "[0-9a-f]{8,64}")
    return Variant(read_config(f["family"], f["config"], problem), digest)


def _pick(node: Node, candidates: list[Any]) -> Any:
    return candidates[node.integer(0, len(candidates) - 1)]
