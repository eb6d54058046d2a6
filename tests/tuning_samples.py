"""Devices, workloads and measurements that several tests of the database and of dispatch build on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sparsegen.kernels import family
from sparsegen.kernels.base import Device
from sparsegen.kernels.rates import Rates
from sparsegen.matrix.features import Features
from sparsegen.operators import (
    DType,
    Problem,
    SddmmEpilogue,
    SddmmProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SpmmProblem,
)
from sparsegen.tuning_db.conversion import canonical, problem_digest
from sparsegen.tuning_db.records import (
    Baseline,
    Basis,
    Check,
    MeasuredAs,
    Measurement,
    Outcome,
    Prediction,
    Probe,
    Sample,
    Variant,
    Workload,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "ab" * 32
H100 = Device("NVIDIA H100 80GB HBM3 sm_90", "NVIDIA H100", "cuda", (9, 0), 132, 232448, 233472, 50 << 20)
A100 = Device("NVIDIA A100 sm_80", "NVIDIA A100", "cuda", (8, 0), 108, 166912, 167936, 40 << 20)
MEASURED_RATES = Rates(2.83e6, 51.7e6, 409e6, 757e6, 789e6, 3.6, 1980.0)  # of an H100


def features(m: int = 128, k: int = 256, nnz: int = 3000, row_cov: float = 0.3) -> Features:
    return Features(m, k, nnz, nnz / m, row_cov, int(nnz / m * 2), min(1.0, nnz / (m * k)))


def workload(n: int = 64, *, tag: str = "a", **shape: Any) -> Workload:
    """A workload whose fingerprint depends on ``tag``; ``shape`` goes to `features`."""
    seen = features(**shape)
    fingerprint = hashlib.sha256(f"{tag} {seen}".encode()).hexdigest()
    return Workload(SpmmProblem(seen.m, seen.k, n), fingerprint, seen)


def other_operators() -> list[Measurement]:
    """An OK measurement of a problem of each operator but ``spmm``, and two that differ in the epilogue alone."""
    seen = workload()
    shape = (seen.features.m, seen.features.k)
    problems = {
        "csr_sddmm": [SddmmProblem(*shape, 64), SddmmProblem(*shape, 64, epilogue=SddmmEpilogue.SCALE)],
        "row_softmax": [SoftmaxProblem(*shape, DType.FLOAT16)],
        "fused_attention": [SparseAttentionProblem(*shape, 64, DType.FLOAT16, batch=8)],
        "row_softmax_backward": [SoftmaxBackwardProblem(*shape, DType.FLOAT16)],
    }
    return [
        replace(
            timed(7.0, Workload(problem, seen.fingerprint, seen.features)),
            variant=Variant(family(name).config(), DIGEST),
        )
        for name, some in problems.items()
        for problem in some
    ]


def variant(digest: str = DIGEST, **values: Any) -> Variant:
    """A complete config of csr_spmm, valid for every tile_n from 32 on."""
    return Variant(family("csr_spmm").config(**{"threads_per_row": 8} | values), digest)


def timed(
    microseconds: float,
    of: Workload | None = None,
    *,
    device: Device = H100,
    final: bool = False,
    measured_as: MeasuredAs = MeasuredAs.COLD,
    at: int = 0,
    digest: str = DIGEST,
    **values: Any,
) -> Measurement:
    """An OK measurement, ``at`` seconds after `START`."""
    return Measurement(
        of or workload(),
        device,
        variant(digest, **values),
        Outcome.OK,
        Sample(
            microseconds,
            round(microseconds * 0.98, 3),
            round(microseconds * 1.05, 3),
            50,
            measured_as,
            1980,
            0,
        ),
        worst_error=0.25,
        registers=40,
        spill_bytes=0,
        compile_seconds=1.5,
        prepare_seconds=0.01,
        packed_bytes=2**33,
        final=final,
        measured_at=START + timedelta(seconds=at),
    )


def failed(outcome: Outcome, reason: str = "it failed", *, at: int = 0, **values: Any) -> Measurement:
    return Measurement(
        workload(), H100, variant(**values), outcome, reason=reason, measured_at=START + timedelta(seconds=at)
    )


def predicted(microseconds: float, of: Workload | None = None, *, at: int = 0, **values: Any) -> Prediction:
    """Makes a predicted time on the H100, ``at`` seconds after `START`."""
    return Prediction(
        of or workload(),
        H100,
        variant(**values),
        microseconds,
        Basis.MODEL,
        "c0ffee00",
        registers=64,
        predicted_at=START + timedelta(seconds=at),
    )


def baseline(microseconds: float, of: Workload | None = None, baseline: str = "cublas") -> Baseline:
    sample = Sample(microseconds, microseconds, microseconds, 50)
    return Baseline(of or workload(), H100, baseline, "torch 2.9", sample, START)


def probe(
    sparse_us: float, dense_us: float, of: Workload | None = None, *, at: int = 0, **values: Any
) -> Probe:
    """Both timed in turn, ``at`` seconds after `START`."""
    when = START + timedelta(seconds=at)
    return Probe(
        of or workload(), H100, variant(**values), sparse_us, dense_us, 7, driver="580.1", measured_at=when
    )


def checked(
    outcome: Outcome = Outcome.OK,
    of: Workload | None = None,
    *,
    driver: str = "580.1",
    at: int = 0,
    **values: Any,
) -> Check:
    """A check ``at`` seconds after `START`."""
    when = START + timedelta(seconds=at)
    reason = "" if outcome is Outcome.OK else "3 of 9 values are wrong"
    return Check(of or workload(), H100, variant(**values), driver, outcome, 0.02, reason, 0.5, when)


# Defaults of `other_operators` and `SpmmProblem` that schema 0006 left out.
UNWRITTEN = "batch", "item_values"


def columns_of_before(problem: Problem) -> dict[str, str]:
    """A problem's row as schema 0006 had it: with all fields but those that came last."""
    distinct = problem.distinct()
    fields = {n: v for n, v in problem.to_dict().items() if n in distinct or n not in UNWRITTEN}
    text = canonical(fields)
    return {"fields": text, "digest": problem_digest(problem.operator, text)}
