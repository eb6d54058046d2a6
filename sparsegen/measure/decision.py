"""Decisions between our kernels and another way, for each way of being called, in the order of their sources.

The caller's word; what is pinned runs; what was raced before, in this process or by any that wrote the database,
decides; so do estimates that tell; else both are raced now and the probes are recorded. There are three questions:

- `decide`: our kernels or PyTorch's own for calls on tensors, raced from Python and behind a busy queue;
- `decide_between`: one kernel or several in its place, such as attention fused or in steps, raced likewise;
- `decide_model`: a whole model with some layers sparse, or without, raced in the one way in which it will be called.

`sparsegen lookup` of the workload lists the probes (`Choice.explain`).
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsegen import backends
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.dense_or_sparse import Faster, Time, compare
from sparsegen.dispatch.options import Dense, DispatchOptions
from sparsegen.errors import LaunchError, NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.measure.race import Pair, Race
from sparsegen.operators import Problem
from sparsegen.plan.variants import RenderedVariant
from sparsegen.settings import Settings
from sparsegen.system.bounded import Bounded
from sparsegen.system.cuda_graphs import is_capturing
from sparsegen.tuning_db.records import Called, MeasuredAs, Probe, Task, Variant, Workload
from sparsegen.tuning_db.shared_layers import shared_layers

log = logging.getLogger(__name__)

MOST_DECISIONS = 4096  # decisions of this process: one more takes the place of all
_BY_VARIANT = DispatchOptions(dense=Dense.NEVER)

Question = tuple[Task, Problem, str, str, Device, int]


@dataclass(frozen=True, slots=True)
class Entrants:
    """Entrants of a race.

    Attributes:
        variant: our first variant.
        pair: makes the two calls, for a way of being called; they work on PyTorch's current stream.
        calls: number of consecutive calls in a sample, if they come from Python.
    """

    variant: Variant
    pair: Callable[[Called], Pair]
    calls: int


_decisions: dict[Question, Decision] = Bounded(MOST_DECISIONS)
_lock = threading.RLock()


def decide(
    task: Task,
    problem: Problem,
    device: Device | None,
    enter: Callable[[], Entrants],
    dense: Dense = Dense.AUTO,
    matrix: CsrMatrix | None = None,
    context: str = "",
) -> Decision | None:
    """Decides between our kernels and PyTorch's own for a task; races them if nothing is known.

    Returns None if nothing is known while a CUDA graph is captured, in which nothing can be timed.

    Args:
        device: where the kernels run; ours do on the emulator, which has no time, and without a device of ours.
        enter: prepares the entrants.
        dense: what the caller permits.
        matrix: the problem's matrix; None for a problem without a pattern.
        context: digest of what else the times depend on, if the kernel of the problem is not all that runs.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    if (found := Decision.by_policy(dense)) is not None:
        return found
    if device is None or device.backend == "emulator":
        return Decision.always(True, "there is no GPU to time them on")
    pattern = "" if matrix is None else problem.fingerprint(matrix)
    question = task, problem, pattern, context, device, device.index
    found = _decisions.get(question)
    if found is None:
        with _lock:
            found = _decisions.get(question) or _found(task, problem, matrix, device, enter, context)
            if found is not None:
                _decisions[question] = found
    return found


def decisions() -> list[tuple[Task, Problem, Decision]]:
    """Returns this process's decisions, in the order in which they were asked for."""
    with _lock:
        return [(task, problem, found) for (task, problem, *_), found in _decisions.items()]


