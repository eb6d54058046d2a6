"""Bundles and results of jobs, genuine ones and those of an attacker."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sparsegen import backends
from sparsegen.errors import DeviceUnavailableError
from sparsegen.kernels.base import Device
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import SpmmProblem
from sparsegen.tuning.jobs.bundle import MANIFEST, Bundle
from sparsegen.tuning.jobs.export import Exported, Wanted, export_job
from sparsegen.tuning.jobs.job import find_target
from sparsegen.tuning.jobs.results import add_result, read_verified
from sparsegen.tuning_db.conversion import described
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.store import Added, Store

COMPILER = "a compiler elsewhere"
NOTHING_KNOWN = MemoryLayer([], [])
GPU = Device("some-gpu-sm90", "Some GPU", "cuda", (9, 0), 132, 232448, 233472, 50 << 20)
MATRICES = (random_uniform(2048, 2048, 0.1, seed=1), random_uniform(96, 64, 0.2, seed=2))


def wanted(*, with_values: bool = False) -> list[Wanted]:
    """Two workloads; the first one is large enough for its time to have a lower bound."""
    return [
        Wanted(m, SpmmProblem(*m.shape, n), with_values) for m, n in zip(MATRICES, (4096, 32), strict=True)
    ]


def sources_alone(path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Exported:
    """A bundle for CUDA devices, made where there is no compiler for them: quick, and it can run nowhere here."""

    def no_toolchain(device: Device) -> Any:
        raise DeviceUnavailableError("no compiler here")

    with monkeypatch.context() as patched:
        patched.setattr(backends, "toolchain", no_toolchain)
        target = find_target("sm_90", NOTHING_KNOWN)
        return export_job(
            wanted(**options), path, target=target, known=NOTHING_KNOWN, candidates=4, families=["csr_spmm"]
        )


def head(bundle: Bundle, **changes: Any) -> dict[str, Any]:
    return {
        "format": "sparsegen-job-result",
        "version": 1,
        "job": bundle.digest,
        "device": described(GPU),
        "compiler": COMPILER,
        "driver": "580.1",
        "started_at": datetime.now(UTC).isoformat(),
        **changes,
    }


def record(bundle: Bundle, task: int = 0, candidate: int = 0, **changes: Any) -> dict[str, Any]:
    """Makes a measurement of one of the bundle's candidates."""
    chosen = bundle.job.tasks[task].candidates[candidate]
    digest = hashlib.sha256(f"{bundle.source(chosen.source)}\0{COMPILER}".encode()).hexdigest()
    return {
        "workload": task,
        "device": 0,
        "family": chosen.config.family_name,
        "config": chosen.config.to_dict(),
        "source_digest": digest,
        "outcome": "ok",
        "sample": sample(),
        "worst_error": 0.5,
        "registers": 40,
        "final": False,
        "measured_at": datetime.now(UTC).isoformat(),
        **changes,
    }


def sample(median_us: float = 500.0, **changes: Any) -> dict[str, Any]:
    times = {"low_us": median_us * 0.98, "median_us": median_us, "high_us": median_us * 1.05}
    return {**times, "count": 30, "cold": True, "clock_mhz": 1980, "throttle_reasons": 0, **changes}


def write_result(path: Path, first: Mapping[str, Any], *records: Mapping[str, Any]) -> Path:
    lines = [first, *({"measurement": r} if "family" in r else r for r in records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def import_result(store: Store, result: Path, bundle: Path) -> Added:
    """Read a result against its bundle, and add what it holds."""
    return add_result(store, read_verified(result, bundle), result)


Files = dict[str, bytes]


def rebuilt(path: Path, out: Path, change: Callable[[Files], None], *, mend: bool = True) -> Path:
    """A copy of a bundle with other files.

    Args:
        mend: give the manifest the digests of what is there now.
    """
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop(MANIFEST))
    change(files)
    if mend:
        manifest["files"] = {
            name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        }
    files[MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out
