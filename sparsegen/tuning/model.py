"""Tunes the products with every pruned layer of a model, one search for all layers that would get the same variant."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeAlias

import numpy as np

from sparsegen.dispatch.choice import BUCKET_RADIUS
from sparsegen.dispatch.places import position
from sparsegen.dispatch.pruned_times import PrunedTimes, layer_time
from sparsegen.errors import ConfigError, MachineError, NoVariantError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.operators import (
    DType,
    Epilogue,
    Layout,
    Quantization,
    QuantizedSpmmProblem,
    SpmmProblem,
    quantized_as,
)
from sparsegen.pruning.pruned_layers import PrunedLayer, matrix_of
from sparsegen.pruning.weights import Weights
from sparsegen.system.json_object import Json
from sparsegen.tuning.engines.dealing import Outcome, Watch, deal
from sparsegen.tuning.engines.engine import Engine, Request, Task
from sparsegen.tuning.loop.finalists import is_finished
from sparsegen.tuning.loop.interrupt import interruptible
from sparsegen.tuning.report import Budget
from sparsegen.tuning_db.layers import Layers
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.seeds_reader import seeds
from sparsegen.tuning_db.store import Store

LayerProblem: TypeAlias = SpmmProblem | QuantizedSpmmProblem  # the product with a layer's weight


@dataclass(frozen=True, slots=True)
class SharedSearch:
    """One search, and the layers that it serves.

    Attributes:
        problem: problem of all of them.
        layers: the first one's matrix is searched on; the others' features are at most `dispatch.BUCKET_RADIUS`
            octaves from its own, so that dispatch gives them the same variant.
    """

    problem: LayerProblem
    layers: tuple[PrunedLayer, ...]

    @property
    def workload(self) -> Workload:
        first = self.layers[0]
        return Workload(self.problem, first.fingerprint, first.features)

    @property
    def in_words(self) -> str:
        """The layer that is searched on, what is asked of it, and how many others it serves."""
        first, problem = self.layers[0], self.problem
        others = len(self.layers) - 1
        shared = f", shared by {others} other layer{'s' if others > 1 else ''}" if others else ""
        then = "" if problem.epilogue is Epilogue.NONE else f", {str(problem.epilogue).replace('_', ' and ')}"
        codes = ""
        if isinstance(problem, QuantizedSpmmProblem):
            codes = f", {problem.rounding}"
        return (
            f"{first.name}: {problem.m} × {problem.k}, {first.sparsity:.1%} zeros{codes}, {problem.n} "
            f"token{'s' if problem.n > 1 else ''}{then}{shared}"
        )

    def matrix(self, weights: Weights) -> CsrMatrix:
        """The matrix that is searched on: the first layer's weights, or their codes."""
        found = matrix_of(weights, self.layers[0])
        if isinstance(self.problem, SpmmProblem):
            return found
        return quantized_as(self.problem.rounding, found, self.problem.dtype).codes


class SearchState(StrEnum):
    """Outcome of a search."""

    SEARCHED = "searched"
    KNOWN = "known from before"
    FAILED = "failed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """A search on devices of one model, and what became of it.

    Attributes:
        device: one of the model.
        where: the device that searched, as people call it; empty where none did.
        attempts: number of times that it was begun in this run: more than one if its process, host or device was lost.
        tried: variants whose outcome is known.
        seconds: time that it took in this run.
        error: why it failed; else None.
    """

    search: SharedSearch
    device: Device
    state: SearchState
    where: str = ""
    attempts: int = 0
    tried: int = 0
    seconds: float = 0.0
    error: SparsegenError | None = None

    @property
    def reason(self) -> str:
        """Reason why it failed; else empty."""
        return "" if self.error is None else str(self.error)

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "problem": self.search.problem.named(),
            "searched_on": self.search.layers[0].name,
            "layers": [layer.name for layer in self.search.layers],
            "device": self.device.key,
            "where": self.where,
            "attempts": self.attempts,
            "outcome": self.state,
            "tried": self.tried,
            "seconds": self.seconds,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class ModelTuning:
    """The end of `tune_model`.

    Attributes:
        times: known times of every layer now, for each model of device and each number of tokens.
        was_interrupted: true if Ctrl-C ended it; running again goes on.
    """

    outcomes: tuple[SearchOutcome, ...]
    times: tuple[PrunedTimes, ...]
    was_interrupted: bool

    @property
    def failed(self) -> tuple[SearchOutcome, ...]:
        return tuple(o for o in self.outcomes if o.state is SearchState.FAILED)


def shared_searches(
    layers: Sequence[PrunedLayer],
    tokens: Sequence[int],
    dtype: DType = DType.FLOAT32,
    layout: Layout = Layout.COLUMN,
    epilogue: Epilogue = Epilogue.NONE,
    rounding: Quantization | None = None,
) -> list[SharedSearch]:
    """The searches that a model needs, each number of tokens after the other.

    A layer joins an earlier one's search where the problem is the same and the features are in one bucket: the rule
    by which dispatch takes a workload's winner for another.

    Raises:
        ConfigError: a number of tokens below 1, or none.
    """
    if not tokens:
        raise ConfigError("expected at least one number of tokens")
    return share(
        (layer, product_with(layer, n, dtype, layout, epilogue, rounding))
        for n in dict.fromkeys(tokens)
        for layer in layers
    )


def product_with(
    layer: PrunedLayer,
    tokens: int,
    dtype: DType,
    layout: Layout,
    epilogue: Epilogue,
    rounding: Quantization | None = None,
) -> LayerProblem:
    """The product with a layer's weight, or with what it is rounded to."""
    m, k = layer.features.m, layer.features.k
    if rounding is None:
        return SpmmProblem(m, k, tokens, dtype, layout, epilogue)
    codes = rounding.value_type, rounding.group, rounding.symmetry
    return QuantizedSpmmProblem(m, k, tokens, dtype, layout, epilogue, 1, *codes)


