"""What the benchmark scripts share: workloads, the side-by-side measurement, where results go."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen.backends import toolchain
from sparsegen.backends.executor import Executor
from sparsegen.kernels import family as family_named
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure import baselines
from sparsegen.measure.clock import Clock
from sparsegen.operators import DType, SpmmProblem
from sparsegen.plan.binding import BoundVariant, bind_variant
from sparsegen.verify.variants import UNWRITTEN
from sparsegen.verify.verifier import verifier

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Workload:
    """One row of a list: a matrix of uniform random sparsity and a dense operand."""

    name: str
    m: int
    k: int
    n: int
    sparsity: float

    def __str__(self) -> str:
        return f"{self.m}x{self.k}x{self.n} {self.sparsity:.2f}"

    def matrix(self, seed: int = 0) -> CsrMatrix:
        return random_uniform(self.m, self.k, 1 - self.sparsity, seed)

    def problem(self, dtype: DType) -> SpmmProblem:
        return SpmmProblem(self.m, self.k, self.n, dtype)


def result_folder(device: Device) -> Path:
    """``SPARSEGEN_RESULTS`` if set, else benchmarks/results/<device>."""
    folder = Path(os.environ.get("SPARSEGEN_RESULTS") or HERE / "results" / device.key)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_results(device: Device, name: str, rows: Any, **facts: Any) -> Path:
    """Raw output as JSON with device, versions, command and date."""
    path = result_folder(device) / f"{name}.json"
    document = {
        "benchmark": name,
        "command": " ".join(["python -m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "device": device.name,
        "toolchain": toolchain(device).fingerprint,
        "driver": driver_version(),
        "python": platform.python_version(),
        **facts,
        "rows": rows,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def known_rows(device: Device, name: str, key: str) -> dict[str, dict[str, Any]]:
    """The rows that a result file holds, by one of their fields; none if there is no file."""
    path = result_folder(device) / f"{name}.json"
    return {row[key]: row for row in json.loads(path.read_text())["rows"]} if path.is_file() else {}


def driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def geometric_mean(ratios: Iterable[float]) -> float:
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def times_in_turn(
    executor: Executor,
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 5,
    samples: int = 20,
    lead: Callable[[], Any] | None = None,
) -> dict[str, float]:
    """Median microseconds of each call, L2 cold, measured in turn A B C A B C; ``lead`` as in `Clock.time`."""
    clock = Clock(executor)
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name] += clock.time(call, samples=samples, warmup=2, lead=lead).samples_us
    return {name: float(np.median(times)) for name, times in taken.items()}


class Bench:
    """Variants of one problem, run, checked and timed side by side with cuSPARSE and cuBLAS in one process."""

    def __init__(self, matrix: CsrMatrix, problem: SpmmProblem, device: Device) -> None:
        self.matrix, self.problem, self.device = matrix, problem, device
        self.vendors = baselines.Session(matrix, problem, device)
        self.executor: Executor = self.vendors.executor
        operands = problem.random_operands(np.random.default_rng(7), matrix.nnz)
        self._verifier = verifier(problem, matrix, operands, self.executor)
        self.inputs = [self.executor.upload(operands[spec.name]) for spec in problem.operands(matrix.nnz)]
        self.output = self.executor.allocate(problem.result(matrix.nnz).nbytes)
        self._kept: list[BoundVariant] = []

    def variant(self, family: str, config: Mapping[str, Any]) -> Callable[[], None]:
        """A verified call of a variant; raises ValueError if its result is wrong."""
        prepared = bind_variant(
            family_named(family).config(**config),
            self.problem,
            self.matrix,
            self.executor,
            toolchain(self.device),
        )
        self._kept.append(prepared)
        bound = prepared.bound()
        addresses = [buffer.address for buffer in (*self.inputs, self.output)]
        self.executor.fill(self.output, UNWRITTEN)
        bound(0, *addresses)
        self.executor.synchronize()
        worst = self._verifier.worst_error(self.output)
        if not worst <= 1:
            raise ValueError(f"{family} {config} is wrong: {worst:g} times its error bound")
        return lambda: bound(0, *addresses)

    def times(
        self, calls: Mapping[str, Callable[[], None]], *, rounds: int = 5, samples: int = 20
    ) -> dict[str, float]:
        """Median microseconds of each call, L2 cold, measured in turn A B C A B C."""
        return times_in_turn(self.executor, calls, rounds=rounds, samples=samples)

    def vendor_calls(self) -> dict[str, Callable[[], None]]:
        """The fastest right implementation of cuBLAS and of cuSPARSE, found by a first measurement."""
        return {call.contender: call.run for call in self.vendors.fastest()}

    def forget(self) -> None:
        """Free the variants made so far, whose calls are not to be used any more."""
        self._kept.clear()

    def close(self) -> None:
        self.forget()
        self.vendors.close()
