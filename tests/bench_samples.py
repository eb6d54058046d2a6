"""Synthetic results of a bench run: true to the schema, the times made up."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

from sparsegen.bench.results.results import (
    TUNED,
    UNTUNED,
    BenchDevice,
    Cell,
    Floor,
    Invocation,
    Kind,
    Protocol,
    Rates,
    Results,
    Row,
    Status,
    Timing,
)
from sparsegen.kernels import family
from sparsegen.matrix.features import Features
from sparsegen.measure.l2 import L2
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import DType, SpmmProblem

DEVICE = BenchDevice("made-up-sm90", "Made-up GPU", "cuda", (9, 0), 132, 50 * 2**20, "580.1")
FAMILY = family("csr_spmm")
VARIANT = FAMILY.config()


def timing(us: float, spread: float = 0.02, rounds: int = 5) -> Timing:
    """Percentiles and rounds within ± spread of the median."""
    return Timing(
        us=us,
        low_us=us * (1 - spread),
        high_us=us * (1 + spread),
        samples=100,
        rounds_us=tuple(us * (1 + spread * (i - rounds // 2) / rounds) for i in range(rounds)),
        clock_mhz=1980,
        throttle_reasons=0,
    )


def cell(baseline: str, kind: Kind, us: float, dtype: DType = DType.FLOAT32, spread: float = 0.02) -> Cell:
    return Cell(
        baseline=baseline,
        kind=kind,
        arithmetic=Arithmetic(dtype.value),
        status=Status.OK,
        detail="made up",
        variant=VARIANT if kind is Kind.OURS else None,
        timing=timing(us, spread),
        preparation_ms=1.5,
        memory_bytes=4096,
        worst_error=0.25,
    )


def row(
    case: str = "512x512x64 .90",
    *,
    suite: str = "made-up",
    m: int = 512,
    k: int = 512,
    n: int = 64,
    density: float = 0.1,
    dtype: DType = DType.FLOAT32,
    ours: float = 5.0,
    untuned: float = 6.0,
    dense: float = 10.0,
    sparse: float = 8.0,
    tag: str = "a",
) -> Row:
    """A row with our two baselines, dense, TF32, cuSPARSE, and a baseline that is missing."""
    nnz = round(m * k * density)
    problem = SpmmProblem(m, k, n, dtype)
    cost = problem.cost(nnz)
    return Row(
        suite=suite,
        case=case,
        problem=problem,
        source="made up",
        nnz=nnz,
        fingerprint=hashlib.sha256(tag.encode()).hexdigest(),
        features=Features(m, k, nnz, nnz / m, 0.2, round(2 * nnz / m), density),
        floor=Floor(cost.bytes, cost.flop, cost.bytes / 2.5e6, cost.flop / 5e7),
        cells=(
            cell(TUNED, Kind.OURS, ours, dtype),
            cell(UNTUNED, Kind.OURS, untuned, dtype),
            cell("cublas", Kind.DENSE, dense, dtype),
            replace(cell("cublas-tf32", Kind.DENSE, dense / 4), arithmetic=Arithmetic.TF32),
            cell("cusparse-csr", Kind.SPARSE, sparse, dtype),
            Cell(
                "torch-bsr",
                Kind.SPARSE,
                Arithmetic(dtype.value),
                Status.MISSING,
                reason="PyTorch is not installed",
            ),
        ),
    )


def results(*rows: Row) -> Results:
    return Results(
        device=DEVICE,
        versions={"sparsegen": "0.1.0", "cublas": "130100"},
        protocol=Protocol(L2.COLD, rounds=5, samples=20, tune="quick"),
        rates=Rates(2.5e12, {Arithmetic.FLOAT32: 5e13, Arithmetic.FLOAT16: 7e14}, 2.2),
        invocations=(
            Invocation("sparsegen bench --suite made-up", datetime(2026, 1, 2, 3, 4, tzinfo=UTC), 12.5),
        ),
        rows=rows or (row(),),
    )


def sweep() -> Results:
    """Two shapes over four sparsities in two types; ours overtakes dense between 70 and 90 % of zeros."""
    rows = []
    for dtype in (DType.FLOAT32, DType.FLOAT16):
        for m in (512, 2048):
            for n in (32, 256):
                for density, ours in ((0.5, 20.0), (0.3, 12.0), (0.1, 5.0), (0.05, 3.0)):
                    scale = m / 512 * n / 32
                    rows.append(
                        row(
                            f"{m}x512x{n} {1 - density:.2f}",
                            suite="made-up" if m == 512 else "other",
                            m=m,
                            n=n,
                            density=density,
                            dtype=dtype,
                            ours=ours * scale,
                            untuned=ours * scale * 1.1,
                            dense=10.0 * scale,
                            sparse=ours * scale * 1.4,
                            tag=f"{m} {density}",
                        )
                    )
    return results(*rows)
