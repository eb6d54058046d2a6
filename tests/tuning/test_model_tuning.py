"""Tuning a model: which layers share a search, what is searched, and what becomes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from engine_fakes import Recorder
from tuning_samples import H100, baseline, timed

from sparsegen.dispatch.pruned_times import TimeSource
from sparsegen.errors import ConfigError, MatrixError, NoVariantError, SparsegenError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.pruning.pruned_layers import pruned_layers
from sparsegen.pruning.weights import NumpyWeights
from sparsegen.tuning.engines.engine import Assignment, End, Found
from sparsegen.tuning.model import ModelTuning, SearchState, shared_searches, tune_model
from sparsegen.tuning.report import Budget, TuneResult
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.store import Store


def dense(m: int, k: int, density: float, seed: int) -> np.ndarray[Any, Any]:
    return np.asarray(random_uniform(m, k, density, seed).to_scipy().toarray())


WEIGHTS = NumpyWeights(
    {
        "one": dense(128, 256, 0.1, 0),
        "like it": dense(128, 256, 0.1, 1),
        "turned": dense(256, 128, 0.1, 2),
        "denser": dense(128, 256, 0.3, 3),
        "the same": dense(128, 256, 0.1, 0),
    }
)
LAYERS = pruned_layers(WEIGHTS).layers


def test_layers_of_one_shape_and_sparsity_share_a_search() -> None:
    searches = shared_searches(LAYERS, [1, 8, 1], DType.FLOAT16)
    assert [(s.problem.n, [layer.name for layer in s.layers]) for s in searches] == [
        (n, names) for n in (1, 8) for names in (["one", "like it", "the same"], ["denser"], ["turned"])
    ]
    first = searches[0]
    assert first.problem == SpmmProblem(128, 256, 1, DType.FLOAT16, Layout.COLUMN)
    assert first.workload.fingerprint == LAYERS[0].fingerprint
    with_bias = shared_searches(LAYERS, [1], epilogue=Epilogue.BIAS)
    assert len(with_bias) == 3 and with_bias[0].problem.epilogue is Epilogue.BIAS
    with pytest.raises(ConfigError, match="at least one"):
        shared_searches(LAYERS, [])
    with pytest.raises(ConfigError, match="n = 0"):
        shared_searches(LAYERS, [0])


Behaviour = Callable[[CsrMatrix, SpmmProblem, Store], Found]
Run = Callable[..., tuple[ModelTuning, list[str]]]


class MadeUp:
    """An engine whose searches are over at once."""

    patience = 0.0

    def __init__(self, behaviour: Behaviour, store: Store, models: Sequence[Device]) -> None:
        self.models, self._behaviour, self._store = models, behaviour, store
        self.searched: list[str] = []
        self.budgets: set[Budget] = set()

    def capacity(self, model: Device) -> int:
        return 1

    def begin(self, model: Device, assignment: Assignment) -> MadeUpSearch:
        matrix, problem = assignment.matrix, assignment.request.problem
        assert matrix.shape == problem.matrix_shape and assignment.request.allow_overflow
        self.budgets.add(assignment.request.budget)
        self.searched.append(
            f"{problem.m}x{problem.k}x{problem.n}" + f" {model.key}" * (len(self.models) > 1)
        )
        try:
            return MadeUpSearch(End(self._behaviour(matrix, problem, self._store)))
        except SparsegenError as error:
            return MadeUpSearch(End(error=error))

    def close(self) -> None: ...


class MadeUpSearch:
    where = "there"

    def __init__(self, end: End) -> None:
        self._end = end

    def news(self) -> Sequence[End]:
        return [self._end]

    def stop(self) -> None: ...

    def kill(self) -> None: ...


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`tune_model` with made-up searches; what it gives, and the shapes that were searched."""

    def run(
        behaviour: Behaviour, models: Sequence[Device] = (H100,), **options: Any
    ) -> tuple[ModelTuning, list[str]]:
        with Store.open(tmp_path / "t.db") as store:
            engine = MadeUp(behaviour, store, models)
            found = tune_model(
                WEIGHTS, LAYERS, [64], engine=engine, store=store, layout=Layout.ROW, **options
            )
        return found, engine.searched

    return run


def recorded(matrix: CsrMatrix, problem: SpmmProblem, store: Store) -> Found:
    """A finished search: 10 µs, dense 25."""
    layer = next(x for x in LAYERS if x.fingerprint == matrix.fingerprint())
    workload = Workload(problem, layer.fingerprint, layer.features)
    store.add_measurement(replace(timed(10, workload, tile_n=32), final=True))
    store.add_baseline(baseline(25, workload))
    return Found(cast(TuneResult, SimpleNamespace(counts=SimpleNamespace(tried=7))))


