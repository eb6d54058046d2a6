"""The race: ours and the other way, timed in turn by the one clock where they are first needed; a probe records it.

`prepare` races a variant and the dense product where estimates do not tell which is faster; layers of PyTorch race
their kernels and PyTorch's own, attention its fused kernel and three steps, conversion a whole model with some layers
sparse and without (`sparsegen.measure.decision`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sparsegen import backends
from sparsegen.backends.executor import Executor
from sparsegen.errors import DatabaseError, LaunchError
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.clock import Call, Clock
from sparsegen.measure.l2 import L2
from sparsegen.operators import Launcher, Problem, TensorSpec, WordType
from sparsegen.plan.arrays import numpy_type
from sparsegen.tuning_db.records import Called, MeasuredAs, Probe, Task, Variant, Workload

if TYPE_CHECKING:
    from sparsegen.tuning_db.store import Store

log = logging.getLogger(__name__)

ROUNDS = 3
SAMPLES = 3  # samples of each in a round
SECONDS = 0.004  # upper limit for the samples of each in a round
SOME_NUMBERS = 1 << 16  # random ones, of which operands are made again and again
L2_OF = {MeasuredAs.COLD: L2.COLD, MeasuredAs.CLEAN: L2.CLEAN, MeasuredAs.WARM: L2.WARM}

Pair = tuple[Call, Call]  # ours, and the other way

# Probes of this process that no database could take, so that each is made once.
_unrecorded: dict[Race, Probe] = {}


@dataclass(frozen=True, slots=True)
class Race:
    """Conditions of a race.

    Attributes:
        variant: our variant; with several launches that of the first.
        context: see `Probe`.
    """

    workload: Workload
    device: Device
    variant: Variant
    kind: MeasuredAs = MeasuredAs.COLD
    called: Called = Called.DEVICE
    task: Task = Task.PRODUCT
    context: str = ""

    def run(self, enter: Callable[[Executor], Pair], location: str, calls: int = 1) -> Probe:
        """Time both, and write a probe of it to the database.

        Args:
            enter: makes the two calls, whose work goes to PyTorch's current stream or to the default one.
            location: place of the database. Records that it refuses are kept in this process.
            calls: see `in_turn`.

        Raises:
            LaunchError: a call failed, or there is no memory for the operands.
        """
        if self in _unrecorded:
            return _unrecorded[self]
        # An executor for the moment: what it overwrites the L2 with is four times as large.
        with closing(backends.open_executor(self.device)) as executor:
            times = pair_us(enter, executor, self.called, L2_OF[self.kind], calls)
        return self.ended(times, location, ROUNDS * SAMPLES)

    def ended(self, times: tuple[float, float], location: str, count: int) -> Probe:
        """Returns the probe of the medians of both, written to the database or kept in this process.

        Args:
            count: samples of each.
        """
        driver = backends.driver_version(self.device)
        probe = Probe(
            *(self.workload, self.device, self.variant, *times, count, self.kind, driver),
            called=self.called,
            task=self.task,
            context=self.context,
        )
        if not record(location, lambda store: store.add_probe(probe)):
            _unrecorded[self] = probe
        return probe


def pair_us(
    enter: Callable[[Executor], Pair], executor: Executor, called: Called, l2: L2, calls: int = 1
) -> tuple[float, float]:
    """Median microseconds of the two calls that ``enter`` makes; see `in_turn` and `Race.run`."""
    try:
        with on_default_stream(executor):
            ours, dense = in_turn(enter(executor), executor, called, l2, calls=calls)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # PyTorch's class
            raise
        raise LaunchError(f"there is no memory for operands to time: {error}") from error
    return ours, dense


def in_turn(
    runs: Sequence[Call],
    executor: Executor,
    called: Called = Called.DEVICE,
    l2: L2 = L2.COLD,
    *,
    rounds: int = ROUNDS,
    samples: int = SAMPLES,
    calls: int = 1,
    seconds: float = SECONDS,
    warmup: int = 1,
    before: Sequence[Callable[[], None]] = (),
    is_over: Callable[[Sequence[Sequence[float]]], bool] = lambda times: False,
) -> list[float]:
    """Median microseconds of each of several calls in the default stream, taken in turn.

    Args:
        called: behind a busy queue each is enqueued while the device does something else, so that its own time alone
            counts; from Python the device is idle.
        l2: state of the second-level cache before each call.
        calls: number of consecutive calls in a sample, if they come from Python.
        seconds: upper limit for each one's samples in a round, but for the first of them.
        warmup: calls ahead of each one's samples in a round.
        before: for each call what its rounds begin with, untimed.
        is_over: asked after each round with the samples of each, whether what is known suffices.
    """
    clock = Clock(executor)
    leads = [clock.lead_for(run) if called is Called.DEVICE else None for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, lead, ready, taken in zip(runs, leads, before or [_nothing] * len(runs), times, strict=True):
            ready()
            if called is Called.DEVICE:
                timing = clock.time(run, samples=samples, l2=l2, budget_s=seconds, warmup=warmup, lead=lead)
            else:
                timing = clock.time_from_host(
                    run, samples=samples, calls=calls, l2=l2, budget_s=seconds, warmup=warmup
                )
            taken += timing.samples_us
        if is_over(times):
            break
    executor.synchronize()
    return [float(np.median(taken)) for taken in times]


def _nothing() -> None:
    """Readies nothing."""


@contextmanager
def on_default_stream(executor: Executor) -> Iterator[None]:
    """Lets PyTorch's work on the executor's GPU go to the default stream, where the clock's events are."""
    torch = sys.modules.get("torch")
    with executor.entered():
        if torch is None or executor.device.backend != "cuda":
            yield
            return
        place = torch.device("cuda", executor.device.index)
        torch.cuda.synchronize(place)
        with torch.cuda.stream(torch.cuda.default_stream(place)):
            yield
        torch.cuda.synchronize(place)


