"""`bitmap_spmm`: what its tiles hold, and products over several tiles, parts and blocks of a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvcc_builds import needs_nvcc, ptxas
from tuning_samples import H100

from sparsegen.backends.emulator import device
from sparsegen.backends.emulator.sanitized import run_sanitized
from sparsegen.backends.emulator.toolchain import EmulatorToolchain
from sparsegen.errors import ConfigError
from sparsegen.kernels import family
from sparsegen.kernels.spmm.bitmap_spmm import expected_slots
from sparsegen.kernels.spmm.bitmaps import HEAD_WORDS, TILE_K, TILE_M, WARPS, bitmaps
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.render import render
from sparsegen.system.device_memory import WARP
from sparsegen.testing.launches import call
from sparsegen.testing.matrices import csr
from sparsegen.verify.bounds import worst_error

FAMILY = family("bitmap_spmm")


def dense_of(matrix: CsrMatrix, granule: int) -> np.ndarray:
    """Decodes the tiles, by PTX's layout of fragments of mma.m16n8k16 over a warp's lanes."""
    laid = bitmaps(matrix, granule)
    found = np.zeros((laid.row_tiles * TILE_M, laid.steps * TILE_K))
    heads = laid.heads.reshape(laid.row_tiles, laid.steps, HEAD_WORDS)
    for tile, step in np.ndindex(heads.shape[:2]):
        head, first = heads[tile, step], laid.offsets[tile * laid.steps + step]
        for warp, lane in np.ndindex(WARPS, WARP):
            slot = first + int(head[warp]) // laid.slot_bytes
            for bit in range(32 // granule):
                if not int(head[WARPS + warp * WARP + lane]) >> bit & 1:
                    continue
                for e in range(granule):
                    product, a = divmod(bit * granule + e, 8)  # of four products; a0 to a7 of PTX's table
                    row = lane // 4 + (8 if a in (2, 3, 6, 7) else 0)
                    column = lane % 4 * 2 + a % 2 + (8 if a >= 4 else 0)
                    source = laid.source[(slot * WARP + lane) * granule + e]
                    place = tile * TILE_M + warp * 16 + row, step * TILE_K + product * 16 + column
                    found[place] = matrix.values[source] if source >= 0 else 0
                slot += 1
    return found


@pytest.mark.parametrize("granule", [1, 2])
@pytest.mark.parametrize(
    ("m", "k", "density"), [(1, 1, 1.0), (130, 70, 0.3), (128, 64, 1.0), (200, 65, 0.01)]
)
def test_tiles_hold_the_matrix(m: int, k: int, density: float, granule: int) -> None:
    matrix = random_uniform(m, k, density, 1)
    found = dense_of(matrix, granule)
    np.testing.assert_array_equal(found[:m, :k], matrix.to_dense())
    assert np.count_nonzero(found) == matrix.nnz


def test_slots_are_as_many_as_the_fullest_lane_has() -> None:
    dense = np.zeros((256, 64), dtype=np.float32)
    dense[0, [0, 1, 16]] = dense[16, 5] = 1  # three of lane 0 of the first warp, one of the second's
    for granule, slots in ((1, 4), (2, 3)):
        laid = bitmaps(csr(dense), granule)
        assert laid.offsets.tolist() == [0, slots, slots]
        assert laid.most_bytes == slots * granule * 64
        assert (laid.source >= 0).sum() == 4


def worst(
    problem: SpmmProblem, matrix: CsrMatrix, toolchain: EmulatorToolchain, blocks: int, **tunables: Any
) -> float:
    """Returns the largest error over its bound, of a launch on ``blocks`` multiprocessors."""
    config = FAMILY.config(**tunables)
    assert not FAMILY.broken_constraints(problem, config, device())
    given = problem.random_operands(np.random.default_rng(0), matrix.nnz)
    packed = FAMILY.pack(problem, config, matrix)
    prepared = call(FAMILY, problem, config, packed, given, 0)
    launch = FAMILY.launch(problem, config, packed.sizes, replace(device(), multiprocessors=blocks))
    kernel = toolchain.compile_sanitized(FAMILY.name, FAMILY.entry, render(FAMILY, problem, config))
    arrays = run_sanitized(kernel.binary, launch, prepared.arguments)
    return worst_error(problem.reference(matrix, given), arrays[prepared.result])


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("layout", "tunables"),
    [
        (Layout.ROW, {"tile_n": 64, "cluster": 2, "splits": 4}),  # the last cluster has one tile of rows
        (Layout.COLUMN, {"tile_n": 64, "cluster": 2, "splits": 2, "granule": 2}),
        (Layout.COLUMN, {"tile_n": 128, "splits": 1}),
    ],
    ids=str,
)
def test_blocks_compute_several_tiles(
    layout: Layout, tunables: dict[str, Any], emulator_toolchain: EmulatorToolchain
) -> None:
    dense = random_uniform(272, 328, 0.2, 3).to_dense()
    dense[128:256, 64:128] = 0.5  # a full tile, for which stages are largest
    dense[256:, :64] = 0  # and an empty one
    matrix = csr(dense.astype(np.float32))
    problem = SpmmProblem(272, 328, 136, DType.FLOAT16, layout)
    assert worst(problem, matrix, emulator_toolchain, 2, **tunables) <= 1


def test_scope_in_words() -> None:
    for problem, tunables, sentence in (
        (SpmmProblem(64, 64, 8, DType.FLOAT32), {}, "warpgroups multiply 16-bit elements"),
        (SpmmProblem(64, 64, 9, DType.FLOAT16), {}, "whole chunks of 16 bytes"),
        (
            SpmmProblem(64, 64, 8, DType.FLOAT16),
            {"splits": 2},
            "each of splits .2. parts has some of 1 steps",
        ),
        (SpmmProblem(65536, 512, 512, DType.FLOAT16), {"splits": 8}, "parts of sums take"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            FAMILY.require_valid(problem, FAMILY.config(**tunables), device())


def test_the_heuristic_fills_the_device() -> None:
    for m, n in ((8192, 128), (4096, 32), (4096, 2048), (512, 256)):
        problem = SpmmProblem(m, 4096, n, DType.FLOAT16)
        features = problem.features(random_uniform(m, 4096, 0.2, 0))
        config = FAMILY.heuristic(problem, features, H100)
        blocks = FAMILY.launch(problem, config, FAMILY.expected_sizes(problem, features, config), H100).grid[
            0
        ]
        assert blocks > 0.9 * 132, (m, n, config)


@pytest.mark.parametrize("granule", [1, 2])
@pytest.mark.parametrize("density", [0.05, 0.2, 0.5, 1.0])
def test_slots_are_foreseen(density: float, granule: int) -> None:
    laid = bitmaps(random_uniform(1024, 512, density, 0), granule)
    each = laid.source.size / granule / (laid.row_tiles * laid.steps * WARPS * WARP)
    assert expected_slots(density, granule) == pytest.approx(each, rel=0.1)


@needs_nvcc
@pytest.mark.parametrize(
    "tunables",
    [{"tile_n": 256, "cluster": 2, "splits": 8}, {"tile_n": 256, "splits": 4, "granule": 2}],
    ids=str,
)
def test_nvcc_spills_nothing_and_lets_products_overlap(tunables: dict[str, Any], tmp_path: Path) -> None:
    problem = SpmmProblem(8192, 2048, 256, DType.FLOAT16, Layout.COLUMN)
    said = ptxas(render(FAMILY, problem, FAMILY.config(**tunables)), tmp_path)
    assert "0 bytes spill stores, 0 bytes spill loads" in said, said
    # What ptxas says where it serializes wgmma, or does not heed setmaxnreg.
    assert "(C75" not in said, said
