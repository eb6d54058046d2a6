"""Tune: search, verify, measure, record: the fastest variant of an operator for one matrix on one device."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparsegen import kernels
from sparsegen.backends.executor import Toolchain
from sparsegen.dispatch.untried import left_to_try
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.matrix.budget import MemoryBudget
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baseline_session import BASELINE_SESSION, BaselineSession
from sparsegen.measure.session import OPEN_EXECUTOR, Session
from sparsegen.operators import Problem
from sparsegen.operators.base.overflow import require_held
from sparsegen.settings import Settings
from sparsegen.tuning.ended import Asked, note, result_of_before
from sparsegen.tuning.loop import background
from sparsegen.tuning.loop.claims import Claims
from sparsegen.tuning.loop.early_search import EarlySearch
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.loop.ledger import Ledger, Recorder
from sparsegen.tuning.loop.limits import Limits
from sparsegen.tuning.loop.pipeline import CompileAhead, cores
from sparsegen.tuning.loop.run import FIRST, Run
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
from sparsegen.tuning.search.first_configs import first_to_try, similar_configs, with_todays
from sparsegen.tuning.search.listing import Lister
from sparsegen.tuning_db.layer import Layer, with_rates
from sparsegen.tuning_db.layers import Layers, open_existing
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.ranking import best
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.sqlite_files import check_file
from sparsegen.verify.verifier import COMPARING

if TYPE_CHECKING:
    from sparsegen.tuning.search.search import Search
    from sparsegen.tuning.space.space import Space
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


@dataclass(frozen=True)
class Backend:
    """Parts that compile, run, and time baselines; child processes import the latter two by name.

    Attributes:
        open_executor: a function of the device, as ``"module:function"``.
        baseline_session: a function like `sparsegen.measure.baselines.open_session`, as ``"module:function"``; None to
            skip baselines, and then ``baselines_skipped`` says why.
        variant_seconds: time limit of one variant; None for the device's usual one.
        jobs: variants compiled at once; None for one on each core.
    """

    toolchain: Toolchain
    open_executor: str = OPEN_EXECUTOR
    baseline_session: str | None = BASELINE_SESSION
    baselines_skipped: str = ""
    variant_seconds: float | None = None
    jobs: int | None = None

    @classmethod
    def of(cls, device: Device, problem: Problem, *, baselines: bool = True, searches: int = 1) -> Backend:
        """The device's own, for this problem.

        Args:
            searches: that run side by side on this machine, and share its cores for compiling.

        Raises:
            DeviceUnavailableError: its compiler is missing.
        """
        from sparsegen import backends
        from sparsegen.measure.baselines import unavailable

        reason = (
            unavailable(device, problem) if baselines else "dense and vendor baselines were not asked for"
        )
        session = BASELINE_SESSION if reason is None else None
        jobs = None if searches == 1 else max(1, cores() // searches)
        return cls(
            backends.toolchain(device), baseline_session=session, baselines_skipped=reason or "", jobs=jobs
        )


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
        budget: by default normal effort.
        baselines: also time dense and vendor routines, unless the store has them.
        again: measure again what the store holds.
        seed: seed of the dense operands, and of samplers that draw.
        deterministic: try only variants that give equal bits for equal inputs on every call.
        sampler: chooses the next variant.
        allow_overflow: let finite values of the matrix become infinite in the problem's dtype.
        backend: by default the device's own.
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
    budget = budget or Budget()
    require_available(sampler)
    if matrix.shape != problem.matrix_shape:
        raise ConfigError(f"the matrix is {matrix.shape}, but the problem's is {problem.matrix_shape}")
    require_held(problem, matrix, allow_overflow=allow_overflow)
    taken = sum(spec.nbytes for spec in (*problem.operands(matrix.nnz), problem.result(matrix.nnz)))
    MemoryBudget.of_machine(str(problem)).require(taken, "operands and result")
    backend = backend or Backend.of(device, problem, baselines=baselines)
    cache = Settings.from_environment().cache
    locks, notes = cache / "locks", cache / "searches"
    stop = stop or threading.Event()
    asked = Asked.of(
        budget, families, deterministic=deterministic, sampler=sampler.value, seed=seed, baselines=baselines
    )
    if not even_if_ended and not again:
        found = _found_before(notes, asked, Workload.of(problem, matrix), device, store, backend)
        if found is not None:
            return replace(found, seconds=time.monotonic() - began)
    with ExitStack() as resources:
        resources.enter_context(interruptible(stop))
        resources.enter_context(short_turns())
        # The worker first: it imports, opens the device and computes the reference beside all that follows.
        session = resources.enter_context(
            closing(
                Session(
                    matrix,
                    problem,
                    device,
                    locks=locks,
                    seed=seed,
                    open_executor=backend.open_executor,
                    variant_seconds=backend.variant_seconds,
                    stop=stop,
                )
            )
        )
        named = (
            kernels.families_of(problem.operator)
            if families is None
            else [kernels.require_family(name, problem) for name in families]
        )
        ahead = resources.enter_context(closing(CompileAhead(backend.toolchain, problem, backend.jobs)))
        if device.backend == "cuda" and problem.reference_files:  # what the worker verifies with
            ahead.begin_with(*problem.reference_files, COMPARING)
        whole = budget.effort is Effort.MAX
        lister = resources.enter_context(closing(Lister(named, whole=whole, stop=stop)))
        known, written = _databases(store, resources)
        workload = Workload.of(problem, matrix)
        device = with_rates(device, Layers([known, seeds()]))
        ledger = Ledger(workload, device, known, written)
        baseline_session = None
        if not ledger.baselines and backend.baseline_session:
            baseline_session = resources.enter_context(
                closing(
                    BaselineSession(
                        workload, matrix, device, locks=locks, session=backend.baseline_session, stop=stop
                    )
                )
            )
        before = best(known.measurements(workload, device))
        first = first_to_try(workload, device, known, named)
        if again and before is not None:  # what runs today is held against what is found
            first = with_todays(before.variant.config, first, workload, device, named)
        if deterministic:
            first = [c for c in first if family_of(c).is_deterministic(problem, c)]
        resumes = bool(known.measurements(workload, device))

        def may_be_tried(config: Config) -> bool:
            family = family_of(config)
            is_wanted = family in named and (not deterministic or family.is_deterministic(problem, config))
            return is_wanted and family.suits(problem, workload.features, config, device)

        def set_up() -> Search:
            listed = background.begin(
                lambda: lister.space(workload, device, first, deterministic=deterministic), "list"
            )
            from sparsegen.tuning.search.search import Search  # with Optuna, beside the list

            space = listed.result()
            ledger.expect(space, ahead.rendered)
            done = ledger.resume(again=again) if resumes else {}
            begin_with = list(dict.fromkeys((*first, *ledger.failed_once)))
            found = Search(space, begin_with, sampler=sampler, seed=seed)
            for measurement in done.values():
                found.remember(measurement)
            return found

        search = EarlySearch([] if resumes else first, set_up)
        if isinstance(store, str | Path):
            _open_behind(store, written, resources)
        if resumes:
            search.complete()  # what earlier runs recorded counts from the first moment
        limits = Limits.of(budget, began + _made_ready(backend.toolchain))
        claims = resources.enter_context(closing(Claims(locks / _search_name(workload, device, store))))
        run = Run(
            session, baseline_session, search, ahead, ledger, limits, progress, stop, claims,
            suggest=lambda: similar_configs(workload, device, written.result(), named),
            left_to_try=lambda measured, on: left_to_try(workload, on, measured, may_be_tried),
            defaults=first[:FIRST],
            measures_rates=budget.effort is not Effort.QUICK,
        )  # fmt: skip
        try:
            run.go()
        finally:
            ledger.flush()
        space = search.complete().space
        ledger.counts = replace(ledger.counts, pruned=sum(space.pruned.values()))
        winners = ledger.winners()
        if not winners:
            if run.was_interrupted:
                raise KeyboardInterrupt
            raise NoVariantError(_why_nothing_works(ledger, space))
        result = TuneResult(
            workload=workload,
            device=device,
            winner=next(iter(winners.values())),
            family_winners=winners,
            counts=ledger.counts,
            pruned=space.pruned,
            left_out=space.left_out,
            space_size=len(space.candidates),
            baselines=tuple(ledger.baselines),
            baselines_skipped="" if ledger.baselines else run.baselines_failed or backend.baselines_skipped,
            seconds=time.monotonic() - began,
            was_interrupted=run.was_interrupted,
            flip=Flip.between(before, next(iter(winners.values())), ledger.measurements),
        )
        if not run.was_interrupted:
            note(notes / f"{_search_name(workload, device, store)}.json", asked, result)
        return result


def _found_before(
    notes: Path, asked: Asked, workload: Workload, device: Device, store: Store | str | Path, backend: Backend
) -> TuneResult | None:
    """Returns the result of an equal search that ended by its own budget."""
    path = notes / f"{_search_name(workload, device, store)}.json"
    if not path.exists():
        return None
    with ExitStack() as resources:
        known, _ = _databases(store, resources)
        return result_of_before(path, asked, workload, device, known, backend.toolchain)


def _made_ready(toolchain: Toolchain) -> float:
    """Seconds that it took to build what all variants share, once: they are not the search's."""
    began = time.monotonic()
    toolchain.make_ready()
    return time.monotonic() - began


