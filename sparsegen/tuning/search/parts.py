"""The parts of one search, made in the order in which they are needed: the worker first, the store last."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegen import kernels
from sparsegen.backends.executor import Toolchain
from sparsegen.dispatch.untried import left_to_try
from sparsegen.kernels import family_of
from sparsegen.kernels.base import Device, Family
from sparsegen.kernels.config import Config
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.measure.baseline_session import BaselineSession
from sparsegen.measure.session import Session
from sparsegen.operators import Problem
from sparsegen.settings import Settings
from sparsegen.tuning.loop import background
from sparsegen.tuning.loop.backend import Backend
from sparsegen.tuning.loop.claims import Claims
from sparsegen.tuning.loop.early_search import EarlySearch
from sparsegen.tuning.loop.ended import Asked
from sparsegen.tuning.loop.ledger import Ledger, Recorder
from sparsegen.tuning.loop.limits import Limits
from sparsegen.tuning.loop.pipeline import CompileAhead
from sparsegen.tuning.loop.run import FIRST, Run
from sparsegen.tuning.report import Budget, Effort, Progress, SamplerName
from sparsegen.tuning.search.first_configs import first_to_try, similar_configs, with_todays
from sparsegen.tuning.search.listing import Lister
from sparsegen.tuning_db.layer import Layer, with_rates
from sparsegen.tuning_db.layers import Layers, open_existing
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.ranking import best
from sparsegen.tuning_db.records import Measurement, Workload
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.sqlite_files import check_file
from sparsegen.verify.verifier import COMPARING

if TYPE_CHECKING:
    from sparsegen.tuning.search.search import Search
    from sparsegen.tuning_db.store import Store


@dataclass(frozen=True)
class Wanted:
    """A search, as `sparsegen.tuning.tuner.tune` is asked for it; see there."""

    matrix: CsrMatrix
    problem: Problem
    device: Device
    store: Store | str | Path
    families: Sequence[str] | None
    budget: Budget
    sampler: SamplerName
    seed: int
    again: bool
    deterministic: bool

    @cached_property
    def workload(self) -> Workload:
        """The problem on this pattern; its fingerprint takes a while for a large matrix."""
        return Workload.of(self.problem, self.matrix)

    @cached_property
    def named(self) -> list[Family[Any, Any]]:
        """The families to search.

        Raises:
            ConfigError: a name is unknown, or a family of another operator.
        """
        if self.families is None:
            return list(kernels.families_of(self.problem.operator))
        return [kernels.require_family(name, self.problem) for name in self.families]

    @cached_property
    def name(self) -> str:
        """The same for equal searches: for one workload on one device into one database."""
        store, workload = self.store, self.workload
        place = str(Location.parse(store)) if isinstance(store, str | Path) else store.location
        facts = (workload.problem, workload.fingerprint, self.device.key, self.device.index, place)
        return f"search-{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}"

    @property
    def locks(self) -> Path:
        """The folder of locks that searches on this machine share."""
        return Settings.from_environment().cache / "locks"

    @property
    def note_path(self) -> Path:
        """The file that remembers a search like this that ended by its own budget."""
        return Settings.from_environment().cache / "searches" / f"{self.name}.json"

    def asked(self, *, baselines: bool) -> Asked:
        """Options of the search besides its workload, device and database, to be remembered."""
        return Asked.of(
            self.budget,
            self.families,
            deterministic=self.deterministic,
            sampler=self.sampler.value,
            seed=self.seed,
            baselines=baselines,
        )

    def may_be_tried(self, device: Device, config: Config) -> bool:
        """True if the search is allowed to run this config: its family is wanted, and suits the workload there."""
        family = family_of(config)
        is_wanted = family in self.named and self._has_equal_bits(family, config)
        return is_wanted and family.suits(self.problem, self.workload.features, config, device)

    def first(self, known: Layer, device: Device, before: Measurement | None) -> list[Config]:
        """The configs to begin with; what runs today is among them where all is measured again."""
        first = first_to_try(self.workload, device, known, self.named)
        if self.again and before is not None:
            first = with_todays(before.variant.config, first, self.workload, device, self.named)
        return [c for c in first if self._has_equal_bits(family_of(c), c)]

    def _has_equal_bits(self, family: Family[Any, Any], config: Config) -> bool:
        return not self.deterministic or family.is_deterministic(self.problem, config)


class Parts:
    """The parts of a search, each of which the given resources close.

    Attributes:
        device: the device, with its known rates.
        before: the best measurement of the workload before the search; None where there is none.
        ledger, search: ledger of outcomes, and search that proposes candidates.
    """

    def __init__(self, wanted: Wanted, backend: Backend, stop: threading.Event, resources: ExitStack) -> None:
        self._wanted, self._backend, self._stop, self._resources = wanted, backend, stop, resources
        # The worker first: it imports, opens the device and computes the reference beside all that follows.
        self._session = self._started_session()
        self._ahead = self._compile_ahead()
        whole = wanted.budget.effort is Effort.MAX
        self._lister = resources.enter_context(closing(Lister(wanted.named, whole=whole, stop=stop)))
        self._known, self._written = databases(wanted.store, resources)
        self.workload = wanted.workload
        self.device = with_rates(wanted.device, Layers([self._known, seeds()]))
        self.ledger = Ledger(self.workload, self.device, self._known, self._written)
        self._baselines = self._baseline_session()
        measured = self._known.measurements(self.workload, self.device)
        self.before, self._resumes = best(measured), bool(measured)
        self._first = wanted.first(self._known, self.device, self.before)
        self.search = EarlySearch([] if self._resumes else self._first, self._search)
        if isinstance(wanted.store, str | Path):
            _open_behind(wanted.store, self._written, resources)
        if self._resumes:
            self.search.complete()  # results of earlier runs count from the first moment

    def run(self, progress: Progress, began: float) -> Run:
        """The run of the search, whose budget counts from ``began``, a moment of `time.monotonic`, on."""
        wanted = self._wanted
        limits = Limits.of(wanted.budget, began + _made_ready(self._backend.toolchain))
        may_be_tried = partial(wanted.may_be_tried, self.device)
        claims = self._resources.enter_context(closing(Claims(wanted.locks / wanted.name)))
        return Run(
            self._session, self._baselines, self.search, self._ahead, self.ledger, limits, progress, self._stop, claims,
            suggest=lambda: similar_configs(self.workload, self.device, self._written.result(), wanted.named),
            left_to_try=lambda measured, on: left_to_try(self.workload, on, measured, may_be_tried),
            defaults=self._first[:FIRST],
            measures_rates=wanted.budget.effort is not Effort.QUICK,
        )  # fmt: skip

    def _started_session(self) -> Session:
        wanted, backend = self._wanted, self._backend
        session = Session(
            wanted.matrix,
            wanted.problem,
            wanted.device,
            locks=wanted.locks,
            seed=wanted.seed,
            open_executor=backend.open_executor,
            variant_seconds=backend.variant_seconds,
            stop=self._stop,
        )
        return self._resources.enter_context(closing(session))

    def _compile_ahead(self) -> CompileAhead:
        problem = self._wanted.problem
        ahead = CompileAhead(self._backend.toolchain, problem, self._backend.jobs)
        self._resources.enter_context(closing(ahead))
        if self._wanted.device.backend == "cuda" and problem.reference_files:  # the worker verifies with them
            ahead.begin_with(*problem.reference_files, COMPARING)
        return ahead

    def _baseline_session(self) -> BaselineSession | None:
        if self.ledger.baselines or not self._backend.baseline_session:
            return None
        session = BaselineSession(
            self.workload,
            self._wanted.matrix,
            self.device,
            locks=self._wanted.locks,
            session=self._backend.baseline_session,
            stop=self._stop,
        )
        return self._resources.enter_context(closing(session))

    def _search(self) -> Search:
        """Lists the candidates, and takes up what earlier searches measured; runs in a thread of its own."""
        wanted, first = self._wanted, self._first
        listed = background.begin(
            lambda: self._lister.space(self.workload, self.device, first, deterministic=wanted.deterministic),
            "list",
        )
        from sparsegen.tuning.search.search import Search  # imports Optuna while the candidates are listed

        space = listed.result()
        self.ledger.expect(space, self._ahead.rendered)
        done = self.ledger.resume(again=wanted.again) if self._resumes else {}
        begin_with = list(dict.fromkeys((*first, *self.ledger.failed_once)))
        search = Search(space, begin_with, sampler=wanted.sampler, seed=wanted.seed)
        for measurement in done.values():
            search.remember(measurement)
        return search


def databases(store: Store | str | Path, resources: ExitStack) -> tuple[Layer, Future[Recorder]]:
    """Returns a layer to read at once, and the recorder: the store, or a promise of it if its place is given.

    A place is read as it is, without SQLAlchemy.

    Raises:
        DatabaseError: the place is none for a database that can be written.
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


def _made_ready(toolchain: Toolchain) -> float:
    """Seconds that it took to build what all variants share, once: they are not the search's."""
    began = time.monotonic()
    toolchain.make_ready()
    return time.monotonic() - began
