"""Predict: rank variants of an operator for one matrix on a device that is not here, and record the fastest.

All valid configs are ranked by the cost model. Then the most promising ones are compiled for the device, on all cores,
and ranked again by what their code takes. Every prediction is recorded at once; the same call goes on after an end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from sparsegen import backends, kernels
from sparsegen.backends.cuda.inspection import find_disassembler, sass
from sparsegen.backends.cuda.instructions import Instructions
from sparsegen.backends.executor import CompiledKernel, Toolchain
from sparsegen.dispatch.neighbours import heuristic_configs, similar_configs
from sparsegen.errors import CompileError, ConfigError, DeviceUnavailableError, NoVariantError
from sparsegen.kernels import family_of
from sparsegen.kernels.base import AnyFamily, Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.operators.base.overflow import require_held
from sparsegen.plan.variants import RenderedVariant
from sparsegen.settings import Settings
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.loop.pipeline import CompileAhead, Compiled
from sparsegen.tuning.prediction.model import CostModel, cost_model, difference_from
from sparsegen.tuning.prediction.targets import Target, described
from sparsegen.tuning.prediction.terms import Resources
from sparsegen.tuning.report import Budget, Effort
from sparsegen.tuning.space import Space
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.records import Basis, Measurement, Outcome, Prediction, Variant, Workload
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store

log = logging.getLogger(__name__)

WAIT_SECONDS = 0.1
DISASSEMBLY_SECONDS = 30.0
READY_AHEAD = 2  # sources for each core that are compiled or wait for it

Count = Callable[[CompiledKernel], Instructions | None]


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of a search.

    Attributes:
        compiled, failed, resumed: variants that were compiled now, did not compile, and were predicted before.
        planned: upper limit of their number.
        seconds_left: time until the budget ends; infinite without a limit.
    """

    workload: Workload
    compiled: int
    failed: int
    resumed: int
    planned: int
    best: Prediction | None
    seconds: float
    seconds_left: float

    @property
    def tried(self) -> int:
        return self.compiled + self.failed + self.resumed


Progress = Callable[[Status], None]


@dataclass(frozen=True, slots=True)
class PredictResult:
    """Result of a search.

    Attributes:
        predictions: one for every variant that compiled, the fastest first.
        space_size: number of valid configs.
        left_out: families that the matrix does not suit, and why.
        counts_instructions: true if there was a disassembler.
        was_interrupted: Ctrl-C ended it; running again goes on.
    """

    workload: Workload
    target: Target
    predictions: tuple[Prediction, ...]
    status: Status
    space_size: int
    left_out: dict[str, str] = field(default_factory=dict)
    counts_instructions: bool = True
    was_interrupted: bool = False


def tune_for(
    target: Target,
    matrix: CsrMatrix,
    problem: Problem,
    *,
    store: Store,
    families: Sequence[str] | None = None,
    budget: Budget | None = None,
    progress: Progress = lambda status: None,
    again: bool = False,
    allow_overflow: bool = False,
    toolchain: Toolchain | None = None,
    count: Count | None = None,
    model: CostModel | None = None,
) -> PredictResult:
    """Predict the fastest variants for ``problem`` on ``matrix`` on a device by description; no GPU is needed.

    Args:
        store: database to record in, which also holds earlier predictions and measurements on like devices.
        families: names; by default every family of the operator.
        budget: its trials are variants that are compiled.
        again: predict again what the store holds.
        toolchain, count: compile and count instructions; by default CUDA's for the target.
        model: cost model; by default the packaged one.

    Raises:
        MatrixError: values overflow, and ``allow_overflow`` is not set.
        ConfigError: matrix and problem do not fit together, or a family's name is unknown or of another operator.
        DeviceUnavailableError: no CUDA compiler is installed.
        NoVariantError: no config is valid for the target, or none compiles; the message says why.
        MachineError: a disk is full, memory ran out, a process was killed.
        DatabaseError: a prediction could not be recorded.
        KeyboardInterrupt: Ctrl-C before anything was predicted, or a second one.
    """
    began = time.monotonic()
    if matrix.shape != problem.matrix_shape:
        raise ConfigError(f"the matrix is {matrix.shape}, but the problem's is {problem.matrix_shape}")
    require_held(problem, matrix, allow_overflow=allow_overflow)
    named = (
        kernels.families_of(problem.operator)
        if families is None
        else [kernels.require_family(name, problem) for name in families]
    )
    compiler = toolchain or backends.toolchain(target.device)
    counting = count or instruction_count()
    budget, stop = budget or Budget(), threading.Event()
    layers = Layers([store, seeds()])
    workload = Workload.of(problem, matrix)
    space = _space(workload, target.device, named, layers, whole=budget.effort is Effort.MAX)
    estimate = Estimate(workload, target.device, layers, model or cost_model())
    trials, seconds = budget.limits
    times = dict(zip(space.candidates, estimate.times(space.candidates), strict=True))
    order = sorted(space.candidates, key=times.__getitem__)
    planned = order[: int(min(trials, len(order)))]
    with interruptible(stop), closing(CompileAhead(compiler, problem)) as ahead:
        search = _Search(estimate, store, counting, progress, began, began + seconds, len(planned))
        search.go(planned, compiler, ahead, stop, again=again)
    found = tuple(ranking.predicted(search.predictions))
    if not found:
        if stop.is_set():
            raise KeyboardInterrupt
        raise NoVariantError(
            f"none of {search.status().tried} variants compiled for {target.device.name}: "
            f"{search.failure or 'there was no time'}"
        )
    return PredictResult(
        workload, target, found, search.status(), len(space.candidates), dict(space.left_out),
        counts_instructions=count is not None or has_disassembler(), was_interrupted=stop.is_set(),
    )  # fmt: skip


