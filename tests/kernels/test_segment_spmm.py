"""`segment_spmm`: how it cuts rows, that it leaves its scratch memory as it was, and when it is the first choice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tuning_samples import H100

from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.spmm.segment_spmm import FAMILY, SegmentSpmmConfig
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import power_law, random_uniform
from sparsegen.operators import DType, Epilogue, SpmmProblem
from sparsegen.render import render
from sparsegen.testing.launches import call
from sparsegen.testing.matrices import csr, matrices
from sparsegen.verify.bounds import worst_error


def problem_of(matrix: CsrMatrix, n: int = 32, **traits: object) -> SpmmProblem:
    return SpmmProblem(*matrix.shape, n, **traits)  # type: ignore[arg-type]


# --- packing ---


@pytest.mark.parametrize("order", ["natural", "sorted"])
@pytest.mark.parametrize("segment", [32, 1024])
@pytest.mark.parametrize("name", matrices())
def test_segments_hold_every_nonzero_once(name: str, segment: int, order: str) -> None:
    matrix = matrices()[name]
    packed = FAMILY.pack(problem_of(matrix), SegmentSpmmConfig(segment=segment, order=order), matrix)
    count, part_count = packed.sizes["segment_count"], packed.sizes["part_count"]
    segments = packed.arrays["segments"][: 4 * count].reshape(-1, 4)
    cuts = packed.arrays["cuts"][: 2 * part_count].reshape(-1, 2)
    assert set(segments[:, 2]) == set(range(matrix.shape[0])), "somebody writes each row"
    assert sorted(part for part in segments[:, 3] if part >= 0) == list(range(part_count))
    rebuilt = np.zeros(matrix.shape, dtype=np.float32)
    for begin, length, row, part in segments:
        assert length <= segment and begin % 4 == length % 4 == 0, "whole quads"
        place = slice(begin, begin + length)
        np.add.at(rebuilt[row], packed.arrays["indices"][place], packed.arrays["values"][place])
        of_row = segments[segments[:, 2] == row, 3]
        if part < 0:
            assert of_row.tolist() == [-1]
        else:
            assert cuts[part].tolist() == [of_row.min(), len(of_row)]
            assert sorted(of_row) == list(range(of_row.min(), of_row.min() + len(of_row)))
    np.testing.assert_array_equal(rebuilt, matrix.to_scipy().toarray())
    if order == "sorted":
        assert (np.diff(segments[:, 1]) <= 0).all()


def test_long_rows_are_cut_evenly() -> None:
    dense = np.zeros((3, 200), dtype=np.float32)
    dense[0, :3] = dense[1, :130] = 1
    packed = FAMILY.pack(problem_of(csr(dense)), SegmentSpmmConfig(segment=64, order="natural"), csr(dense))
    segments = packed.arrays["segments"].reshape(-1, 4)
    assert segments.tolist() == [
        [0, 4, 0, -1],
        [4, 44, 1, 0],
        [48, 44, 1, 1],
        [92, 44, 1, 2],
        [136, 0, 2, -1],
    ]
    assert packed.arrays["cuts"].tolist() == [0, 3] * 3


def test_scratch_serves_every_tile() -> None:
    """Tiles do not pack: what one config packed, another runs with."""
    dense = np.ones((2, 100), dtype=np.float32)
    problem = problem_of(csr(dense), 40, batch=3)
    scratch = FAMILY.pack(problem, SegmentSpmmConfig(segment=64), csr(dense)).scratch
    assert scratch == {"parts": 4 * 3 * 4 * 40, "counters": 4 * 3 * 4 * 10}


# --- what it computes ---


@pytest.mark.sanitizer
@pytest.mark.parametrize("epilogue", [Epilogue.NONE, Epilogue.BIAS_RESIDUAL])
def test_sums_of_parts_leave_the_counters_at_zero_and_give_equal_bits(
    epilogue: Epilogue, emulator_toolchain: EmulatorToolchain
) -> None:
    matrix = matrices()["few_long_rows"]
    problem = problem_of(matrix, 24, epilogue=epilogue)
    config = SegmentSpmmConfig(segment=32, tile_n=8, threads_per_segment=4, vector=2)
    packed, operands = (
        FAMILY.pack(problem, config, matrix),
        problem.random_operands(np.random.default_rng(0), matrix.nnz),
    )
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, render(FAMILY, problem, config))
    reference = problem.reference(matrix, operands)
    launch = call(FAMILY, problem, config, packed, operands, matrix.nnz)
    results = []
    for _ in range(3):
        arrays = run_sanitized(kernel.binary, launch.launch, launch.arguments)
        results.append(arrays[launch.result].copy())
        assert worst_error(reference, results[-1]) <= 1
        _, counters = (arrays[place] for place in launch.scratch)
        assert not counters.any()
        launch = launch.again(arrays)
    assert all(np.array_equal(results[0], other) for other in results)


# --- where it is tried ---


def test_every_config_is_judged() -> None:
    """`is_worth_trying` is asked about configs that break constraints too."""
    for n in (1, 32, 132):
        problem = SpmmProblem(100, 100, n)
        listed = itertools.product(*(t.choices for t in SegmentSpmmConfig.tunables()))
        kept = [
            c
            for c in itertools.starmap(SegmentSpmmConfig, listed)
            if FAMILY.is_worth_trying(problem, c, H100)
        ]
        assert any(not FAMILY.broken_constraints(problem, c, H100) for c in kept)


def test_it_is_the_first_choice_for_graphs_and_not_for_weights() -> None:
    graph = power_law(20000, 20000, 5e-4, 0)
    weights = random_uniform(2048, 512, 0.1, 0)
    for matrix, is_first in ((graph, True), (weights, False)):
        problem, features = problem_of(matrix, 32), Features.of(matrix)
        suitable = (
            family
            for family in by_predicted_time(problem, features, H100)
            if family.suits(problem, features, family.heuristic(problem, features, H100), H100)
        )
        assert (next(suitable) is FAMILY) is is_first
        heuristic = FAMILY.heuristic(problem, features, H100)
        assert FAMILY.broken_constraints(problem, heuristic, H100) == []


def test_tiles_of_b_have_room_in_the_l2() -> None:
    """The part of B's rows in a block's columns is gathered again and again."""
    features = Features.of(power_law(20000, 20000, 5e-4, 0))
    for rows, columns in ((20_000, 128), (90_000, 64), (170_000, 32), (10_000_000, 32)):
        assert FAMILY.heuristic(SpmmProblem(rows, rows, 128), features, H100).tile_n == columns


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("n", [1, 2, 33, 96, 2048])
def test_heuristics_are_valid(n: int, dtype: DType) -> None:
    matrix = matrices()["odd_shape"]
    problem = problem_of(matrix, n, dtype=dtype)
    heuristic = FAMILY.heuristic(problem, Features.of(matrix), H100)
    assert FAMILY.broken_constraints(problem, heuristic, H100) == []
    assert render(FAMILY, problem, heuristic)
