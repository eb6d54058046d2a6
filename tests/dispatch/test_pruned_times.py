"""Times of pruned layers: only what was measured on the very pattern, or on one that is near."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tuning_samples import H100, baseline, timed

import sparsegen
from sparsegen import api
from sparsegen.dispatch import pruned_times
from sparsegen.dispatch.dense_or_sparse import Source
from sparsegen.dispatch.pruned_times import NEAR, LayerTime, PrunedTimes, TimeSource, layer_time
from sparsegen.errors import ConfigError, NoVariantError
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.pruning.report import LayerReport, PruneReport
from sparsegen.tuning_db.layers import MemoryLayer
from sparsegen.tuning_db.records import Workload
from sparsegen.tuning_db.store import Store

N = 64


def pruned(sparsity: float = 0.9, seed: int = 0, shape: tuple[int, int] = (128, 256)) -> PruneReport:
    weights = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return sparsegen.prune({"w": weights}, sparsity=sparsity).report


def of(layer: LayerReport, n: int, dtype: DType = DType.FLOAT32) -> SpmmProblem:
    return SpmmProblem(layer.features.m, layer.features.k, n, dtype)


def workload(layer: LayerReport, n: int = N) -> Workload:
    return Workload(SpmmProblem(layer.features.m, layer.features.k, n), layer.fingerprint, layer.features)


def test_exact_near_and_not_measured() -> None:
    known = pruned().layers[0]
    database = MemoryLayer([timed(10, workload(known), tile_n=32)], [baseline(25, workload(known))])

    def ask(layer: LayerReport, n: int = N, dtype: DType = DType.FLOAT32) -> tuple[TimeSource, float | None]:
        found = layer_time(layer, of(layer, n, dtype), H100, database)
        assert (
            (found.sparse_us is None) == (found.source is TimeSource.NOT_MEASURED) == (found.distance is None)
        )
        return found.source, found.sparse_us

    exact = layer_time(known, of(known, N), H100, database)
    assert exact.source is TimeSource.EXACT and exact.distance == 0 and exact.family == "csr_spmm"
    assert (exact.sparse_us, exact.dense_us) == (10, 25)
    source, time = ask(pruned(seed=1).layers[0])  # as many nonzeros elsewhere
    assert source is TimeSource.NEAR and time == pytest.approx(10)
    source, time = ask(pruned(sparsity=0.87).layers[0])
    assert source is TimeSource.NEAR and time is not None and 10 < time < 16
    far = pruned(sparsity=0.2).layers[0]
    assert ask(far) == (TimeSource.NOT_MEASURED, None), "dispatch would answer from a far neighbour"
    assert ask(known, n=4 * N) == (TimeSource.NOT_MEASURED, None), "dispatch answers from two octaves away"
    assert ask(known, n=16 * N) == (TimeSource.NOT_MEASURED, None)
    assert ask(known, dtype=DType.FLOAT16) == (TimeSource.NOT_MEASURED, None)
    assert NEAR < 2


@pytest.mark.parametrize(
    ("sparse_us", "dense_us", "speedup"), [(10.0, 25.0, 2.5), (None, 25.0, None), (10.0, None, None)]
)
def test_a_speedup_needs_both_times(
    sparse_us: float | None, dense_us: float | None, speedup: float | None
) -> None:
    layers = (
        LayerTime("a", TimeSource.EXACT, sparse_us, dense_us),
        LayerTime("b", TimeSource.EXACT, 0.5, 0.25),
    )
    assert layers[0].speedup == speedup and layers[1].speedup == 0.5
    times = PrunedTimes(N, DType.FLOAT32, Layout.ROW, H100, layers)
    assert times.known == (1 if sparse_us is None else 2)
    assert times.sparse_us == (None if sparse_us is None else 10.5)
    assert times.dense_us == (None if dense_us is None else 25.25)
    assert times.speedup == (None if speedup is None else pytest.approx(25.25 / 10.5))


def test_a_layer_that_no_variant_may_run_on_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*asked: object) -> None:
        raise NoVariantError("no family has a variant")

    monkeypatch.setattr(pruned_times, "choose", refuse)
    layer = pruned().layers[0]
    found = layer_time(layer, of(layer, N), H100, MemoryLayer([], []))
    assert found == LayerTime("w", TimeSource.NOT_MEASURED)


def test_nothing_measured_at_all() -> None:
    layer = pruned().layers[0]
    found = layer_time(layer, of(layer, N), H100, MemoryLayer([], []))
    assert found.source is TimeSource.NOT_MEASURED and found.dense_us is None


def test_the_sum_needs_every_layer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal((64, 512 * scale), np.float32) for name, scale in (("a", 1), ("b", 8))
    }
    report = sparsegen.prune(weights, sparsity=0.9, scope="layer").report
    first, second = report.layers
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        store.add_measurement(timed(10, workload(first), tile_n=32))
    found = api.pruned_times(report, n=N, device=H100, db=path)
    assert [t.source for t in found.layers] == [TimeSource.EXACT, TimeSource.NOT_MEASURED]
    assert found.known == 1 and found.sparse_us is None and found.to_dict()["layers"][0]["sparse_us"] == 10
    with Store.open(path) as store:
        store.add_measurement(timed(30, workload(second), tile_n=32))
        store.add_baseline(baseline(25, workload(second)))
    found = api.pruned_times(report, n=N, device=H100, db=path)
    assert found.sparse_us == 40
    assert [t.dense_source for t in found.layers] == [Source.PREDICTED, Source.MEASURED], "three octaves away"
    assert found.fastest_us == min(10, found.layers[0].dense_us or 0) + 25


def test_wrong_words(tmp_path: Path) -> None:
    for arguments in ({"n": 0}, {"n": 1, "dtype": "int8"}, {"n": 1, "layout": "diagonal"}):
        with pytest.raises(ConfigError):
            api.pruned_times(pruned(), device=H100, db=tmp_path / "db", **arguments)
