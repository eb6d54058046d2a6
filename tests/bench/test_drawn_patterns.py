"""Patterns that also say what the operands are: masks in blobs, and the networks of the Sparse DNN Challenge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_fakes import LIMITS, request

from sparsegen.bench.baselines import baselines
from sparsegen.bench.patterns import generators
from sparsegen.bench.patterns.case import Case
from sparsegen.bench.patterns.patterns import Blobs, Independent, RadixNet
from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import UNTUNED, Status
from sparsegen.bench.run.run import run
from sparsegen.bench.suites import load_suite
from sparsegen.errors import MatrixError, SuiteError
from sparsegen.networks.model.radixnet import CLIP
from sparsegen.operators import (
    DType,
    MaskBlock,
    MaskedConv2dProblem,
    MaskOf,
    Readout,
    SoftmaxProblem,
    SparseNetworkProblem,
    SpmmProblem,
)
from sparsegen.operators.sparse_network import Activation
from sparsegen.settings import Settings


def test_blobs_lie_together() -> None:
    live = generators.blobs((2, 32, 48), 8, 0.25, seed=3)
    assert live.shape == (2, 32, 48) and live.sum(axis=(1, 2)).tolist() == [384, 384]
    assert not np.array_equal(live[0], live[1])
    assert np.array_equal(live, generators.blobs((2, 32, 48), 8, 0.25, seed=3))
    scattered = np.random.default_rng(0).random(live.shape) < 0.25
    edges = [np.count_nonzero(mask[:, 1:] != mask[:, :-1]) for mask in (live, scattered)]
    assert edges[0] < edges[1] / 3, "neighbours are alike"
    with pytest.raises(MatrixError, match="at least 1 apart"):
        generators.blobs((1, 8, 8), 0, 0.5, seed=0)


def test_masks_in_blobs_are_operands() -> None:
    problem = MaskedConv2dProblem(
        64, 64, 16, 16, DType.FLOAT16, mask_of=MaskOf.INPUT, mask_block=MaskBlock(8, 8), batch=2
    )
    given = Blobs(64, 64).operands(problem, 0, np.random.default_rng(0))
    images = given["x"].reshape(2, 64, 64, 16)
    for image, words in zip(images, given["mask"].reshape(2, -1), strict=True):
        live = problem.live(words)
        assert live.mean() == 0.5 and not image[~live].any() and image[live].any(axis=-1).all()
    with pytest.raises(SuiteError, match="'blobs' is for masks of images, not for sparse_softmax"):
        Blobs(8, 8).operands(SoftmaxProblem(8, 8), 0, np.random.default_rng(0))


def test_a_scale_is_the_usual_one() -> None:
    given = Independent(8, 8, 0.5).operands(SoftmaxProblem(8, 8), 4, np.random.default_rng(0))
    assert given["scale"].tolist() == [1.0]
    assert set(Independent(8, 8, 0.5).operands(SpmmProblem(8, 8, 4), 4, np.random.default_rng(0))) == {"b"}


NEURONS, LAYERS = 256, 6  # a square, and 16 times a power of two


def network(alive: bool) -> Case:
    activation = Activation.RELU if alive else Activation.DYING_RELU
    sizes = NEURONS * LAYERS, NEURONS + 3, 24
    problem = SparseNetworkProblem(*sizes, DType.FLOAT16, activation, Readout.TOTALS)
    pattern = RadixNet(*problem.matrix_shape, NEURONS, LAYERS, alive)
    return Case("tiny", f"alive={alive}", problem, (DType.FLOAT16,), pattern, "")


def test_networks_are_the_challenge_s() -> None:
    dying, living = network(False), network(True)
    for case in (dying, living):
        matrix = case.matrix()
        assert matrix.shape == case.problem.matrix_shape and matrix.nnz == LAYERS * NEURONS * (32 + 3)
        given = case.pattern.operands(case.problem, matrix.nnz, np.random.default_rng(0))
        y = DType.FLOAT16.from_storage(given["y"])
        assert y.shape == (24, NEURONS) and set(np.unique(y)) == {0, 1} and given["clip"].tolist() == [CLIP]
        totals = case.problem.reference(matrix, given).exact
        assert totals.all() if case is living else (totals == 0).any()
    wrong = replace(living.pattern, rows=NEURONS * LAYERS + 1)
    with pytest.raises(MatrixError, match="the case says 1537 x 259"):
        wrong.matrix()
    with pytest.raises(MatrixError, match="neurons"):
        RadixNet(300, 103, 100, 3).matrix()


def test_the_suite_names_networks_of_their_sizes() -> None:
    for case in load_suite("spdnn").cases:
        assert isinstance(case.pattern, RadixNet) and isinstance(case.problem, SparseNetworkProblem)
        assert (case.problem.neurons, case.problem.layers) == (case.pattern.neurons, case.pattern.layers)


def test_networks_on_the_emulator(
    monkeypatch: pytest.MonkeyPatch, emulator_settings: Settings, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARSEGEN_CACHE", str(emulator_settings.cache))
    cases = [network(True), network(False)]
    finished = run(request(baselines()[UNTUNED], cases=cases, limits=LIMITS), lambda step: None)
    assert [row.cells[0].status for row in finished.results.rows] == [Status.OK] * 2, finished.results.rows
    living, dying = (row.floor for row in finished.results.rows)
    assert living.computed == 1.0 and 0 < dying.computed < 1, "inputs that died need no more"
    assert dying.flop == round(dying.computed * living.flop)
    read = result_file.load(result_file.dump(finished.results), "dumped")
    assert [row.floor for row in read.rows] == [living, dying]
