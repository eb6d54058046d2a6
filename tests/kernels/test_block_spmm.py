"""`block_spmm`: what it packs, that clusters and rounds of work come out right, and when it is the first choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tuning_samples import H100

import sparsegen
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels import by_predicted_time
from sparsegen.kernels.spmm.block_spmm import FAMILY, BlockSpmmConfig
from sparsegen.kernels.spmm.block_tiles import CHUNK, TILE_K
from sparsegen.kernels.spmm.tensor_tiles import swizzled_places
from sparsegen.matrix.features import Features
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.render import render
from sparsegen.testing.launches import call
from sparsegen.testing.matrices import dense_blocks, matrices
from sparsegen.verify.bounds import worst_error

SMALL = BlockSpmmConfig(tile_m=64, tile_n=64, stages=3, cluster=1)


# --- packing ---


@pytest.mark.parametrize("name", matrices())
def test_tiles_hold_every_nonzero_and_rows_with_most_come_first(name: str) -> None:
    matrix = matrices()[name]
    m, k = matrix.shape
    packed = FAMILY.pack(SpmmProblem(m, k, 8, DType.FLOAT16), SMALL, matrix)
    count, arrays = packed.sizes["row_block_count"], packed.arrays
    assert count == -(-m // 64) and arrays["offsets"].size == count + 1
    assert sorted(arrays["row_blocks"][:count]) == list(range(count))
    assert (np.diff(np.diff(arrays["offsets"])) <= 0).all(), "never more tiles than the rows before"
    values = arrays["values"].view(np.float16)[: arrays["offsets"][-1] * 64 * TILE_K].reshape(-1, 64 * TILE_K)
    assert values.any(axis=1).all(), "tiles without nonzeros are left out"
    assert len(arrays["panels"]) == len(values) + 1, "a panel's number is read ahead"
    rebuilt = np.zeros((max(1, count) * 64, -(-max(k, 1) // TILE_K) * TILE_K), dtype=np.float16)
    for i, block in enumerate(arrays["row_blocks"][:count]):
        for tile in range(*arrays["offsets"][i : i + 2]):
            panel = arrays["panels"][tile]
            rebuilt[block * 64 : (block + 1) * 64, panel * TILE_K : (panel + 1) * TILE_K] = values[tile][
                swizzled_places(64, TILE_K, CHUNK)
            ].reshape(64, TILE_K)
    np.testing.assert_array_equal(rebuilt[:m, :k], matrix.to_scipy().toarray().astype(np.float16))


# --- what it computes ---


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    "config, dtype, epilogue",
    [
        (SMALL, DType.FLOAT16, Epilogue.NONE),
        (BlockSpmmConfig(), DType.BFLOAT16, Epilogue.BIAS_RELU),
        (BlockSpmmConfig(tile_m=256, tile_n=64), DType.FLOAT16, Epilogue.BIAS_RESIDUAL),
        (replace(SMALL, tile_n=128, stages=6, cluster=2), DType.FLOAT16, Epilogue.BIAS_GELU),
    ],
)
def test_products_of_several_rounds_with_rows_that_have_no_tiles(
    config: BlockSpmmConfig, dtype: DType, epilogue: Epilogue, layout: Layout
) -> None:
    """More tiles than stages, a last cluster with columns for one of its blocks, and values that change."""
    matrix, n = dense_blocks(512, 1024, 32, 0.5, empty=slice(128, 320)), 328
    problem = SpmmProblem(512, 1024, n, dtype, layout, epilogue)
    operator = sparsegen.prepare(
        matrix,
        n=n,
        dtype=dtype,
        layout=layout,
        epilogue=epilogue,
        family="block_spmm",
        config=config.to_dict(),
        device="emulator",
    )
    rng = np.random.default_rng(1)
    for _ in range(2):
        operands = problem.random_operands(rng, matrix.nnz)
        result = operator(**{name: dtype.from_storage(a) for name, a in operands.items()})
        reference = problem.reference(matrix, operands)
        assert worst_error(reference, problem.dtype.to_storage(result)) <= 1
        matrix = matrix.with_values(rng.standard_normal(matrix.nnz).astype(np.float32))
        operator.update_values(matrix)


@pytest.mark.sanitizer
@pytest.mark.parametrize("layout", Layout)
def test_a_block_whose_columns_are_all_beyond_c_reads_nothing(
    layout: Layout, emulator_toolchain: EmulatorToolchain
) -> None:
    """n is what one block of the cluster takes: the other brings zeros."""
    matrix = dense_blocks(64, 96, 32, 1.0)
    problem, config = SpmmProblem(64, 96, 64, DType.FLOAT16, layout), replace(SMALL, cluster=2)
    operands = problem.random_operands(np.random.default_rng(0), matrix.nnz)
    kernel = emulator_toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, render(FAMILY, problem, config))
    launch = call(FAMILY, problem, config, FAMILY.pack(problem, config, matrix), operands, matrix.nnz)
    arrays = run_sanitized(kernel.binary, launch.launch, launch.arguments)
    assert worst_error(problem.reference(matrix, operands), arrays[launch.result]) <= 1


def test_blocks_stay_and_clusters_are_whole() -> None:
    problem = SpmmProblem(4096, 1024, 1000, DType.FLOAT16)

    def grid(config: BlockSpmmConfig, row_block_count: int = 32) -> tuple[int, int, int]:
        return FAMILY.launch(problem, config, {"row_block_count": row_block_count}, H100).grid

    assert grid(BlockSpmmConfig()) == (128, 1, 1), "32 rows of tiles by 2 pairs, fewer than fit"
    assert grid(BlockSpmmConfig(tile_n=128, stages=5)) == (132, 1, 1), "128 pairs: two rounds"
    assert grid(BlockSpmmConfig(tile_n=128, stages=3, resident_blocks=2)) == (256, 1, 1)
    assert grid(BlockSpmmConfig(), 0)[0] == 0


# --- where it is tried ---


def test_what_it_does_not_compute() -> None:
    half = SpmmProblem(64, 64, 64, DType.FLOAT16)
    column = replace(half, layout=Layout.COLUMN)
    assert FAMILY.computes(half) and FAMILY.computes(replace(half, m=63, k=63))
    assert FAMILY.computes(replace(column, n=63))
    for other, why in (
        (replace(half, dtype=DType.FLOAT32), "16-bit elements"),
        (replace(half, n=63), r"rows of B and C \(63\)"),
        (replace(column, k=63), r"columns of B \(63\)"),
        (replace(column, m=63), r"and C \(63\)"),
    ):
        assert not FAMILY.computes(other)
        with pytest.raises(ConfigError, match=why):
            FAMILY.require_valid(other, SMALL, H100)
    with pytest.raises(ConfigError, match=r"compute capability 9\.x"):
        FAMILY.require_valid(half, SMALL, replace(H100, compute_capability=(8, 0)))


# Families that were faster on most blocks of 32 by 32 that are half full (H100).
PERSISTENT = ("tma_block_spmm", "turned_block_spmm", "bitmap_spmm")


def test_it_is_the_first_choice_for_filled_blocks_alone() -> None:
    problem = SpmmProblem(2048, 1024, 2048, DType.FLOAT16)
    scattered = Features.of(random_uniform(2048, 1024, 0.1, 0))
    # Of few small blocks `mma_spmm`'s small tiles hold fewer empty ones, and are faster, as measured. Where most tiles
    # are full, the families of TMA may come before it.
    for size, share in ((128, 0.1), (32, 0.5)):
        features = Features.of(dense_blocks(2048, 1024, size, share))
        first, *_ = by_predicted_time(problem, features, H100)
        assert first is FAMILY or (first.name in PERSISTENT and size == 32)
        times = [f.predicted_us(problem, features, H100) for f in (FAMILY, first)]
        assert times[0] <= 1.15 * times[1]
        for config in (
            FAMILY.heuristic(problem, features, H100),
            *FAMILY.alternatives(problem, features, H100),
        ):
            assert FAMILY.suits(problem, features, config, H100)
            assert not FAMILY.suits(problem, scattered, config, H100)
    assert FAMILY.heuristic(problem, scattered, H100) is not None, "whatever the pattern"


def test_the_heuristic_has_larger_tiles_for_larger_problems() -> None:
    features = Features.of(dense_blocks(128, 128, 32, 0.5))
    areas = []
    for size in (128, 512, 2048, 4096):
        problem = SpmmProblem(size, size, size, DType.FLOAT16)
        heuristic = FAMILY.heuristic(problem, replace(features, m=size, k=size), H100)
        areas.append(heuristic.tile_m * heuristic.tile_n)
        assert not FAMILY.broken_constraints(problem, heuristic, H100)
    assert areas == sorted(areas) and areas[0] == 64 * 64 and areas[-1] >= 64 * 256


def test_too_few_columns_for_a_cluster_take_the_narrowest_tiles() -> None:
    problem = SpmmProblem(1024, 1024, 64, DType.FLOAT16)
    heuristic = FAMILY.heuristic(problem, Features.of(dense_blocks(128, 128, 32, 0.5)), H100)
    assert (heuristic.tile_n, heuristic.cluster) == (64, 1)
    assert not FAMILY.broken_constraints(problem, heuristic, H100)
