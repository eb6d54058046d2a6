"""Choice between our kernels and PyTorch's own for calls on tensors, for each way of being called.

The sources, in order: the caller's ``dense``; what is pinned runs; what was raced before, in this process or by any
that wrote the database, decides; else both are raced now, from Python and behind a busy queue, and both probes are
recorded.
`sparsegen lookup` of the workload lists them (`Choice.explain`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import Dense, DispatchOptions
from sparsegen.errors import LaunchError, NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.measure.race import Pair, Race
from sparsegen.operators import Problem
from sparsegen.settings import Settings
from sparsegen.system.bounded import Bounded
from sparsegen.system.cuda_graphs import is_capturing
from sparsegen.tuning_db.records import Called, Probe, Task, Variant, Workload
from sparsegen.tuning_db.shared_layers import shared_layers

log = logging.getLogger(__name__)

MOST_DECISIONS = 4096  # decisions of this process: one more takes the place of all
_BY_VARIANT = DispatchOptions(dense=Dense.NEVER)

Question = tuple[Task, Problem, str, Device, int]


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
) -> Decision | None:
    """Decides between our kernels and PyTorch's own for a task; races them if nothing is known.

    Returns None if nothing is known while a CUDA graph is captured, in which nothing can be timed.

    Args:
        device: where the kernels run; ours do on the emulator, which has no time, and without a device of ours.
        enter: prepares the entrants.
        dense: what the caller permits.
        matrix: the problem's matrix; None for a problem without a pattern.

    Raises:
        DatabaseError, PinsError: see `sparsegen.lookup`.
    """
    if (found := Decision.by_policy(dense)) is not None:
        return found
    if device is None or device.backend == "emulator":
        return Decision.always(True, "there is no GPU to time them on")
    question = task, problem, "" if matrix is None else problem.fingerprint(matrix), device, device.index
    found = _decisions.get(question)
    if found is None:
        with _lock:
            found = _decisions.get(question) or _found(task, problem, matrix, device, enter)
            if found is not None:
                _decisions[question] = found
    return found


def decisions() -> list[tuple[Task, Problem, Decision]]:
    """Returns this process's decisions, in the order in which they were asked for."""
    with _lock:
        return [(task, problem, found) for (task, problem, *_), found in _decisions.items()]


def _found(
    task: Task, problem: Problem, matrix: CsrMatrix | None, device: Device, enter: Callable[[], Entrants]
) -> Decision | None:
    workload = Workload.of(problem, problem.without_pattern if matrix is None else matrix)
    try:
        choice = choose(workload, device, shared_layers(None), _BY_VARIANT)
    except NoVariantError as error:
        return Decision.always(False, f"no kernel of ours runs: {error}")
    if choice.how is How.PINNED:
        return Decision.always(True, choice.why)
    probes = _known(choice, task)
    if len(probes) == len(Called):
        known = _of(probes)
        if not known.is_settled and not is_capturing():
            _ready(enter())
        return known
    return None if is_capturing() else _raced(task, workload, device, enter())


def _ready(entrants: Entrants) -> None:
    """Run both once, as a race does: a capture may take what no call from Python ran, and can load and bind nothing."""
    for run in entrants.pair(Called.DEVICE):
        run()


def _known(choice: Choice, task: Task) -> dict[Called, Probe]:
    return {probe.called: probe for probe in choice.raced if probe.task is task}


def _raced(task: Task, workload: Workload, device: Device, entrants: Entrants) -> Decision:
    probes, location = dict[Called, Probe](), str(Settings.from_environment().db)
    for called in Called:
        race = Race(workload, device, entrants.variant, called=called, task=task)
        try:
            probes[called] = race.run(
                lambda _, called=called: entrants.pair(called),  # type: ignore[misc]
                location,
                calls=entrants.calls,
            )
        except LaunchError as error:
            log.warning("%s runs our kernels, as they cannot be timed beside PyTorch's: %s", task, error)
            return Decision.always(True, f"they cannot be timed: {error}")
    return _of(probes)


def _of(probes: dict[Called, Probe]) -> Decision:
    ours = {called: probe.ours_wins for called, probe in probes.items()}
    return Decision(ours[Called.HOST], ours[Called.DEVICE], "; ".join(map(str, probes.values())))