def _found(
    task: Task,
    problem: Problem,
    matrix: CsrMatrix | None,
    device: Device,
    enter: Callable[[], Entrants],
    context: str,
) -> Decision | None:
    workload = Workload.of(problem, problem.without_pattern if matrix is None else matrix)
    try:
        choice = choose(workload, device, shared_layers(None), _BY_VARIANT)
    except NoVariantError as error:
        return Decision.always(False, f"no kernel of ours runs: {error}")
    if choice.how is How.PINNED:
        return Decision.always(True, choice.why)
    known = _known(choice, task, context)
    if known is not None:
        if not known.is_settled and not is_capturing():
            make_ready(enter())
        return known
    if is_capturing():
        return None
    untimed = Decision.always(True, "our kernels run")
    return _raced(task, workload, device, enter(), str(Settings.from_environment().db), untimed, context)


@dataclass(frozen=True, slots=True)
class Implementations:
    """One kernel and several that may run in its place, as look-ups found them.

    Attributes:
        workload: the one kernel's.
        kernel, others: their choices.
        times: expected times of both ways on the device.
        location: place of the database that is written.
        context: see `Probe`.
    """

    workload: Workload
    device: Device
    kernel: Choice
    others: Sequence[Choice]
    times: tuple[Time, Time]
    location: str
    context: str


def decide_by_times(name: str, time: Time, others: Mapping[Any, Time]) -> Decision:
    """Decides by expected times alone: for an implementation that takes no longer than each of the others."""
    taken = "; ".join((f"{name} take {time}", *(f"{other} {its}" for other, its in others.items())))
    return Decision.always(all(time.is_at_most(its) for its in others.values()), taken)


def decide_by_lack(task: Task, kernel: object, others: object) -> Decision:
    """Decides where look-ups found an error in the place of one of both choices.

    Raises:
        NoVariantError: neither can run.
    """
    ours, other = task.implementations
    if not isinstance(kernel, NoVariantError):
        return Decision.always(True, f"{other} cannot run: {others}")
    if isinstance(others, NoVariantError):
        raise others
    return Decision.always(False, f"{ours} cannot run: {kernel}")


