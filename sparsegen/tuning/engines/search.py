"""Code that runs beside a device: one search after another, in a process that the local engine or Ray started."""

from __future__ import annotations

import threading

from sparsegen.errors import DatabaseUnavailableError, MachineError
from sparsegen.kernels.base import Device
from sparsegen.operators import Problem
from sparsegen.system.child import ChildDiedError, ChildTimeoutError, named
from sparsegen.tuning.engines.engine import Assignment, Found, SetUp
from sparsegen.tuning.loop.finalists import is_finished
from sparsegen.tuning.report import Progress
from sparsegen.tuning.tuner import Backend, tune
from sparsegen.tuning_db.layers import open_existing
from sparsegen.tuning_db.records import Workload

# Faults of a device, a host, a process or a server, and not of a search.
LOSSES = (MachineError, DatabaseUnavailableError, ChildDiedError, ChildTimeoutError)


def own_backend(device: Device, problem: Problem, *, baselines: bool, searches: int) -> Backend:
    """The device's own (`Backend.of`)."""
    return Backend.of(device, problem, baselines=baselines, searches=searches)


def search(
    set_up: SetUp, assignment: Assignment, device: Device, progress: Progress, stop: threading.Event
) -> Found:
    """Run one search on one device, unless an earlier one of the same workload was finished.

    Raises:
        As `sparsegen.tuning.tuner.tune`, but `KeyboardInterrupt`.
    """
    request, matrix = assignment.request, assignment.matrix
    backend = named(set_up.open_backend)(
        device, request.problem, baselines=request.baselines, searches=assignment.searches or 1
    )
    if not (request.even_if_finished or request.again):
        known = open_existing(set_up.place)
        try:
            measured = known.measurements(Workload.of(request.problem, matrix), device)
        finally:
            known.close()
        if is_finished(measured):
            return Found(known=len({m.variant for m in measured}))
    try:
        result = tune(
            matrix,
            request.problem,
            device=device,
            store=set_up.place,
            families=request.families,
            budget=request.budget,
            progress=progress,
            again=request.again,
            seed=request.seed,
            deterministic=request.deterministic,
            sampler=request.sampler,
            allow_overflow=request.allow_overflow,
            backend=backend,
            stop=stop,
        )
    except KeyboardInterrupt:
        return Found(was_interrupted=True)
    return Found(result, was_interrupted=result.was_interrupted)