def _databases(store: Store | str | Path, resources: ExitStack) -> tuple[Layer, Future[Recorder]]:
    """Returns a layer to read at once, and the recorder: the store, or a promise of it if its place is given.

    A place is read as it is, without SQLAlchemy.

    Raises:
        DatabaseError: the place is none for a database.
    """
    written: Future[Recorder] = Future()
    if not isinstance(store, str | Path):
        written.set_result(store)
        return store, written
    if (file := Location.parse(store).path) is not None:
        check_file(file, read_only=False)
    known = open_existing(store)
    resources.callback(known.close)
    return known, written


def _open_behind(place: str | Path, written: Future[Recorder], resources: ExitStack) -> None:
    """Open the store in a thread; it imports for as long as compiles take, and so begins after the first proposals."""

    def open_store() -> Store:
        from sparsegen.tuning_db.store import Store

        return Store.open(place)

    background.begin(open_store, "store", written)
    resources.callback(lambda: None if written.exception() else written.result().close())


def _search_name(workload: Workload, device: Device, store: Store | str | Path) -> str:
    """The same for equal searches: for one workload on one device into one database."""
    place = str(Location.parse(store)) if isinstance(store, str | Path) else store.location
    facts = (workload.problem, workload.fingerprint, device.key, device.index, place)
    return f"search-{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}"


def _why_nothing_works(ledger: Ledger, space: Space) -> str:
    counts = ledger.counts
    reasons = "; ".join(f"{count} × {reason}" for reason, count in ledger.failures.most_common(REASONS_SHOWN))
    return (
        f"none of the {counts.tried} variants tried, of {len(space.candidates)}, gives a verified result. "
        f"{reasons}"
    )