def decide_between(task: Task, ways: Implementations, enter: Callable[[], Entrants]) -> Decision:
    """Decides between one kernel and several in its place; races them on a GPU if nothing tells.

    What should take less time on the device with one launch in the place of several takes less from Python, too. Where
    several should, or estimates overlap, both are raced for each way of being called; estimates stand where they
    cannot be, as inside the capture of a CUDA graph.

    Args:
        enter: prepares the entrants, the one kernel first.
    """
    for ours, choices in ((True, [ways.kernel]), (False, ways.others)):
        pinned = next((choice for choice in choices if choice.how is How.PINNED), None)
        if pinned is not None:
            return Decision.always(ours, f"{pinned.problem.operator} is {pinned.why}")
    known = _known(ways.kernel, task, ways.context)
    if known is not None:
        return known
    (one, several), (ours_name, other_name) = ways.times, task.implementations
    expected = Decision.always(
        one.is_at_most(several), f"{ours_name} takes {one}, {other_name} take {several}"
    )
    has_clock = ways.device.backend != "emulator"
    if compare(one, several) is Faster.SPARSE or not has_clock or is_capturing():
        return expected
    return _raced(task, ways.workload, ways.device, enter(), ways.location, expected, ways.context)


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of a model in two arrangements.

    Attributes:
        ours_us, other_us: microseconds with more of ours, and without.
        called: way in which it was called.
    """

    ours_us: float
    other_us: float
    called: Called


@dataclass(frozen=True, slots=True)
class ModelLayer:
    """A layer of a model as a look-up sees it; a model's probes are recorded with one that is sparse.

    Attributes:
        choice: the choice of its own product.
        location: place of the database that is written.
    """

    workload: Workload
    device: Device
    choice: Choice
    location: str

    @classmethod
    def of(
        cls, problem: Problem, matrix: CsrMatrix, device: Device, db: str | Path | None
    ) -> ModelLayer | None:
        """Looks it up; None if no kernel of ours runs.

        Raises:
            DatabaseError, PinsError: see `sparsegen.lookup`.
        """
        workload = Workload.of(problem, matrix)
        try:
            choice = choose(workload, device, shared_layers(db), _BY_VARIANT)
        except NoVariantError:
            return None
        return cls(workload, device, choice, str(db or Settings.from_environment().db))

    @property
    def pinned(self) -> str:
        """The reason why it is pinned; empty if it is not."""
        return self.choice.why if self.choice.how is How.PINNED else ""

    def __str__(self) -> str:
        return f"{self.workload.fingerprint} {self.workload.problem} {self.choice.config}"


def decide_model(
    layer: ModelLayer | None, context: str, timed: Callable[[], Times], samples: int, pinned: str = ""
) -> tuple[Decision, Times]:
    """Decides between two arrangements of a whole model, one with more of ours; returns their times, too.

    A model has one arrangement, whoever calls it: its caller says how it will be, and that is what is timed.

    Args:
        layer: a sparse layer of the model; None if nothing can be recorded.
        context: digest of both arrangements, and of all that their times depend on.
        timed: times both.
        samples: number of samples of each, at most.
        pinned: why ours run whatever is measured; empty if that decides.
    """
    probes = [] if layer is None else layer.choice.raced
    known = [probe for probe in probes if probe.task is Task.MODEL and probe.context == context]
    if known:
        times = Times(known[-1].sparse_us, known[-1].dense_us, known[-1].called)
    else:
        times = timed()
        if layer is not None:
            _record_model(layer, context, times, samples)
    if pinned:
        return Decision.always(True, pinned), times
    when = "before" if known else "now"
    return Decision.always(Task.MODEL.is_won(times.ours_us, times.other_us), f"raced {when}"), times


def _record_model(layer: ModelLayer, context: str, times: Times, samples: int) -> None:
    rendered = RenderedVariant.of(
        layer.choice.config, layer.workload.problem, backends.toolchain(layer.device)
    )
    race = Race(
        *(layer.workload, layer.device, Variant(rendered.config, rendered.digest), MeasuredAs.WARM),
        called=times.called,
        task=Task.MODEL,
        context=context,
    )
    race.ended((times.ours_us, times.other_us), layer.location, samples)


def digest_of(*facts: object) -> str:
    """Returns the SHA-256 of facts in words, as the context of a probe."""
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()


def make_ready(entrants: Entrants) -> None:
    """Run both once, as a race does: a capture may take what no call from Python ran, and can load and bind nothing."""
    for run in entrants.pair(Called.DEVICE):
        run()


def _known(choice: Choice, task: Task, context: str = "") -> Decision | None:
    """The decision that was raced before with this variant in this context, for each way of being called."""
    probes = {p.called: p for p in choice.raced if p.task is task and p.context == context}
    return _of(probes) if len(probes) == len(Called) else None


def _raced(
    task: Task,
    workload: Workload,
    device: Device,
    entrants: Entrants,
    location: str,
    untimed: Decision,
    context: str = "",
) -> Decision:
    """The decision by a race now; ``untimed`` if they cannot be timed."""
    probes = dict[Called, Probe]()
    for called in Called:
        race = Race(workload, device, entrants.variant, called=called, task=task, context=context)
        try:
            probes[called] = race.run(
                lambda _, called=called: entrants.pair(called),  # type: ignore[misc]
                location,
                calls=entrants.calls,
            )
        except LaunchError as error:
            log.warning("%s is decided without a race, as both ways cannot be timed: %s", task, error)
            return untimed._replace(why=f"{untimed.why}; they cannot be timed: {error}")
    return _of(probes)


def _of(probes: dict[Called, Probe]) -> Decision:
    """The winner of each race; from Python ours only where they do not lose on the device either.

    How much of the host's time shows depends on what the device does beside the call, which no race knows: where the
    device is busy, a kernel that wins by the host alone is slower than the dense way.
    """
    host, device = probes[Called.HOST], probes[Called.DEVICE]
    from_host = host.ours_wins and device.ours_hold
    return Decision(from_host, device.ours_wins, "; ".join(map(str, probes.values())))