def on_operands(
    sparse: Launcher, dense: Launcher, problem: Problem, matrix: CsrMatrix
) -> Callable[[Executor], Pair]:
    """Makes the calls of a variant and of the dense product, on random operands."""
    return lambda executor: (
        _call(sparse, problem, matrix, executor),
        _call(dense, problem, matrix, executor),
    )


def _call(
    launcher: Launcher, problem: Problem, matrix: CsrMatrix, executor: Executor
) -> Callable[[], object]:
    """A launch on operands of its own, tensors on a GPU, without those that calls need not bring."""
    specs, result = problem.operands(matrix.nnz), problem.result(matrix.nnz)
    rng = np.random.default_rng(0)
    if executor.device.backend != "cuda":
        arrays = tuple(
            None
            if spec.name in launcher.kept
            else problem.random_operand(spec, rng)
            if isinstance(spec.dtype, WordType)
            else rng.standard_normal(spec.shape).astype(numpy_type(spec.dtype))
            for spec in specs
        )
        return lambda: launcher.run(arrays, None, None)
    import torch

    place = torch.device("cuda", executor.device.index)

    def tensor(spec: TensorSpec) -> torch.Tensor:
        if isinstance(spec.dtype, WordType):
            return torch.from_numpy(problem.random_operand(spec, rng)).to(place)
        return torch.randn(spec.shape, device=place).to(getattr(torch, str(spec.dtype)))

    tensors = tuple(None if spec.name in launcher.kept else tensor(spec) for spec in specs)
    out = tensor(result)
    return lambda: launcher.run(tensors, out, None)


class OnAddresses(Protocol):
    """Operators whose launches take the addresses of their operands and of their result."""

    executor: Executor
    operands: tuple[TensorSpec, ...]
    result: TensorSpec

    def bound(self) -> Callable[..., None]:
        """See `OwnLaunch.bound`."""


def call_on_addresses(operator: OnAddresses) -> Callable[[], None]:
    """A launch on random operands of its own; no tensors and no library of them is needed."""
    some = np.random.default_rng(0).standard_normal(SOME_NUMBERS, dtype=np.float32)
    specs = (*operator.operands, operator.result)
    with operator.executor.entered():
        buffers = [
            operator.executor.upload(spec.dtype.to_storage(np.resize(some, spec.shape))) for spec in specs
        ]
        operator.executor.synchronize()
    launch = operator.bound()
    return lambda: launch(0, *(buffer.address for buffer in buffers))


def record(location: str, write: Callable[[Store], None]) -> bool:
    """Write to a database; False, and a warning, where that cannot be done."""
    from sparsegen.tuning_db.store import Store

    try:
        with Store.open(location) as store:
            write(store)
    except DatabaseError as error:
        log.warning("what was found out here is forgotten with this process: %s", error)
        return False
    return True
