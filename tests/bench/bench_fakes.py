"""Baselines that compute with SciPy on the host, and fail on request; cases small enough for them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from patience import LONG

from sparsegen.backends import emulator_device
from sparsegen.backends.executor import Executor
from sparsegen.bench.baseline.baseline import (
    Baseline,
    Explorer,
    Implementation,
    MissingError,
    UnsupportedError,
)
from sparsegen.bench.baseline.inputs import Inputs
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Independent
from sparsegen.bench.results.results import Kind, Protocol
from sparsegen.bench.run.request import Request
from sparsegen.bench.run.runner import Limits
from sparsegen.kernels import family
from sparsegen.kernels.base import Array, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.features import Features
from sparsegen.measure.l2 import L2
from sparsegen.operators import DType, Layout, Problem, SpmmProblem

DEVICE = emulator_device()
CRAWLING = "crawling"
LIMITS = Limits(start=LONG, prepare=LONG, rank=LONG, check=LONG, round=LONG)


@dataclass(frozen=True)
class Fake(Baseline):
    """A baseline that behaves as it is called.

    Attributes:
        when: what goes wrong, if anything.
        log: every call adds the name to it.
    """

    name: str
    when: str = "never"
    log: Path | None = None
    kind: Kind = field(default=Kind.SPARSE)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        return None if isinstance(problem, SpmmProblem) else "it computes spmm"

    def runs_on(self, device: Device) -> bool:
        return self.when != "other device"

    def open(self, executor: Executor) -> Mapping[str, str]:
        if self.when == "not installed":
            raise MissingError("nowhere to be found: pip install it")
        if self.when == "dies at start":
            os.kill(os.getpid(), signal.SIGKILL)
        return {self.name: "1.0"}

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        if self.when == "unsupported":
            raise UnsupportedError("not this one")
        if self.when == "raises":
            raise RuntimeError("out of tea")
        yield self._implementation(bench, "slow and right", delay=0.01, is_wrong=False)
        if self.when == "one implementation wrong":
            yield self._implementation(bench, "fast and wrong", delay=0.0, is_wrong=True)
        if self.when == "one implementation crawls":
            yield self._implementation(bench, CRAWLING, delay=0.2, is_wrong=False)

    def _implementation(
        self, bench: Workbench, detail: str, *, delay: float, is_wrong: bool
    ) -> Implementation:
        problem = bench.problem_as(SpmmProblem)
        b = problem.dtype.from_storage(bench.operand("b")).astype(np.float64)
        b = b if problem.layout is Layout.ROW else b.T
        c = bench.matrix.to_scipy().astype(np.float64) @ b
        exact = problem.dtype.to_storage(c if problem.layout is Layout.ROW else c.T)
        held: list[Array] = [exact]

        def run() -> None:
            time.sleep(delay)
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(f"{detail if detail == CRAWLING else self.name}\n")
            if self.when == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.when == "hangs" and problem.n == 1:
                subprocess.Popen(["sleep", "321.5"])
                time.sleep(3600)
            if self.when == "writes nothing":
                return
            held[0] = exact.copy()
            if self.when == "wrong" or is_wrong:
                held[0].reshape(-1)[-1] += 1

        def clear() -> None:
            held[0] = np.full_like(exact, np.nan)

        return Implementation(detail, run, clear, lambda: held[0], 1.5, 640)


TRIALS = {
    behaviour: family("csr_spmm").config(tile_n=tile_n)
    for behaviour, tile_n in (("right", 32), ("slow", 64), ("wrong", 16), ("crashes", 128), ("hangs", 8))
}


@dataclass(frozen=True)
class Trials(Explorer):
    """An explorer of made-up configs, each with its behaviour."""

    name: str
    behaviours: tuple[str, ...] = tuple(TRIALS)
    kind: Kind = field(default=Kind.OURS)

    def why_not(self, problem: Problem, features: Features) -> str | None:
        return None

    def runs_on(self, device: Device) -> bool:
        return True

    def open(self, executor: Executor) -> Mapping[str, str]:
        return {}

    def configs(self, inputs: Inputs, device: Device, db: str | None) -> Sequence[Config]:
        return [TRIALS[behaviour] for behaviour in self.behaviours]

    def implementation(self, bench: Workbench, config: Config) -> Implementation:
        [behaviour] = [name for name, known in TRIALS.items() if known == config]
        fake = Fake(self.name, "crashes" if behaviour == "crashes" else "never")
        delay = 3600.0 if behaviour == "hangs" else 0.05 if behaviour == "slow" else 0.0
        implementation = fake._implementation(bench, behaviour, delay=delay, is_wrong=behaviour == "wrong")
        return replace(implementation, variant=config)


def cases(count: int = 2, suite: str = "tiny") -> list[Case]:
    """SpMM in float32, of equal patterns but growing n."""
    return [
        Case(
            suite=suite,
            name=f"32x24x{n}",
            problem=SpmmProblem(32, 24, n),
            dtypes=(DType.FLOAT32,),
            pattern=Independent(32, 24, 0.5),
            source="made up",
        )
        for n in range(1, count + 1)
    ]


def request(*baselines: Baseline, count: int = 2, **values: object) -> Request:
    """A request of these baselines for tiny cases; ``values`` replace its fields."""
    fields = {
        "cases": cases(count),
        "baselines": baselines,
        "device": DEVICE,
        "protocol": Protocol(L2.COLD, rounds=2, samples=2, tune="off"),
        "limits": LIMITS,
        "command": "sparsegen bench --suite tiny",
    }
    return Request(**(fields | values))  # type: ignore[arg-type]