def share(products: Iterable[tuple[PrunedLayer, LayerProblem]]) -> list[SharedSearch]:
    """The searches for these products with layers, in the order in which each problem first comes."""
    groups: dict[LayerProblem, list[list[PrunedLayer]]] = {}
    for layer, problem in products:
        same = groups.setdefault(problem, [])
        group = next((g for g in same if _in_one_bucket(problem, g[0], layer)), None)
        if group is None:
            same.append([layer])
        else:
            group.append(layer)
    return [SharedSearch(problem, tuple(g)) for problem, same in groups.items() for g in same]


def _in_one_bucket(problem: LayerProblem, one: PrunedLayer, other: PrunedLayer) -> bool:
    apart = position(problem, one.features) - position(problem, other.features)
    return float(np.linalg.norm(apart)) <= BUCKET_RADIUS


def tune_model(
    weights: Weights,
    layers: Sequence[PrunedLayer],
    tokens: Sequence[int],
    *,
    engine: Engine,
    store: Store,
    dtype: DType = DType.FLOAT32,
    layout: Layout = Layout.COLUMN,
    epilogue: Epilogue = Epilogue.NONE,
    budget: Budget | None = None,
    again: bool = False,
    baselines: bool = True,
    watch: Watch | None = None,
    rounding: Quantization | None = None,
) -> ModelTuning:
    """Find and record the fastest variant for the product with each layer, Y = X · Wᵀ for X of tokens × in features,
    and its epilogue (dense products are timed without), on every model of device that the engine has.

    A search that an earlier run finished is not begun again; one that it did not finish goes on where it was. A layer
    for which no variant works does not keep the others from being tuned, and neither does one whose searches are lost
    again and again.

    Args:
        weights: container of the layers; a searched one is read again.
        engine: engine that runs the searches; they write into the database that it was set up with.
        store: the same database.
        budget: budget of each search; by default normal effort.
        again: search also where that was finished.
        baselines: also time dense and vendor routines.
        rounding: multiply by the layers' weights rounded to codes and scales.

    Raises:
        ConfigError: see `shared_searches` and `sparsegen.quantize`.
        MatrixError, DeviceUnavailableError, DatabaseError: see `sparsegen.tune`.
        MachineError: no device is left.
    """
    searches = shared_searches(layers, tokens, dtype, layout, epilogue, rounding)
    outcomes, was_interrupted = run_searches(
        weights,
        searches,
        engine=engine,
        store=store,
        budget=budget,
        again=again,
        baselines=baselines,
        watch=watch,
    )
    database = Layers([store, seeds()])
    times = tuple(
        PrunedTimes(
            n,
            dtype,
            layout,
            model,
            tuple(
                layer_time(layer, product_with(layer, n, dtype, layout, epilogue, rounding), model, database)
                for layer in layers
            ),
        )
        for model in engine.models
        for n in dict.fromkeys(tokens)
    )
    return ModelTuning(outcomes, times, was_interrupted)


def run_searches(
    weights: Weights,
    searches: Sequence[SharedSearch],
    *,
    engine: Engine,
    store: Store,
    budget: Budget | None = None,
    again: bool = False,
    baselines: bool = True,
    watch: Watch | None = None,
) -> tuple[tuple[SearchOutcome, ...], bool]:
    """Run searches on every model of device that the engine has, as `tune_model` does.

    Returns:
        What became of them, and whether Ctrl-C interrupted them.

    Raises:
        As `tune_model`.
    """
    pairs = [(search, model) for model in engine.models for search in searches]
    outcomes: dict[int, SearchOutcome] = {}
    tasks: dict[int, Task] = {}
    for place, (search, model) in enumerate(pairs):
        known = store.measurements(search.workload, model)
        if not again and is_finished(known):
            outcomes[place] = SearchOutcome(
                search, model, SearchState.KNOWN, tried=len({m.variant for m in known})
            )
            continue
        request = Request(
            search.problem,
            budget or Budget(),
            baselines=baselines,
            even_if_finished=again,
            allow_overflow=True,  # a search is for many layers: what a layer loses is counted in the log
        )
        name = search.in_words + (f", {model.name}" if len(engine.models) > 1 else "")
        tasks[place] = Task(name, model, request, partial(search.matrix, weights))
    stop = threading.Event()
    with interruptible(stop):
        ended = deal(list(tasks.values()), engine, watch=watch, stop=stop)
    for place, outcome in zip(tasks, ended, strict=True):
        outcomes[place] = _fate(*pairs[place], outcome)
    return tuple(outcomes[place] for place in range(len(pairs))), stop.is_set()


def _fate(search: SharedSearch, model: Device, outcome: Outcome) -> SearchOutcome:
    """
    Raises:
        MatrixError: the layer can no longer be read.
    """
    found, error = outcome.found, outcome.error
    if error is not None and not isinstance(error, NoVariantError | MachineError):
        raise error
    if error is not None:
        state = SearchState.FAILED
    elif found is None or (found.result is None and found.was_interrupted):
        state = SearchState.NOT_REACHED
    else:
        state = SearchState.SEARCHED if found.result is not None else SearchState.KNOWN
    tried = 0 if found is None else found.result.counts.tried if found.result else found.known
    return SearchOutcome(
        search,
        model,
        state,
        where=outcome.where,
        attempts=outcome.attempts,
        tried=tried,
        seconds=outcome.seconds,
        error=error,
    )
