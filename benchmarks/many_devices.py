"""Speedup of tuning a list of workloads on several devices over one of them: ``python -m benchmarks.many_devices``.

The same searches run on all devices and then on the first alone, each time into an empty database. Printed are the
seconds of both, their ratio, and how the winners' times compare. Without GPUs, ``--sleep`` makes emulators busy for a
made-up time before every timed call, which shows how searches are dealt and says nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.backends.emulator.executor import EmulatorExecutor
from sparsegen.bench.run.state import state
from sparsegen.kernels.base import Device
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import Problem, SpmmProblem
from sparsegen.system.publish import publish_text
from sparsegen.tuning.engines.dealing import Outcome, Unwatched, deal
from sparsegen.tuning.engines.engine import OPEN_BACKEND, Request, SetUp, Task
from sparsegen.tuning.engines.local import LocalEngine
from sparsegen.tuning.report import Budget
from sparsegen.tuning.tuner import Backend
from sparsegen.tuning_db.store import Store

SHAPES = (
    (512, 512),
    (2048, 512),
    (512, 2048),
    (1024, 1024),
    (4096, 1024),
    (1024, 4096),
    (2048, 2048),
    (3072, 768),
)
DENSITIES, COLUMNS = (0.02, 0.05, 0.1, 0.2), (64, 256)  # 64 workloads
SMALL = (64, 48)  # what sleeping emulators multiply: one source for all
SLEEP_SECONDS = 0.03


class Sleeping(EmulatorExecutor):
    """An emulator that is busy for a while before each timed call; the times themselves are the emulator's."""

    def overwrite_l2(self) -> None:
        time.sleep(SLEEP_SECONDS)


def open_sleeping(device: Device) -> Sleeping:
    """Imported by name in the measuring process."""
    return Sleeping(threads=1, device=device)


def sleeping_backend(device: Device, problem: Problem, *, baselines: bool, searches: int) -> Backend:
    """Imported by name in the searching process."""
    own = Backend.of(device, problem, baselines=False, searches=searches)
    return replace(own, open_executor="benchmarks.many_devices:open_sleeping")


def tasks(model: Device, count: int, budget: Budget, *, sleeping: bool) -> list[Task]:
    """Searches on as many matrices; of the list's shapes, or all small."""
    listed = [(shape, density, n) for density in DENSITIES for n in COLUMNS for shape in SHAPES]
    found = []
    for seed in range(count):
        (m, k), density, n = (SMALL, 0.2, 8) if sleeping else listed[seed % len(listed)]
        request = Request(
            SpmmProblem(m, k, n), budget, families=("csr_spmm",) if sleeping else None, baselines=False
        )
        found.append(
            Task(f"{m} x {k} x {n} #{seed}", model, request, partial(random_uniform, m, k, density, seed))
        )
    return found


class Told(Unwatched):
    """Says on stderr how far it is, so that a run that was cut short has told something."""

    def __init__(self) -> None:
        self._count = self._ended = 0
        self._began = time.monotonic()

    def planned(self, count: int) -> None:
        self._count = count

    def ended(self, number: int, task: Task, outcome: Outcome) -> None:
        self._ended += 1
        seconds = time.monotonic() - self._began
        print(
            f"[{self._ended} of {self._count}, {seconds:.1f} s] {task.name} on {outcome.where}",
            file=sys.stderr,
        )


def tuned(
    devices: Sequence[Device], listed: Sequence[Task], place: Path, backend: str
) -> tuple[float, list[Outcome]]:
    """Seconds that the searches took on these devices, the start of their processes included."""
    Store.open(place).close()
    began = time.monotonic()
    with closing(LocalEngine(devices, SetUp(str(place), backend))) as engine:
        outcomes = deal(listed, engine, watch=Told())
    return time.monotonic() - began, outcomes


def winners(outcomes: Sequence[Outcome]) -> list[float]:
    """The winner's microseconds of each search; NaN where there is none."""
    found = []
    for outcome in outcomes:
        result = outcome.found.result if outcome.found else None
        sample = result.winner.sample if result else None
        found.append(sample.median_us if sample else math.nan)
    return found


def compared(devices: Sequence[Device], count: int, budget: Budget, *, sleeping: bool) -> dict[str, Any]:
    """The searches on all devices against the same on the first."""
    backend = "benchmarks.many_devices:sleeping_backend" if sleeping else OPEN_BACKEND
    listed = tasks(devices[0], count, budget, sleeping=sleeping)
    with tempfile.TemporaryDirectory() as folder:
        # One search beforehand: what is built or compiled once is nobody's gain.
        tuned(devices[:1], listed[:1], Path(folder) / "first.db", backend)
        seconds_all, all_of_them = tuned(devices, listed, Path(folder) / "all.db", backend)
        seconds_one, alone = tuned(devices[:1], listed, Path(folder) / "one.db", backend)
    ratios = np.log(np.array(winners(all_of_them)) / np.array(winners(alone)))
    known = ratios[np.isfinite(ratios)]
    low, middle, high = np.exp(np.percentile(known, [10, 50, 90])) if known.size else (math.nan,) * 3
    return {
        "device": devices[0].key,
        "commit": state(),
        "devices": len(devices),
        "workloads": count,
        "sleeping": sleeping,
        "seconds_on_one": round(seconds_one, 1),
        "seconds_on_all": round(seconds_all, 1),
        "times_faster": round(seconds_one / seconds_all, 2),
        "searches_on_each": dict(Counter(o.where for o in all_of_them)),
        "failed": sum(o.error is not None for o in (*all_of_them, *alone)),
        "winner_all_over_one": {
            "geomean": round(float(np.exp(known.mean())), 4) if known.size else None,
            "p10": round(float(low), 4),
            "median": round(float(middle), 4),
            "p90": round(float(high), 4),
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default="all", help="as for sparsegen tune-model; of one model")
    parser.add_argument("--workloads", type=int, default=64)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds of each search")
    parser.add_argument("--trials", type=int, help="variants of each search, instead of seconds")
    parser.add_argument("--sleep", action="store_true", help="emulators that sleep; takes --trials")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args(arguments)
    budget = Budget(trials=given.trials) if given.trials else Budget(seconds=given.budget)
    found = compared(backends.find_devices(given.devices), given.workloads, budget, sleeping=given.sleep)
    text = json.dumps(found, indent=2)
    print(text)
    if given.output is not None:
        publish_text(given.output, text + "\n")


if __name__ == "__main__":
    # By its full name: processes import what they need from there, and a `__main__` they cannot.
    from benchmarks.many_devices import main as run

    run()