class Estimate:
    """Times of configs on a workload and a device.

    Where a variant was measured on the same workload and a device of the same compute capability, the measured time is
    scaled by the ratio of the model's times on both devices.
    """

    def __init__(self, workload: Workload, device: Device, layers: Layer, model: CostModel) -> None:
        self.workload, self.device, self.model = workload, device, model
        known = [
            (t.device, layers.measurements(t.workload, t.device))
            for t in layers.list_workloads(kind=workload.problem.kind, like=device)
        ]
        timed = [
            m.variant.config
            for _, measured in known
            for m in measured
            if m.outcome is Outcome.OK and m.variant.config.is_known
        ]
        self._recorded = list(dict.fromkeys(timed))
        self._elsewhere: dict[Config, tuple[Device, float]] = {}
        for other, measured in known:
            if other.key == device.key or not _is_of(measured, workload):
                continue
            for found in ranking.times(measured).values():
                self._elsewhere.setdefault(found.variant.config, (described(other), found.time_us))

    def times(self, configs: Sequence[Config]) -> list[float]:
        """Predicts the times of configs before anything is compiled."""
        apart = self._differences(configs)
        return [self._time(c, None, d)[0] for c, d in zip(configs, apart, strict=True)]

    def prediction(self, variant: Variant, resources: Resources | None) -> Prediction:
        (apart,) = self._differences([variant.config])
        time_us, basis = self._time(variant.config, resources, apart)
        return Prediction(
            self.workload,
            self.device,
            variant,
            time_us,
            basis,
            self.model.digest,
            registers=resources.registers if resources else None,
            spill_bytes=resources.spill_bytes if resources else None,
        )

    def _time(self, config: Config, resources: Resources | None, apart: float) -> tuple[float, Basis]:
        here = self.model.predicted_us(self.workload, config, self.device, resources, apart)
        if config not in self._elsewhere:
            return here, Basis.MODEL
        other, time_us = self._elsewhere[config]
        there = self.model.predicted_us(self.workload, config, other, resources, apart)
        return time_us * here / there, Basis.SCALED

    def _differences(self, configs: Sequence[Config]) -> list[float]:
        apart: dict[Config, float] = {}
        for name in {c.family_name for c in configs}:
            mine = [c for c in configs if c.family_name == name]
            recorded = [c for c in self._recorded if c.family_name == name]
            apart |= dict(zip(mine, difference_from(recorded, mine), strict=True))
        return [apart[c] for c in configs]


def _is_of(measured: Sequence[Measurement], workload: Workload) -> bool:
    return bool(measured) and measured[0].workload == workload


