"""Tunes the products with every pruned layer of a model, one search for all layers that would get the same variant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from sparsegen.dispatch.choice import BUCKET_RADIUS
from sparsegen.dispatch.neighbours import position
from sparsegen.dispatch.pruned_times import PrunedTimes, layer_time
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.pruning.pruned_layers import PrunedLayer, matrix_of
from sparsegen.pruning.weights import Weights
from sparsegen.tuning.report import Budget, Progress, silent
from sparsegen.tuning.tuner import tune
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store


@dataclass(frozen=True, slots=True)
class SharedSearch:
    """One search, and the layers that it serves.

    Attributes:
        problem: of all of them.
        layers: the first one's matrix is searched on; the others' features are at most `dispatch.BUCKET_RADIUS`
            octaves from its own, so that dispatch gives them the same variant.
    """

    problem: SpmmProblem
    layers: tuple[PrunedLayer, ...]

    @property
    def workload(self) -> Workload:
        first = self.layers[0]
        return Workload(self.problem, first.fingerprint, first.features)


class Fate(StrEnum):
    """What became of a search."""

    SEARCHED = "searched"
    KNOWN = "known from before"
    FAILED = "failed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """A search and what became of it.

    Attributes:
        tried: variants whose outcome is known.
        seconds: that it took in this run.
        reason: why it failed; else empty.
    """

    search: SharedSearch
    fate: Fate
    tried: int = 0
    seconds: float = 0.0
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "problem": self.search.problem.to_dict(),
            "searched_on": self.search.layers[0].name,
            "layers": [layer.name for layer in self.search.layers],
            "outcome": self.fate,
            "tried": self.tried,
            "seconds": self.seconds,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ModelTuning:
    """The end of `tune_model`.

    Attributes:
        times: for each number of tokens what is known of every layer now.
        was_interrupted: by Ctrl-C; running again goes on.
    """

    outcomes: tuple[SearchOutcome, ...]
    times: tuple[PrunedTimes, ...]
    was_interrupted: bool

    @property
    def failed(self) -> tuple[SearchOutcome, ...]:
        return tuple(o for o in self.outcomes if o.fate is Fate.FAILED)


class Watcher(Protocol):
    """Told of each search before it begins; the progress that its block gives is the search's."""

    def __call__(
        self, search: SharedSearch, number: int, searches: int
    ) -> AbstractContextManager[Progress]: ...


def unwatched(search: SharedSearch, number: int, searches: int) -> AbstractContextManager[Progress]:
    """The watcher of nobody."""
    return nullcontext(silent)


def shared_searches(
    layers: Sequence[PrunedLayer],
    tokens: Sequence[int],
    dtype: DType = DType.FLOAT32,
    layout: Layout = Layout.COLUMN,
    epilogue: Epilogue = Epilogue.NONE,
) -> list[SharedSearch]:
    """The searches that a model needs, each number of tokens after the other.

    A layer joins an earlier one's search where the problem is the same and the features are in one bucket: the rule
    by which dispatch takes a workload's winner for another.

    Raises:
        ConfigError: a number of tokens below 1, or none.
    """
    if not tokens:
        raise ConfigError("expected at least one number of tokens")
    found: list[SharedSearch] = []
    for n in dict.fromkeys(tokens):
        groups: dict[SpmmProblem, list[list[PrunedLayer]]] = {}
        for layer in layers:
            problem = SpmmProblem(layer.features.m, layer.features.k, n, dtype, layout, epilogue)
            same = groups.setdefault(problem, [])
            group = next((g for g in same if _in_one_bucket(problem, g[0], layer)), None)
            if group is None:
                same.append([layer])
            else:
                group.append(layer)
        found += [SharedSearch(problem, tuple(g)) for problem, same in groups.items() for g in same]
    return found


def _in_one_bucket(problem: SpmmProblem, one: PrunedLayer, other: PrunedLayer) -> bool:
    apart = position(problem, one.features) - position(problem, other.features)
    return float(np.linalg.norm(apart)) <= BUCKET_RADIUS


def tune_model(
    weights: Weights,
    layers: Sequence[PrunedLayer],
    tokens: Sequence[int],
    *,
    device: Device,
    store: Store,
    dtype: DType = DType.FLOAT32,
    layout: Layout = Layout.COLUMN,
    epilogue: Epilogue = Epilogue.NONE,
    budget: Budget | None = None,
    again: bool = False,
    baselines: bool = True,
    watcher: Watcher = unwatched,
) -> ModelTuning:
    """Find and record the fastest variant for the product with each layer, Y = X · Wᵀ for X of tokens × in features,
    and its epilogue (dense products are timed without).

    A search that an earlier run finished is not begun again; one that it did not finish goes on where it was. A layer
    for which no variant works does not keep the others from being tuned.

    Args:
        weights: what the layers were found in; a searched one is read again.
        budget: of each search; by default normal effort.
        again: search also where that was finished.
        baselines: also time dense and vendor routines.

    Raises:
        ConfigError: see `shared_searches`.
        MatrixError, DeviceUnavailableError, DatabaseError: as for `sparsegen.tune`.
    """
    searches = shared_searches(layers, tokens, dtype, layout, epilogue)
    outcomes: list[SearchOutcome] = []
    was_interrupted = False
    for number, search in enumerate(searches, 1):
        if was_interrupted:
            outcomes.append(SearchOutcome(search, Fate.NOT_REACHED))
            continue
        known = store.measurements(search.workload, device)
        if not again and any(m.final for m in known):
            outcomes.append(SearchOutcome(search, Fate.KNOWN, len({m.variant for m in known})))
            continue
        began = time.monotonic()
        try:
            with watcher(search, number, len(searches)) as progress:
                result = tune(
                    matrix_of(weights, search.layers[0]),
                    search.problem,
                    device=device,
                    store=store,
                    budget=budget,
                    baselines=baselines,
                    allow_overflow=True,  # a search is for many layers: what a layer loses is counted in the log
                    progress=progress,
                )
        except NoVariantError as error:
            outcomes.append(
                SearchOutcome(search, Fate.FAILED, seconds=time.monotonic() - began, reason=str(error))
            )
            continue
        except KeyboardInterrupt:  # before anything of this search was measured
            outcomes.append(SearchOutcome(search, Fate.NOT_REACHED))
            was_interrupted = True
            continue
        outcomes.append(SearchOutcome(search, Fate.SEARCHED, result.counts.tried, time.monotonic() - began))
        was_interrupted = result.was_interrupted
    database = Layers([store, seeds()])
    times = tuple(
        PrunedTimes(
            n,
            dtype,
            layout,
            device,
            tuple(layer_time(layer, n, dtype, layout, device, database, epilogue) for layer in layers),
        )
        for n in dict.fromkeys(tokens)
    )
    return ModelTuning(tuple(outcomes), times, was_interrupted)
