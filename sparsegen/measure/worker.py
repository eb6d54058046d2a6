"""The measuring process: verifies and times variants, or baselines, on one device, one message at a time.

It imports neither Optuna nor SQLAlchemy, so that it is ready while the first variants still compile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import format_exc
from typing import Any

import numpy as np

from sparsegen.backends.executor import Buffer, Executor, LoadedKernel
from sparsegen.errors import LaunchError
from sparsegen.kernels.base import Device
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.clock import Clock, Timing
from sparsegen.measure.l2 import L2
from sparsegen.measure.supervised import Go, Waiting
from sparsegen.operators import Problem
from sparsegen.plan.binding import BoundVariant
from sparsegen.plan.packing import Gather
from sparsegen.plan.packings import Packing, Packings
from sparsegen.plan.variants import CompiledVariant
from sparsegen.system.child import answer, named, requests
from sparsegen.verify.guarded import GuardedBuffer
from sparsegen.verify.variants import UNWRITTEN
from sparsegen.verify.verifier import verifier
from sparsegen.verify.written import WrittenOperands

WARMUP = 3
SLOW_LAUNCH_SECONDS = 0.02  # from this on warming up costs more than it steadies


@dataclass(frozen=True)
class SetUp:
    """Sent once: what is measured, and on what.

    Attributes:
        open_executor: the function of the device that gives an `Executor`, as ``"module:function"``.
        seed: seed of the dense operands.
    """

    matrix: CsrMatrix
    problem: Problem
    device: Device
    open_executor: str
    seed: int

    def open(self) -> Bench:
        return Bench(self)


@dataclass(frozen=True)
class SetUpBaselines:
    """Sent once, in the place of `SetUp`: whose baselines are timed.

    Attributes:
        session: a function like `sparsegen.measure.baselines.open_session`, as ``"module:function"``.
    """

    session: str
    matrix: CsrMatrix
    problem: Problem
    device: Device

    def open(self) -> BaselineBench:
        return BaselineBench(self)


@dataclass(frozen=True, slots=True)
class Ready:
    """The answer to `SetUp` and `SetUpBaselines`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class MeasureBaselines:
    """Time the baselines. Answered with a list of `sparsegen.measure.baselines.Result`."""


@dataclass(frozen=True, slots=True)
class MeasureRates:
    """Measure what the device does. Answered with `sparsegen.kernels.rates.Rates`, or None where not all is known."""


@dataclass(frozen=True)
class Measure:
    """Verify one variant, then time it.

    Attributes:
        samples: single calls to time.
        first_samples: those taken before deciding on the rest.
        limit_us: no further samples are taken with a median over this after the first ones.
        budget_s: most seconds of timing.
        verify: False for one that was verified in this session before.
        drawing: number of the operands' drawing: another number draws anew.
    """

    compiled: CompiledVariant
    samples: int
    first_samples: int = 5
    limit_us: float = float("inf")
    budget_s: float = 1.0
    l2: L2 = L2.COLD
    verify: bool = True
    drawing: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer to `Measure`.

    Attributes:
        timing: None when something is wrong; ``reason`` says what.
        crashed: the launch failed. Otherwise a missing timing means a wrong result.
        launched: the failure came after this variant's launch, so that no other can have caused it.
        sticky: the device context is of no use any more.
        traceback: traceback of the failed launch, as Python prints it.
        worst_error: over its bound; at most 1 is right.
    """

    timing: Timing | None
    reason: str = ""
    crashed: bool = False
    launched: bool = True
    sticky: bool = False
    worst_error: float | None = None
    prepare_seconds: float | None = None
    packed_bytes: int | None = None
    traceback: str = ""


def target_of(device: Device) -> tuple[str, tuple[int, ...]]:
    """The function of the child process that measures on a device, and its arguments (`ChildProcess`)."""
    if device.backend == "cuda":
        return "sparsegen.measure.gpu_worker:serve", (device.index,)
    return "sparsegen.measure.worker:serve", ()


def serve(connection: Connection) -> None:
    """Get ready for what the first message says, then answer every request, until the parent closes its end."""
    started = time.perf_counter()
    set_up: SetUp | SetUpBaselines = connection.recv()
    benches: list[Bench | BaselineBench] = []

    def get_ready() -> Ready:
        benches.append(set_up.open())
        return Ready(time.perf_counter() - started)

    if answer(connection, get_ready):
        for request in requests(connection):
            answer(connection, partial(benches[0].measure, request, partial(_wait_for_turn, connection)))


def _wait_for_turn(connection: Connection) -> None:
    """Packing and compiling need no device to themselves; other processes measure meanwhile."""
    connection.send(Waiting())
    go = connection.recv()
    assert isinstance(go, Go)


class BaselineBench:
    """Other libraries' routines for one problem on one device."""

    def __init__(self, set_up: SetUpBaselines) -> None:
        self._session = named(set_up.session)(set_up.matrix, set_up.problem, set_up.device)
        self._session.load()

    def measure(self, request: MeasureBaselines | MeasureRates, wait_for_turn: Callable[[], None]) -> Any:
        wait_for_turn()
        return self._session.rates() if isinstance(request, MeasureRates) else self._session.measure()


