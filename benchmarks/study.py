"""Shared parts of the studies: configs side by side in one process, PyTorch's place, and the file for their rows."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import backends
from sparsegen.backends import toolchain
from sparsegen.backends.executor import Executor
from sparsegen.bench.results.result_file import LARGEST_FILE
from sparsegen.bench.results.summary import geometric
from sparsegen.bench.run.state import state
from sparsegen.errors import ResultsError, SparsegenError
from sparsegen.kernels import family as family_named
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.measure.clock import Clock, Timing
from sparsegen.measure.l2 import L2
from sparsegen.measure.race import in_turn, on_default_stream
from sparsegen.operators import DType, Problem, SpmmProblem
from sparsegen.plan.binding import BoundVariant, bind_variant
from sparsegen.plan.executors import shared_executor
from sparsegen.plan.variants import compile_variant
from sparsegen.system.numpy_types import Array
from sparsegen.system.publish import publish_text
from sparsegen.tuning_db.json_reader import read_text
from sparsegen.tuning_db.records import Called
from sparsegen.verify.variants import UNWRITTEN
from sparsegen.verify.verifier import verifier

HERE = Path(__file__).parent
ROUNDS = 15  # of calls in turn
Rows = list[dict[str, Any]]


def times_in_turn(
    runs: Sequence[Callable[[], Any]],
    *,
    called: Called = Called.DEVICE,
    l2: L2 = L2.WARM,
    rounds: int = ROUNDS,
    calls: int = 1,
) -> list[float]:
    """Median microseconds of calls of PyTorch on the first GPU, in turn; see `sparsegen.measure.race.in_turn`."""
    executor = shared_executor(backends.find_device("cuda"))
    with on_default_stream(executor):
        return in_turn(runs, executor, called, l2, rounds=rounds, samples=1, calls=calls)


class WrongResultError(SparsegenError):
    """A result that is outside of its error bound; such a time is not to be published."""


@dataclass(frozen=True)
class Workload:
    """A matrix of uniform random sparsity and a dense operand."""

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


def result_file(device: Device, name: str) -> Path:
    """Returns a result's path: in ``SPARSEGEN_RESULTS`` if set, else in benchmarks/results/<device>."""
    return Path(os.environ.get("SPARSEGEN_RESULTS") or HERE / "results" / device.key) / f"{name}.json.xz"


def write_results(device: Device, name: str, rows: Rows, **facts: Any) -> Path:
    """Raw output as compressed JSON, replaced as a whole: device, driver, versions, command; of each row the state of
    the source that measured it and when, where it does not say so already.
    """
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    for row in rows:
        row.setdefault("state", state())
        row.setdefault("measured", now)
    path = result_file(device, name)
    document = {
        "benchmark": name,
        "command": " ".join(["python -m", _module(), *sys.argv[1:]]),
        "date": now[:10],
        "device": device.name,
        "toolchain": toolchain(device).fingerprint,
        "driver": _driver(device),
        "python": platform.python_version(),
        **facts,
        "rows": rows,
    }
    publish_text(path, json.dumps(document, indent=1) + "\n")
    return path


def _module() -> str:
    """The name of the module that runs."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec is not None else f"benchmarks.{Path(sys.argv[0]).stem}"


def known_rows(device: Device, name: str, key: str) -> dict[str, dict[str, Any]]:
    """The rows that a result file holds, by one of their fields; none if there is no file."""
    path = result_file(device, name)
    return {row[key]: row for row in rows_of(path)}


def read_document(path: Path) -> dict[str, Any]:
    """The document of a result file.

    Raises:
        ResultsError: it cannot be read, or is damaged.
    """
    return dict(json.loads(read_text(path, LARGEST_FILE, ResultsError)))


def rows_of(path: Path) -> Rows:
    """The rows of a study's file; none where there is no such file."""
    return list(read_document(path)["rows"]) if path.is_file() else []


def geometric_mean(ratios: Iterable[float]) -> float:
    return geometric(list(ratios)).value


def torch_place(device: Device) -> Any:
    """Returns the device of PyTorch's tensors for this device.

    Raises:
        SparsegenError: PyTorch is not installed, or sees no GPU.
    """
    try:
        import torch
    except ImportError as error:
        raise SparsegenError("this study needs PyTorch: pip install torch") from error
    if device.backend != "cuda":
        os.environ["SPARSEGEN_DEVICE"] = device.backend  # our kernels, not PyTorch's own products
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SparsegenError("PyTorch sees no GPU: install a build for CUDA")
    torch.cuda.set_device(device.index)
    return torch.device("cuda", device.index)


class SideBySide:
    """Variants of one problem, run, checked and timed in turn in one process."""

    def __init__(
        self, matrix: CsrMatrix, problem: Problem, device: Device, operands: Mapping[str, Array] | None = None
    ) -> None:
        self.matrix, self.problem, self.device = matrix, problem, device
        self.executor: Executor = backends.open_executor(device)
        self._clock = Clock(self.executor)
        operands = operands or problem.random_operands(np.random.default_rng(7), matrix.nnz)
        self._verifier = verifier(problem, matrix, operands, self.executor)
        self.inputs = [self.executor.upload(operands[spec.name]) for spec in problem.operands(matrix.nnz)]
        self.output = self.executor.allocate(problem.result(matrix.nnz).nbytes)
        self._kept: list[BoundVariant] = []

    def variant(self, family: str, config: Mapping[str, Any]) -> Callable[[], None]:
        """A call of a variant.

        Raises:
            WrongResultError: its result is wrong.
        """
        chosen = family_named(family).config(**config)
        prepared = bind_variant(chosen, self.problem, self.matrix, self.executor, toolchain(self.device))
        self._kept.append(prepared)
        bound = prepared.bound()
        addresses = [buffer.address for buffer in (*self.inputs, self.output)]
        self.executor.fill(self.output, UNWRITTEN)
        bound(0, *addresses)
        self.executor.synchronize()
        worst = self._verifier.worst_error(self.output)
        if not worst <= 1:
            raise WrongResultError(f"{family} {config} is wrong: {worst:g} times its error bound")
        return lambda: bound(0, *addresses)

    def compile(self, configs: Iterable[Config]) -> None:
        """Compile variants on all cores, so that `variant` finds them in the cache; what fails there fails again."""

        def compiled(config: Config) -> None:
            with suppress(SparsegenError):
                compile_variant(config, self.problem, toolchain(self.device))

        with ThreadPoolExecutor() as pool:
            list(pool.map(compiled, configs))

    def times(
        self, calls: Mapping[str, Callable[[], None]], *, rounds: int = 5, samples: int = 20
    ) -> dict[str, float]:
        """Median microseconds of each call, L2 cold, measured in turn A B C A B C."""
        return {
            name: float(np.median([us for timing in timings for us in timing.samples_us]))
            for name, timings in self.timings(calls, rounds=rounds, samples=samples).items()
        }

    def timings(
        self, calls: Mapping[str, Callable[[], None]], *, rounds: int, samples: int
    ) -> dict[str, list[Timing]]:
        """Timings of each call, one for each round; L2 cold, measured in turn."""
        taken: dict[str, list[Timing]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                taken[name].append(self._clock.time(call, samples=samples, warmup=2))
        return taken

    def close(self) -> None:
        self._kept.clear()
        self.executor.close()


def _driver(device: Device) -> str:
    if device.backend != "cuda":
        return ""
    from sparsegen.backends.cuda import runtime

    return runtime.driver_version()