class _Search:
    """Compiles what was planned and records what is predicted of it."""

    def __init__(
        self,
        estimate: Estimate,
        store: Store,
        count: Count,
        progress: Progress,
        began: float,
        ends: float,
        planned: int,
    ) -> None:
        self._estimate, self._store, self._count, self._progress = estimate, store, count, progress
        self._began, self._ends = began, ends
        self.predictions: list[Prediction] = []
        self.failure = ""
        self._status = Status(estimate.workload, 0, 0, 0, planned, None, 0.0, ends - began)

    def go(
        self,
        planned: Sequence[Config],
        toolchain: Toolchain,
        ahead: CompileAhead,
        stop: threading.Event,
        *,
        again: bool,
    ) -> None:
        """Runs until all is compiled, the time is over or Ctrl-C; compiles under way by then are still recorded."""
        toolchain.make_ready()
        known = {} if again else self._known(toolchain)
        waiting = []
        for config in planned:
            if config in known:
                self._add(known[config])
                self._status = replace(self._status, resumed=self._status.resumed + 1)
            else:
                waiting.append(config)
        self._progress(self.status())
        waiting.reverse()
        while waiting or ahead.pending:
            is_over = stop.is_set() or (time.monotonic() >= self._ends and bool(self.predictions))
            if is_over and waiting:
                waiting.clear()
                continue
            while waiting and ahead.pending < READY_AHEAD * ahead.jobs:
                ahead.submit(waiting.pop())
            compiled = ahead.next(WAIT_SECONDS)
            if compiled is not None:
                self._take(compiled)
                self._progress(self.status())

    def _known(self, toolchain: Toolchain) -> dict[Config, Prediction]:
        """Returns this model's earlier predictions of sources that this toolchain still makes."""
        estimate = self._estimate
        found: dict[Config, Prediction] = {}
        for p in ranking.predicted(self._store.predictions(estimate.workload, estimate.device)):
            config = p.variant.config
            if p.model != estimate.model.digest or not config.is_known:
                continue
            digest = RenderedVariant.of(config, estimate.workload.problem, toolchain).digest
            if digest == p.variant.source_digest:
                found[config] = p
        return found

    def _take(self, compiled: Compiled) -> None:
        if compiled.variant is None or compiled.rendered is None:
            assert compiled.error is not None
            if not isinstance(compiled.error, CompileError):
                raise compiled.error  # not this variant's fault
            self.failure = self.failure or f"{compiled.candidate}: {compiled.error}"
            self._status = replace(self._status, failed=self._status.failed + 1)
            return
        kernel = compiled.variant.kernel
        resources = Resources.of(kernel, self._count(kernel))
        variant = Variant(compiled.candidate, compiled.rendered.digest)
        prediction = self._estimate.prediction(variant, resources)
        self._store.add_prediction(prediction)
        self._add(prediction)
        self._status = replace(self._status, compiled=self._status.compiled + 1)

    def _add(self, prediction: Prediction) -> None:
        self.predictions.append(prediction)
        best = self._status.best
        if best is None or prediction.predicted_us < best.predicted_us:
            self._status = replace(self._status, best=prediction)

    def status(self) -> Status:
        now = time.monotonic()
        return replace(self._status, seconds=now - self._began, seconds_left=max(0.0, self._ends - now))


def has_disassembler() -> bool:
    try:
        find_disassembler(Settings.from_environment())
    except DeviceUnavailableError:
        return False
    return True


def instruction_count() -> Count:
    """Counts a kernel's instructions; None of each where no disassembler is installed."""
    settings = Settings.from_environment()
    if not has_disassembler():
        log.info("no disassembler is installed: instructions are not counted")
        return lambda kernel: None

    def counted(kernel: CompiledKernel) -> Instructions | None:
        try:
            return Instructions.of(sass(kernel.binary, settings, timeout=DISASSEMBLY_SECONDS))
        except CompileError as error:  # an older disassembler does not know every architecture
            log.warning("instructions are not counted: %s", error)
            return None

    return counted


def _space(
    workload: Workload, device: Device, families: Sequence[AnyFamily], layers: Layer, *, whole: bool
) -> Space:
    """Heuristic configs, what was published and what similar workloads say, and the valid configs around them."""
    problem, features = workload.problem, workload.features
    kind = layers.list_workloads(kind=problem.kind, like=device)

    def is_allowed(config: Config) -> bool:
        family = family_of(config)
        return family in families and family.suits(problem, features, config, device)

    similar = similar_configs(workload, device, layers, kind, is_allowed)
    names = [f.name for f in families]
    heuristics = [
        *heuristic_configs(problem, features, device, names).values(),
        *(c for f in families for c in (*f.alternatives(problem, features, device), *f.published(problem))),
    ]
    first = list(dict.fromkeys([*similar, *filter(is_allowed, heuristics)]))
    space = Space.build(families, problem, device, features=features, first=first, whole=whole)
    if not space.candidates:
        why = "; ".join([*space.left_out.values(), *space.pruned]) or "no family computes this operator"
        raise NoVariantError(f"no config of {', '.join(names)} is valid on {device.name}: {why}")
    return space
