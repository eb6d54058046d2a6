"""Ours as users of PyTorch call us, on tiny rows on the emulator: every operator, each result checked."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

import sparsegen
from sparsegen.backends import emulator_device, open_executor
from sparsegen.bench.baseline.baseline import UnsupportedError
from sparsegen.bench.baseline.inputs import InputsMaker
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines import baselines
from sparsegen.bench.baselines.sparsegen_called import Called, Replay
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Drawn, Independent, Pattern, RandomLayers, SlidingWindow
from sparsegen.bench.results.results import DEFAULT, IN_GRAPH, Kind
from sparsegen.bench.run.reference import RowReference, bound_for
from sparsegen.operators import (
    Block,
    ConvEpilogue,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    Epilogue,
    Layout,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    MaskOf,
    Problem,
    Rest,
    SddmmProblem,
    SddProblem,
    SoftmaxBackwardProblem,
    SoftmaxProblem,
    SparseAttentionProblem,
    SparseNetworkProblem,
    SpmmProblem,
    SubmanifoldConv3dProblem,
    SubmanifoldConv3dWeightsProblem,
)
from sparsegen.settings import Settings

HALF, SHORT = DType.FLOAT16, DType.BFLOAT16
RANDOM = Independent(24, 32, 0.5)
CONVOLUTION = MaskedConv2dProblem.of(
    (19, 22), channels=8, filters=8, mask_block="4x5", stride="2", epilogue="bias", batch=2
)
ROWS: list[tuple[Problem, Pattern]] = [
    (SpmmProblem(24, 32, 16, HALF, Layout.COLUMN, Epilogue.BIAS_RELU), RANDOM),
    (SpmmProblem(24, 32, 16, SHORT), RANDOM),
    (SddmmProblem(24, 32, 16), RANDOM),
    (SoftmaxProblem(24, 32, HALF), RANDOM),
    (SoftmaxBackwardProblem(24, 32), RANDOM),
    (SparseAttentionProblem(32, 32, 16, HALF, batch=2), SlidingWindow(32, 32, 8, 2)),
    (DsdProblem(64, 64, 48, HALF, Block(16, 16), w_layout=Layout.COLUMN), Drawn(64, 64)),
    (DsdProblem(37, 64, 43, HALF, Block(16, 16), epilogue=Epilogue.BIAS_RELU), Drawn(37, 64)),
    (DsdTransposedProblem(64, 64, 48, SHORT, Block(16, 16)), Drawn(64, 64)),
    (DsdTransposedProblem(64, 61, 48, SHORT, Block(16, 16), y_layout=Layout.COLUMN), Drawn(64, 61)),
    (SddProblem(64, 64, 48, HALF, Block(16, 16)), Drawn(64, 64)),
    (SddProblem(64, 64, 48, HALF, Block(16, 16), rest=Rest.KEPT), Drawn(64, 64)),
    (CONVOLUTION, Drawn(19, 22)),
    (
        replace(CONVOLUTION, mask_of=MaskOf.ANY_INPUT, epilogue=ConvEpilogue.NONE, layout="nchw"),
        Drawn(19, 22),
    ),
    (
        MaskedConv2dWeightsProblem.of((19, 22), channels=8, filters=8, images=2, mask_block="4x5"),
        Drawn(19, 22),
    ),
    (SparseNetworkProblem(3 * 64, 67, 24, HALF), RandomLayers(3 * 64, 67, 64, 3, 4, "random")),
    (SubmanifoldConv3dProblem(40, 8, 16, HALF), Drawn(40, 8)),
    (SubmanifoldConv3dWeightsProblem(40, 8, 16), Drawn(40, 8)),
]


@pytest.fixture
def executor_settings(monkeypatch: pytest.MonkeyPatch, emulator_settings: Settings) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    monkeypatch.setenv("SPARSEGEN_DB", str(emulator_settings.cache / "of the test.db"))


def bench_of(folder: Path, problem: Problem, pattern: Pattern) -> Workbench:
    case = Case("t", "t", problem, (problem.dtype,), pattern, "")
    inputs = InputsMaker(folder).make(case, problem.dtype)
    return Workbench(inputs, open_executor(emulator_device()))


@pytest.mark.slow
@pytest.mark.usefixtures("executor_settings")
@pytest.mark.parametrize(("problem", "pattern"), ROWS, ids=str)
def test_the_default_is_right(problem: Problem, pattern: Pattern, tmp_path: Path) -> None:
    baseline, bench = baselines()[DEFAULT], bench_of(tmp_path, problem, pattern)
    assert baseline.refusal(problem, bench.features) is None
    baseline.open(bench.executor)
    reference = RowReference(bench.inputs, bench.executor)
    bound = bound_for(baseline.kind, baseline.arithmetic(problem), problem.dtype)
    [implementation] = baseline.implementations(bench)
    implementation.clear()
    assert not reference.worst_error(implementation.read(), bound) <= 1, "what was cleared is wrong"
    implementation.run()
    assert reference.worst_error(implementation.read(), bound) <= 1, implementation.detail


@pytest.mark.usefixtures("executor_settings")
def test_a_graph_needs_a_gpu(tmp_path: Path) -> None:
    baseline, bench = baselines()[IN_GRAPH], bench_of(tmp_path, SpmmProblem(24, 32, 16), RANDOM)
    baseline.open(bench.executor)
    with pytest.raises(UnsupportedError, match="captured on a GPU"):
        list(baseline.implementations(bench))


def test_a_replay_keeps_what_its_graph_reads() -> None:
    class Kept:
        """Stands for an operator's arrays."""

    class Graph:
        def replay(self) -> None:
            assert reads() is not None

    def captured() -> tuple[Replay, weakref.ref[Kept]]:
        kept = Kept()
        return Replay(Graph(), Called("", lambda out: (kept, out), 0, is_dense=False)), weakref.ref(kept)

    replay, reads = captured()
    gc.collect()
    replay()


@pytest.mark.usefixtures("executor_settings")
def test_a_dense_product_in_our_place_has_the_bounds_of_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = SpmmProblem(24, 32, 16, SHORT)
    bench = bench_of(tmp_path, problem, RANDOM)
    baseline = baselines()[DEFAULT]
    baseline.open(bench.executor)
    [ours] = baseline.implementations(bench)
    prepare = sparsegen.prepare
    monkeypatch.setattr(
        sparsegen, "prepare", lambda *given, **named: prepare(*given, **named, dense="always")
    )
    [dense] = baseline.implementations(bench)
    assert (ours.ran, dense.ran) == (None, Kind.DENSE)


def test_what_the_function_does_not_compute(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    kept = replace(CONVOLUTION, rest=Rest.KEPT)
    with pytest.raises(UnsupportedError, match="fills what the mask leaves out"):
        list(baselines()[DEFAULT].implementations(bench_of(tmp_path, kept, Drawn(19, 22))))
