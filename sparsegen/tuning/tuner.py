"""Tune: search, verify, measure, record: the fastest variant of an operator for one matrix on one device."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Problem
from sparsegen.operators.base.overflow import require_held
from sparsegen.tuning.loop.backend import Backend
from sparsegen.tuning.loop.ended import Asked, note, result_of_before
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.loop.ledger import Ledger
from sparsegen.tuning.loop.run import Run
from sparsegen.tuning.loop.short_turns import short_turns
from sparsegen.tuning.report import (
    Budget,
    Counts,
    Effort,
    Flip,
    Phase,
    Progress,
    SamplerName,
    Status,
    TuneResult,
    silent,
)
from sparsegen.tuning.samplers import require_available
from sparsegen.tuning.search.parts import Parts, Wanted, databases

if TYPE_CHECKING:
    from sparsegen.tuning.space import Space
    from sparsegen.tuning_db.store import Store

__all__ = [
    "Backend",
    "Budget",
    "Counts",
    "Effort",
    "Phase",
    "Progress",
    "SamplerName",
    "Status",
    "TuneResult",
    "tune",
]

REASONS_SHOWN = 3


def tune(
    matrix: CsrMatrix,
    problem: Problem,
    *,
    device: Device,
    store: Store | str | Path,
    families: Sequence[str] | None = None,
    budget: Budget | None = None,
    progress: Progress = silent,
    baselines: bool = True,
    again: bool = False,
    seed: int = 0,
    deterministic: bool = False,
    sampler: SamplerName = SamplerName.CANDIDATES,
    allow_overflow: bool = False,
    backend: Backend | None = None,
    stop: threading.Event | None = None,
    even_if_ended: bool = True,
) -> TuneResult:
    """Find and record the fastest variant for ``problem`` on ``matrix``.

    Every measurement is in the store before the next one starts, so that nothing is lost when this process is killed;
    what the store already holds of the same variants is not measured again, but that a variant that failed is tried
    once more in a later search. Ctrl-C ends the search and returns the best so far.

    Args:
        matrix: the sparse matrix, in the problem's shape.
        store: open, or where it is: then it is opened while the worker starts, and closed at the end.
        families: names; by default every family of the operator.
        budget: limits; by default normal effort.
        baselines: also time dense and vendor routines, unless the store has them.
        again: measure again what the store holds.
        seed: seed of the dense operands, and of samplers that draw.
        deterministic: try only variants that give equal bits for equal inputs on every call.
        sampler: chooses the next variant.
        allow_overflow: let finite values of the matrix become infinite in the problem's dtype.
        backend: parts; by default the device's own.
        stop: an event that, once set, ends the search as Ctrl-C does.
        even_if_ended: continue if an equal search ended by its own budget; else return what that one found.

    Raises:
        MatrixError: values overflow, and ``allow_overflow`` is not set; or the operands take more memory than there is.
        ConfigError: matrix and problem do not fit together, or a family's name is unknown or of another operator.
        DeviceUnavailableError: the device or its compiler is missing.
        PackageMissingError: the sampler needs a package that is not installed.
        NoVariantError: not one variant is valid, compiles and gives right results; the message says why.
        MachineError: a disk is full, memory ran out, the device is lost, a process was killed: no variant's fault, so
            that nothing is recorded of it. The same call goes on once that is mended.
        DatabaseError: a result could not be recorded.
        KeyboardInterrupt: Ctrl-C (or ``stop``) before anything was measured or all configs were listed, or a second
            one; what was measured is recorded.
    """
    began = time.monotonic()
    require_available(sampler)
    require_fits(problem, matrix, allow_overflow=allow_overflow)
    wanted = Wanted(
        matrix, problem, device, store, families, budget or Budget(), sampler, seed=seed, again=again,
        deterministic=deterministic,
    )  # fmt: skip
    backend = backend or Backend.of(device, problem, baselines=baselines)
    asked = wanted.asked(baselines=baselines)
    if not even_if_ended and not again:
        found = _found_before(wanted, asked, backend)
        if found is not None:
            return replace(found, seconds=time.monotonic() - began)
    stop = stop or threading.Event()
    with ExitStack() as resources:
        resources.enter_context(interruptible(stop))
        resources.enter_context(short_turns())
        parts = Parts(wanted, backend, stop, resources)
        run = parts.run(progress, began)
        try:
            run.go()
        finally:
            parts.ledger.flush()
        result = _result(parts, run, backend, time.monotonic() - began)
        if not run.was_interrupted:
            note(wanted.note_path, asked, result)
        return result


def require_fits(problem: Problem, matrix: CsrMatrix, *, allow_overflow: bool) -> None:
    """Check that the matrix is the problem's, and that this machine's memory holds the operands.

    Raises:
        MatrixError: values overflow, and ``allow_overflow`` is not set; or the operands take more memory than there is.
        ConfigError: matrix and problem do not fit together.
    """
    if matrix.shape != problem.matrix_shape:
        raise ConfigError(f"the matrix is {matrix.shape}, but the problem's is {problem.matrix_shape}")
    require_held(problem, matrix, allow_overflow=allow_overflow)
    taken = sum(spec.nbytes for spec in (*problem.operands(matrix.nnz), problem.result(matrix.nnz)))
    MemoryBudget.of_machine(str(problem)).require(taken, "operands and result")


def _found_before(wanted: Wanted, asked: Asked, backend: Backend) -> TuneResult | None:
    """The result of an equal search that ended by its own budget; None where there is none."""
    if not wanted.note_path.exists():
        return None
    with ExitStack() as resources:
        known, _ = databases(wanted.store, resources)
        return result_of_before(
            wanted.note_path, asked, wanted.workload, wanted.device, known, backend.toolchain
        )


def _result(parts: Parts, run: Run, backend: Backend, seconds: float) -> TuneResult:
    """The winner of the search, and the facts that tell how it was found.

    Raises:
        NoVariantError: no variant gives right results.
        KeyboardInterrupt: the search was interrupted before one did.
    """
    space, ledger = parts.search.complete().space, parts.ledger
    ledger.counts = replace(ledger.counts, pruned=sum(space.pruned.values()))
    winners = ledger.winners()
    if not winners:
        if run.was_interrupted:
            raise KeyboardInterrupt
        raise NoVariantError(_why_nothing_works(ledger, space))
    winner = next(iter(winners.values()))
    return TuneResult(
        workload=parts.workload,
        device=parts.device,
        winner=winner,
        family_winners=winners,
        counts=ledger.counts,
        pruned=space.pruned,
        left_out=space.left_out,
        space_size=len(space.candidates),
        baselines=tuple(ledger.baselines),
        baselines_skipped="" if ledger.baselines else run.baselines_failed or backend.baselines_skipped,
        seconds=seconds,
        was_interrupted=run.was_interrupted,
        flip=Flip.between(parts.before, winner, ledger.measurements),
    )


def _why_nothing_works(ledger: Ledger, space: Space) -> str:
    counts = ledger.counts
    reasons = "; ".join(f"{count} × {reason}" for reason, count in ledger.failures.most_common(REASONS_SHOWN))
    return (
        f"none of the {counts.tried} variants tried, of {len(space.candidates)}, gives a verified result. "
        f"{reasons}"
    )