class Bench:
    """One problem on one device: operands uploaded, reference computed, output ready."""

    def __init__(self, set_up: SetUp) -> None:
        self._matrix, self._problem, self._device = set_up.matrix, set_up.problem, set_up.device
        self._executor: Executor = named(set_up.open_executor)(set_up.device)
        self._clock = Clock(self._executor)
        self._seed = set_up.seed
        self._result = GuardedBuffer(self._executor, max(1, self._problem.result(self._matrix.nnz).nbytes))
        self._packings = Packings(self._matrix, self._executor)
        self._kernels: dict[Path, LoadedKernel] = {}
        self._drawing = 0
        self._draw()

    def _draw(self) -> None:
        """Operands on the device, and what knows the result that they give."""
        rng = np.random.default_rng([self._seed, self._drawing] if self._drawing else self._seed)
        drawn = self._problem.random_operands(rng, self._matrix.nnz)
        self._operands = {  # and the values of all batch elements, where each has its own
            name: self._executor.upload(empty_as_one(array)) for name, array in drawn.items()
        }
        self._verifier = verifier(self._problem, self._matrix, drawn, self._executor)
        self._written = WrittenOperands(self._problem, self._matrix, drawn, self._operands, self._executor)
        if self._problem.value_sets > 1:
            self._packings.clear()  # they hold the batch elements' values

    def measure(self, m: Measure, wait_for_turn: Callable[[], None]) -> Measured:
        """Verified first and again after timing, so that a result that depends on luck or on what an
        earlier launch left in the output is caught.
        """
        launched = False
        facts: dict[str, Any] = {}
        try:
            if m.drawing != self._drawing:
                self._drawing = m.drawing
                self._draw()
            packing = self._pack(m.compiled)
            facts |= {"prepare_seconds": packing.seconds, "packed_bytes": packing.packed.nbytes}
            bound = self._bind(m.compiled, packing.packed)
            self._executor.fill(self._result, UNWRITTEN)
            self._result.watch()
            self._executor.synchronize()
            wait_for_turn()
            launched = True
            return self._verify_and_time(bound, m, facts)
        except LaunchError as error:
            return Measured(
                None,
                str(error),
                crashed=True,
                launched=launched,
                sticky=self._is_lost(),
                traceback=format_exc(),
                **facts,
            )

    def _verify_and_time(self, call: Callable[[], None], m: Measure, facts: dict[str, Any]) -> Measured:
        if not m.verify:
            return Measured(self._time(call, m, warmup=1), **facts)
        began = time.perf_counter()
        call()
        self._executor.synchronize()
        is_slow = time.perf_counter() - began > SLOW_LAUNCH_SECONDS
        first = self._verifier.worst_error(self._result)
        facts["worst_error"] = first
        if first > 1.0:
            return Measured(None, self._verifier.explain(self._result), **facts)
        if self._written.worst_error() > 1.0:
            return Measured(None, self._written.explain(), **facts)
        if trespass := self._result.trespass():
            return Measured(None, trespass, **facts)
        timing = self._time(call, m, warmup=0 if is_slow else WARMUP)
        facts["worst_error"] = max(first, self._verifier.worst_error(self._result))
        if facts["worst_error"] > 1.0:
            reason = "right at first, but not after more launches (a race, or sums left in the output): "
            return Measured(None, reason + self._verifier.explain(self._result), **facts)
        if trespass := self._result.trespass():
            return Measured(None, trespass, **facts)
        return Measured(timing, **facts)

    def _time(self, call: Callable[[], None], m: Measure, warmup: int) -> Timing:
        return self._clock.time_in_stages(
            call,
            samples=m.samples,
            first_samples=m.first_samples,
            limit_us=m.limit_us,
            l2=m.l2,
            budget_s=m.budget_s,
            warmup=warmup,
        )

    def _pack(self, compiled: CompiledVariant) -> Packing:
        """The matrix packed for a variant, with the values of all batch elements where each has its own."""
        variant, problem = compiled.rendered, self._problem

        def with_values(packed: Packed[Buffer]) -> None:
            if problem.value_sets > 1:
                Gather(packed, problem, self._executor)(self._operands["values"])
                self._executor.synchronize()

        return self._packings.of(variant.family, problem, variant.config, with_values)

    def _bind(self, compiled: CompiledVariant, packed: Packed[Buffer]) -> Callable[[], None]:
        """A call of the variant on this workload's operands."""
        binary = compiled.kernel.binary
        if binary not in self._kernels:
            self._kernels[binary] = self._executor.load(compiled.kernel)
        variant = BoundVariant(compiled, packed, self._executor, kernel=self._kernels[binary])
        addresses = [self._operands[spec.name].address for spec in variant.operands]
        return partial(variant.bound(), 0, *addresses, self._result.address)

    def _is_lost(self) -> bool:
        """True if the failed launch took the device's context with it."""
        try:
            self._executor.fill(self._result, UNWRITTEN)
            self._executor.synchronize()
        except LaunchError:
            return True
        return False
