"""Tuning a model: which layers share a search, what is searched, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tuning_samples import H100, baseline, timed

from sparsegen.dispatch.pruned_times import Grounds
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.pruning.pruned_layers import pruned_layers
from sparsegen.pruning.weights import NumpyWeights
from sparsegen.tuning import model as model_tuning
from sparsegen.tuning.model import Fate, ModelTuning, shared_searches, tune_model
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


Behaviour = Callable[[CsrMatrix, SpmmProblem, Store], Any]
Run = Callable[..., tuple[ModelTuning, list[str]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`tune_model` with a made-up search; what it gives, and the shapes that were searched."""

    def run(behaviour: Behaviour, **options: Any) -> tuple[ModelTuning, list[str]]:
        searched = []

        def tune(matrix: CsrMatrix, problem: SpmmProblem, *, store: Store, **others: Any) -> Any:
            assert matrix.shape == problem.matrix_shape and others["device"] == H100
            searched.append(f"{problem.m}x{problem.k}x{problem.n}")
            return behaviour(matrix, problem, store)

        monkeypatch.setattr(model_tuning, "tune", tune)
        with Store.open(tmp_path / "t.db") as store:
            found = tune_model(WEIGHTS, LAYERS, [64], device=H100, store=store, layout=Layout.ROW, **options)
        return found, searched

    return run


def recorded(matrix: CsrMatrix, problem: SpmmProblem, store: Store) -> Any:
    """A finished search: 10 µs, dense 25."""
    layer = next(x for x in LAYERS if x.fingerprint == matrix.fingerprint())
    workload = Workload(problem, layer.fingerprint, layer.features)
    store.add_measurement(replace(timed(10, workload, tile_n=32), final=True))
    store.add_baseline(baseline(25, workload))
    return SimpleNamespace(counts=SimpleNamespace(tried=7), was_interrupted=False)


def test_a_finished_search_is_not_begun_again(run: Run) -> None:
    tuning, searched = run(recorded)
    assert searched == ["128x256x64", "128x256x64", "256x128x64"]
    assert [o.fate for o in tuning.outcomes] == [Fate.SEARCHED] * 3 and tuning.outcomes[0].tried == 7
    (times,) = tuning.times
    grounds = {t.layer: t.grounds for t in times.layers}
    assert grounds["one"] is Grounds.EXACT and grounds["like it"] is Grounds.NEAR
    assert all(t.speedup == pytest.approx(2.5, rel=0.1) for t in times.layers)
    assert times.speedup == pytest.approx(2.5, rel=0.1)

    tuning, searched = run(recorded)
    assert searched == [] and {o.fate for o in tuning.outcomes} == {Fate.KNOWN}
    _, searched = run(recorded, again=True)
    assert len(searched) == 3
    for other in ({"dtype": DType.FLOAT16}, {"epilogue": Epilogue.BIAS}):
        tuning, searched = run(recorded, **other)
        assert len(searched) == 3 and tuning.times[0].layers[0].grounds is Grounds.EXACT


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


@pytest.mark.parametrize("raises", [False, True])
def test_an_interrupt_ends_the_searches_and_keeps_what_is_known(run: Run, raises: bool) -> None:
    def behaviour(matrix: CsrMatrix, problem: SpmmProblem, store: Store) -> Any:
        if raises:
            raise KeyboardInterrupt
        result = recorded(matrix, problem, store)
        result.was_interrupted = True
        return result

    tuning, searched = run(behaviour)
    assert tuning.was_interrupted and len(searched) == 1
    first = Fate.NOT_REACHED if raises else Fate.SEARCHED
    assert [o.fate for o in tuning.outcomes] == [first, Fate.NOT_REACHED, Fate.NOT_REACHED]
    assert (tuning.times[0].layers[0].sparse_us is None) == raises


def test_each_search_is_announced(run: Run) -> None:
    told = []

    @contextmanager
    def watcher(search: Any, number: int, searches: int) -> Any:
        told.append((search.layers[0].name, number, searches))
        yield None

    run(recorded, watcher=watcher)
    assert told == [("one", 1, 3), ("denser", 2, 3), ("turned", 3, 3)]