def test_a_finished_search_is_not_begun_again(run: Run) -> None:
    tuning, searched = run(recorded)
    assert searched == ["128x256x64", "128x256x64", "256x128x64"]
    assert [o.state for o in tuning.outcomes] == [SearchState.SEARCHED] * 3 and tuning.outcomes[0].tried == 7
    (times,) = tuning.times
    source = {t.layer: t.source for t in times.layers}
    assert source["one"] is TimeSource.EXACT and source["like it"] is TimeSource.NEAR
    for layer in times.layers:  # near, a family that nobody tried may be expected to take less
        exact = layer.source is not TimeSource.NEAR
        assert layer.speedup == pytest.approx(2.5, rel=0.1) if exact else layer.speedup > 2.3
    assert 2.4 < times.speedup < 3

    tuning, searched = run(recorded)
    assert searched == [] and {o.state for o in tuning.outcomes} == {SearchState.KNOWN}
    _, searched = run(recorded, again=True)
    assert len(searched) == 3
    for other in ({"dtype": DType.FLOAT16}, {"epilogue": Epilogue.BIAS}):
        tuning, searched = run(recorded, **other)
        assert len(searched) == 3 and tuning.times[0].layers[0].source is TimeSource.EXACT


def test_a_layer_without_a_variant_does_not_stop_the_others(run: Run) -> None:
    def behaviour(matrix: CsrMatrix, problem: SpmmProblem, store: Store) -> Any:
        if problem.m == 256:
            raise NoVariantError("nothing compiles")
        return recorded(matrix, problem, store)

    tuning, searched = run(behaviour)
    assert len(searched) == 3
    (failed,) = tuning.failed
    assert failed.reason == "nothing compiles" and failed.to_dict()["searched_on"] == "turned"
    assert {t.layer for t in tuning.times[0].layers if t.sparse_us is None} == {"turned"}
    assert tuning.times[0].speedup is None


@pytest.mark.usefixtures("ctrl_c_is_heard")
@pytest.mark.parametrize("is_early", [False, True])
def test_an_interrupt_ends_the_searches_and_keeps_what_is_known(run: Run, is_early: bool) -> None:
    def behaviour(matrix: CsrMatrix, problem: SpmmProblem, store: Store) -> Found:
        os.kill(os.getpid(), signal.SIGINT)
        found = Found() if is_early else recorded(matrix, problem, store)
        return replace(found, was_interrupted=True)

    tuning, searched = run(behaviour)
    assert tuning.was_interrupted and len(searched) == 1
    first = SearchState.NOT_REACHED if is_early else SearchState.SEARCHED
    assert [o.state for o in tuning.outcomes] == [first, SearchState.NOT_REACHED, SearchState.NOT_REACHED]
    assert (tuning.times[0].layers[0].sparse_us is None) == is_early


def test_a_layer_that_can_no_longer_be_read_ends_it(run: Run) -> None:
    def behaviour(matrix: CsrMatrix, problem: SpmmProblem, store: Store) -> Found:
        raise MatrixError("cut off")

    with pytest.raises(MatrixError, match="cut off"):
        run(behaviour)


def test_every_model_of_device_is_tuned_for(run: Run) -> None:
    def behaviour(matrix: CsrMatrix, problem: SpmmProblem, store: Store) -> Found:
        return recorded(matrix, problem, store)  # for the H100 alone

    other = replace(H100, key="other", name="Other")
    tuning, searched = run(behaviour, [H100, other])
    assert len(searched) == 6 and [o.device.key for o in tuning.outcomes] == [H100.key] * 3 + ["other"] * 3
    assert [times.device.key for times in tuning.times] == [H100.key, "other"]
    assert tuning.times[0].speedup and tuning.outcomes[0].to_dict()["where"] == "there"


def test_each_search_is_announced(run: Run) -> None:
    recorder = Recorder()
    run(recorded, watch=recorder)
    names = [
        "one: 128 × 256, 89.8% zeros, 64 tokens, shared by 2 other layers",
        "denser: 128 × 256, 70.3% zeros",
    ]
    assert recorder.told[0].startswith(names[0]) and recorder.told[2].startswith(names[1])
    assert recorder.where == {0: ["there"], 1: ["there"], 2: ["there"]}
