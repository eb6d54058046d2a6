"""Tune: search, verify, measure, record. Finds the fastest variant of an operator for one matrix on one device."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsegen import kernels
from sparsegen.errors import ConfigError, NoVariantError, SparsegenError
from sparsegen.executor import CompiledKernel, Toolchain
from sparsegen.family import Device, Family
from sparsegen.features import Features
from sparsegen.formats import CsrMatrix
from sparsegen.operators import SpmmProblem
from sparsegen.render import render
from sparsegen.settings import Settings
from sparsegen.tuning import finalists
from sparsegen.tuning.child import Interrupted
from sparsegen.tuning.interrupt import interruptible
from sparsegen.tuning.neighbours import winners_nearby
from sparsegen.tuning.pipeline import CompileAhead, Compiled, is_variants_own, variant_of
from sparsegen.tuning.report import (
    Budget,
    Counts,
    Effort,
    Phase,
    Progress,
    Status,
    TuneResult,
    silent,
)
from sparsegen.tuning.rivals import BASELINE_SESSION, Rivals
from sparsegen.tuning.search import Search
from sparsegen.tuning.session import OPEN_EXECUTOR, Session, Verdict
from sparsegen.tuning.space import Candidate, Key, Space
from sparsegen.tuning.summary import summarize
from sparsegen.tuning.worker import Measure
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.records import Baseline, Measurement, Outcome, Variant, Workload
from sparsegen.tuning_db.store import Store

__all__ = ["Backend", "Budget", "Counts", "Effort", "Phase", "Progress", "Status", "TuneResult", "tune"]

log = logging.getLogger(__name__)

SAMPLES = 30
HOPELESS = 1.75  # times the best: such a variant gets no more than the first samples
FINALISTS_SHARE = 0.1  # of a budget in seconds is kept for the finalists, within
FINALISTS_SECONDS = (0.5, 2.5)


@dataclass(frozen=True)
class Backend:
    """What compiles, what runs, and what is compared with; the worker processes import the latter two by name.

    Attributes:
        baseline_session: None to skip baselines; ``baselines_skipped`` then says why.
        variant_seconds: time limit of one variant; None for the device's usual one.
    """

    toolchain: Toolchain
    open_executor: str = OPEN_EXECUTOR
    baseline_session: str | None = BASELINE_SESSION
    baselines_skipped: str = ""
    variant_seconds: float | None = None

    @classmethod
    def of(cls, device: Device, *, baselines: bool) -> Backend:
        """The device's own.

        Raises:
            DeviceUnavailableError: its compiler is missing.
        """
        from sparsegen import backends, baselines as contenders

        reason = contenders.unavailable(device) if baselines else "not asked for"
        session = BASELINE_SESSION if reason is None else None
        return cls(backends.toolchain(device), baseline_session=session, baselines_skipped=reason or "")


def tune(
    matrix: CsrMatrix,
    problem: SpmmProblem,
    *,
    device: Device,
    store: Store,
    families: Sequence[str] | None = None,
    budget: Budget | None = None,
    progress: Progress = silent,
    baselines: bool = True,
    seed: int = 0,
    backend: Backend | None = None,
) -> TuneResult:
    """Find and record the fastest variant for ``problem`` on ``matrix``.

    Every measurement is in the store before the next one starts, so that nothing is lost when this process is
    killed; what the store already holds of the same variants is not measured again. Ctrl-C ends the search
    and returns the best so far.

    Args:
        matrix: m × k, as the problem says.
        families: names; by default every family of the operator.
        baselines: also time dense and vendor routines, unless the store has them.
        seed: of the dense operands and of the search.
        backend: by default the device's own.

    Raises:
        ConfigError: matrix and problem do not fit together, or a family's name is unknown.
        DeviceUnavailableError: the device or its compiler is missing.
        NoVariantError: not one variant is valid, compiles and gives right results; the message says why.
        DatabaseError: a result could not be recorded.
    """
    if matrix.shape != (problem.m, problem.k):
        raise ConfigError(f"the matrix is {matrix.shape}, but the problem's A is {(problem.m, problem.k)}")
    chosen = kernels.families_of(problem.operator) if families is None else [kernels.family(n) for n in families]
    backend = backend or Backend.of(device, baselines=baselines)
    with ExitStack() as resources:
        return _Run(
            matrix, problem, device, store, chosen, budget or Budget(), progress, seed, backend, resources
        ).result()


class _Run:
    """One call of `tune`: its processes, and what is known so far."""

    def __init__(
        self,
        matrix: CsrMatrix,
        problem: SpmmProblem,
        device: Device,
        store: Store,
        families: Sequence[Family[Any, Any]],
        budget: Budget,
        progress: Progress,
        seed: int,
        backend: Backend,
        resources: ExitStack,
    ) -> None:
        self._began = time.monotonic()
        self._device, self._store, self._progress, self._backend = device, store, progress, backend
        self._stop = threading.Event()
        resources.enter_context(interruptible(self._stop))
        locks = Settings.from_environment().cache / "locks"
        # The worker first: it imports, opens the device and computes the reference beside all that follows.
        self._session = Session(
            matrix,
            problem,
            device,
            locks=locks,
            seed=seed,
            open_executor=backend.open_executor,
            variant_seconds=backend.variant_seconds,
            stop=self._stop,
        )
        resources.callback(self._session.close)
        self._workload = Workload(problem, matrix.fingerprint(), Features.of(matrix))
        self._baselines = store.baselines(self._workload, device)
        self._skipped = "" if self._baselines else backend.baselines_skipped
        self._rivals: Rivals | None = None
        if not self._baselines and backend.baseline_session:
            session = backend.baseline_session
            self._rivals = Rivals(self._workload, matrix, device, locks=locks, session=session, stop=self._stop)
            resources.callback(self._rivals.close)
        first = self._first_candidates(families)
        self._space = Space.build(
            families, problem, device, first=first, whole=budget.effort is Effort.MAX, seed=seed
        )
        self._require_candidates()
        self._search = Search(self._space, first, seed=seed)
        self._ahead = CompileAhead(backend.toolchain, problem)
        resources.callback(self._ahead.drop)
        self._trials, seconds = budget.limits
        self._trials = min(self._trials, len(self._space.candidates))
        self._deadline = self._began + seconds
        least, most = FINALISTS_SECONDS
        self._finalists_seconds = most if seconds == float("inf") else max(least, min(most, FINALISTS_SHARE * seconds))
        self._measurements: list[Measurement] = []  # of this space's variants, earlier runs' included
        self._kernels: dict[Variant, tuple[Candidate, CompiledKernel]] = {}
        self._counts = Counts(pruned=sum(self._space.pruned.values()))
        self._failures: Counter[str] = Counter()
        self._phase = Phase.STARTING
        self._interrupted = False
