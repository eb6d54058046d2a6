"""`lane_stream_spmm`: what it computes, its heuristics on other devices, and that nvcc compiles it for all of them."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from nvcc_builds import GPUS, needs_nvcc, registers
from tuning_samples import H100

import sparsegen
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.base import Device
from sparsegen.kernels.spmm.lane_stream_spmm import FAMILY, LaneStreamConfig
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import random_uniform, uniform_rows
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.render import render
from sparsegen.testing.kinds import Kind
from sparsegen.testing.launches import run_and_compare
from sparsegen.testing.matrices import csr
from sparsegen.testing.variants import Variant

MATRIX = uniform_rows(512, 1024, 300, 0)


def decoding(n: int, dtype: DType = DType.FLOAT16, epilogue: Epilogue = Epilogue.NONE) -> SpmmProblem:
    return SpmmProblem(512, 1024, n, dtype, Layout.COLUMN, epilogue)


@pytest.mark.parametrize("device", GPUS.values(), ids=GPUS)
def test_every_device_has_a_heuristic_for_every_n(device: Device) -> None:
    features = Features.of(MATRIX)
    for n in range(1, 65):
        config = FAMILY.heuristic(decoding(n), features, device)
        assert not FAMILY.broken_constraints(decoding(n), config, device)
        assert config.bulk == (device is H100)
        assert config.blocks <= device.multiprocessors


def test_what_it_does_not_compute_is_said_in_words() -> None:
    wide = SpmmProblem(512, 1024, 65, DType.FLOAT32, Layout.ROW)
    with pytest.raises(ConfigError, match=r"have 16 bits.*column-major: tokens by features.*at most 64"):
        FAMILY.require_valid(wide, LaneStreamConfig(), H100)
    with pytest.raises(ConfigError, match=r"bulk copies need compute capability 9\.0"):
        FAMILY.require_valid(decoding(8), LaneStreamConfig(bulk=True), GPUS["89"])
    with pytest.raises(ConfigError, match=r"rings and slots take \d+ bytes"):
        FAMILY.require_valid(decoding(8), LaneStreamConfig(), GPUS["86"])


def test_a_matrix_with_few_nonzeros_does_not_suit() -> None:
    sparse = Features.of(uniform_rows(512, 1024, 8, 0))
    [sentence] = FAMILY.broken_requirements(decoding(8), sparse, LaneStreamConfig())
    assert "one weight of 32 or more is a nonzero (0.78% are)" in sentence


def test_it_is_the_rule_of_thumb_for_decoding() -> None:
    for m, k, density in ((4096, 4096, 0.3), (11008, 4096, 0.5), (8192, 2048, 0.3)):
        features = Features.of(random_uniform(m, k, density, 0))
        for n in (1, 8, 16):
            problem = SpmmProblem(m, k, n, DType.FLOAT16, Layout.COLUMN)
            assert by_predicted_time(problem, features, H100)[0] is FAMILY, problem


def test_it_packs_less_than_four_bytes_a_nonzero() -> None:
    operator = sparsegen.prepare(
        MATRIX, n=8, dtype="float16", layout="column", family=FAMILY.name, device="emulator"
    )
    assert operator.launcher.prepared.packed.nbytes < 0.8 * MATRIX.nnz * 4


def test_calls_from_several_threads_do_not_meet_in_scratch_memory() -> None:
    operator = sparsegen.prepare(
        MATRIX, n=8, dtype="float16", layout="column", family=FAMILY.name, device="emulator"
    )
    b = np.random.default_rng(0).standard_normal((8, 1024)).astype(np.float16)
    wanted, results = operator(b), {}

    def call(number: int) -> None:
        for _ in range(3):
            results[number] = operator(b)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results.values():
        np.testing.assert_array_equal(result, wanted)


def test_blocks_end_with_groups_of_rows_where_they_can() -> None:
    """Then only parts of their own rows are added up: 43 groups of 256 rows on 129 blocks, 16 on 128."""
    for m, k, expected in (
        (11008, 4096, (129, 8, 1)),
        (4096, 11008, (128, 8, 1)),
        (13824, 5120, (132, 4, 2)),
        (4096, 4096, (128, 1, 8)),
    ):
        problem = SpmmProblem(m, k, 8, DType.FLOAT16, Layout.COLUMN)
        heuristic = FAMILY.heuristic(problem, Features.of(MATRIX), H100)
        assert (heuristic.blocks, heuristic.warps_m, heuristic.warps_k) == expected


def test_rows_are_sorted_where_that_costs_less_than_waiting_for_the_longest() -> None:
    """Times on an H100 agree: stores row by row take a sector of memory for each element of C."""
    for m, k, n, share, cov, order in (
        (4096, 4096, 8, 0.2, 0.03, "natural"),
        (4096, 11008, 8, 0.4, 0.3, "balanced"),
        (28672, 8192, 8, 0.4, 0.8, "balanced"),
        (11008, 4096, 32, 0.2, 0.3, "natural"),
        (28672, 8192, 32, 0.4, 0.8, "balanced"),
    ):
        problem = SpmmProblem(m, k, n, DType.FLOAT16, Layout.COLUMN)
        features = Features(m, k, int(m * k * share), k * share, cov, k, share)
        assert FAMILY.heuristic(problem, features, H100).row_order == order


def test_sparse_weights_of_many_rows_have_more_warps() -> None:
    problem = SpmmProblem(28672, 8192, 8, DType.FLOAT16, Layout.COLUMN)
    warps = []
    for share in (0.2, 0.5):
        features = Features(28672, 8192, int(28672 * 8192 * share), 8192 * share, 0.02, 8192, share)
        heuristic = FAMILY.heuristic(problem, features, H100)
        assert not FAMILY.broken_constraints(problem, heuristic, H100)
        warps.append(heuristic.warps_m)
    assert warps == [12, 8]


def test_the_heuristic_packs_alike_for_fp16_and_bf16() -> None:
    config = LaneStreamConfig(blocks=8, row_order="balanced")
    half = FAMILY.pack(decoding(8), config, MATRIX)
    brain = FAMILY.pack(decoding(8, DType.BFLOAT16), config, MATRIX)
    np.testing.assert_array_equal(half.value_source(), brain.value_source())
    assert half.arrays["values"].dtype == np.float16 and brain.arrays["values"].dtype == np.uint16


@needs_nvcc
@pytest.mark.parametrize("architecture", GPUS)
def test_nvcc_compiles_it_without_spills(architecture: str, tmp_path: Path) -> None:
    device = GPUS[architecture]
    problem = decoding(32, DType.BFLOAT16, Epilogue.BIAS)
    config = FAMILY.heuristic(problem, Features.of(MATRIX), device)
    used = registers(render(FAMILY, problem, config), tmp_path, architecture)
    threads = 32 * (config.warps_m * config.warps_k + 1)
    assert used * threads <= 65536


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    "config",
    [
        LaneStreamConfig(blocks=8, warps_m=1, warps_k=2, ring_rows=96, refill_tiles=2, slots=2, depth=2),
        LaneStreamConfig(blocks=8, warps_m=2, ring_rows=160, depth=3, bulk=True, row_order="balanced"),
        LaneStreamConfig(blocks=8, warps_m=1, warps_k=8, ring_rows=64, slots=2, depth=2, bulk=True),
    ],
    ids=["refilled every step", "refilled every tile", "eight warps over columns"],
)
def test_long_streams_go_round_their_rings(
    config: LaneStreamConfig, emulator_toolchain: EmulatorToolchain
) -> None:
    """Rows from nearly empty to full: lanes drift apart again and again while the rings fill several times over."""
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((64, 8192)).astype(np.float32)
    matrix = csr(
        np.where(rng.random(dense.shape) < np.linspace(0.02, 1.0, 64)[:, None], dense, np.float32(0))
    )
    kind = Kind.spmm(5, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS_RELU)
    problem = kind.problem(matrix)
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    packed = FAMILY.pack(problem, config, matrix)
    assert np.diff(packed.arrays["starts"]).max() * 16 > 3 * config.ring_rows
    variant = Variant(FAMILY, config, kind, (), source)
    run_and_compare(variant, kernel, problem, matrix, packed, where="long streams")


@pytest.mark.parametrize("columns", [333, 334, 332])
def test_columns_of_b_may_begin_anywhere(columns: int, emulator_toolchain: EmulatorToolchain) -> None:
    """Elements, or copies of 4 or 8 bytes, as far as k is a multiple of them; the last ones of a column are zeros."""
    matrix = uniform_rows(70, columns, 100, 0)
    kind = Kind.spmm(3, DType.BFLOAT16, Layout.COLUMN, Epilogue.NONE)
    problem, config = kind.problem(matrix), LaneStreamConfig(blocks=8, warps_m=1, warps_k=2)
    source = render(FAMILY, problem, config)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, source)
    variant, packed = Variant(FAMILY, config, kind, (), source), FAMILY.pack(problem, config, matrix)
    run_and_compare(variant, kernel, problem, matrix, packed, where=f"{columns} columns")
