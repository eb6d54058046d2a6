"""`mma_spmm` with whole tiles stored: what is packed, that it is multiplied rightly, and when it suits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tuning_samples import H100

import sparsegen
from sparsegen.errors import ConfigError, MatrixError
from sparsegen.kernels import family
from sparsegen.kernels.spmm import strips
from sparsegen.kernels.spmm.mma_spmm import FAMILY
from sparsegen.kernels.spmm.mma_spmm_config import MmaSpmmConfig
from sparsegen.kernels.spmm.tensor_tiles import (
    block_side,
    padded_places,
    stored_begins,
    swizzled_places,
    tile_lists,
)
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import as_csr
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Layout, SpmmProblem
from sparsegen.testing.matrices import dense_blocks, matrices
from sparsegen.tuning.space import Space
from sparsegen.verify.bounds import worst_error

TILES = MmaSpmmConfig(
    tile_m=32, tile_n=32, tile_k=32, warps_m=2, warps_n=1, storage="tiles", stages=2, prefetch=1
)


# --- packing ---


@pytest.mark.parametrize("name", matrices())
def test_tiles_hold_every_nonzero_at_its_place(name: str) -> None:
    matrix = matrices()[name]
    problem, c = SpmmProblem(*matrix.shape, 8), TILES
    packed = FAMILY.pack(problem, c, matrix)
    panels, area = packed.sizes["panels"], c.tile_m * c.tile_k
    counts = packed.arrays["tile_counts"]
    if not matrix.shape[0]:
        assert not counts.any()
        return
    tiles = packed.arrays["tiles"][: 2 * counts.size * (panels + 1)].reshape(counts.size, panels + 1, 2)
    place_of = swizzled_places(c.tile_m, c.tile_k, 4)
    rebuilt = np.zeros((counts.size * c.tile_m, panels * c.tile_k), dtype=np.float32)
    numbers = []
    for block in range(counts.size):
        for panel, number in tiles[block, : counts[block]]:
            numbers.append(number)
            values = packed.arrays["values"][number * area : (number + 1) * area]
            assert values.any(), "tiles without nonzeros are left out"
            rebuilt[block * c.tile_m : (block + 1) * c.tile_m, panel * c.tile_k : (panel + 1) * c.tile_k] = (
                values[place_of].reshape(c.tile_m, c.tile_k)
            )
    assert numbers == list(range(len(numbers)))
    m, k = matrix.shape
    np.testing.assert_array_equal(rebuilt[:m, :k], matrix.to_scipy().toarray())


def test_lists_of_tiles_and_of_nonzeros() -> None:
    lengths = np.array([[0, 3, 0], [9, 0, 8]])
    counts, tiles = tile_lists(lengths > 0, 1)
    assert counts.tolist() == [1, 2]
    assert tiles.reshape(2, 4, 2)[0, :2].tolist() == [[1, 0], [0, 1]]
    assert tiles.reshape(2, 4, 2)[1, :3].tolist() == [[0, 1], [2, 2], [1, 3]]
    counts, tiles = tile_lists(lengths, 8)
    assert tiles.reshape(2, 4, 2)[1, :3].tolist() == [[0, 8], [2, 24], [1, 32]]


def test_more_tiles_than_offsets_reach_are_refused() -> None:
    lengths = np.ones((1 << 9, 1 << 9), dtype=np.int64)
    with pytest.raises(MatrixError, match="split the matrix by rows"):
        stored_begins(lengths, 1 << 13)
    with pytest.raises(MatrixError, match="split the matrix by rows"):
        padded_places(lengths << 13)


def test_strips_make_what_the_whole_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed by strips of a few rows of tiles in threads: tiles, nonzeros, blocks, and bits."""
    rng = np.random.default_rng(3)
    dense = np.where(rng.random((300, 210)) < 0.4, rng.standard_normal((300, 210)), 0)
    dense[37:140] = 0
    matrix = as_csr(dense.astype(np.float32))
    wanted = SpmmProblem.of(matrix.shape, n=64, dtype=DType.FLOAT16)
    ways = [
        (family("mma_spmm"), replace(TILES, tile_m=32)),
        (family("mma_spmm"), family("mma_spmm").config(tile_m=64, tile_k=32)),
        *((family(name), family(name).config()) for name in ("block_spmm", "tma_block_spmm", "bitmap_spmm")),
        (family("turned_block_spmm"), family("turned_block_spmm").config()),
    ]
    found: list[list[dict[str, object]]] = []
    for nonzeros in (strips.NONZEROS, 2000):
        monkeypatch.setattr(strips, "NONZEROS", nonzeros)
        assert len(strips.by_strips(matrix, 64, lambda strip: strip)) == (1 if nonzeros > 2000 else 5)
        found.append([])
        for one, config in ways:
            packed = one.pack(wanted, config, matrix)
            assert packed.value_source is not None
            found[-1].append({**packed.arrays, "source": packed.value_source(), "sizes": dict(packed.sizes)})
    for whole, parts in zip(*found, strict=True):
        assert whole.keys() == parts.keys()
        for name in whole:
            np.testing.assert_equal(parts[name], whole[name], err_msg=name)


# --- what it computes ---


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(
    "config, dtype",
    [
        (TILES, DType.FLOAT32),
        (replace(TILES, tile_m=64, tile_n=64, tile_k=64, stages=3), DType.BFLOAT16),
        (replace(TILES, warps_k=2, stages=4), DType.FLOAT16),
    ],
)
def test_products_with_empty_rows_of_tiles_and_more_tiles_than_stages(
    config: MmaSpmmConfig, dtype: DType, layout: Layout
) -> None:
    matrix, n = dense_blocks(256, 1024, 32, 0.5, empty=slice(64, 128)), 72
    problem = SpmmProblem(256, 1024, n, dtype, layout)
    operator = sparsegen.prepare(
        matrix,
        n=n,
        dtype=dtype,
        layout=layout,
        family="mma_spmm",
        config=config.to_dict(),
        device="emulator",
    )
    rng = np.random.default_rng(1)
    for _ in range(2):
        operands = problem.random_operands(rng, matrix.nnz)
        result = operator(dtype.from_storage(operands["b"]))
        reference = problem.reference(matrix, operands)
        assert worst_error(reference, problem.dtype.to_storage(result)) <= 1
        matrix = matrix.with_values(rng.standard_normal(matrix.nnz).astype(np.float32))
        operator.update_values(matrix)


# --- where it is tried ---


def test_it_suits_filled_blocks_alone() -> None:
    problem = SpmmProblem(2048, 1024, 2048, DType.FLOAT16)
    scattered = random_uniform(2048, 1024, 0.1, 0)
    for matrix, suits in ((dense_blocks(2048, 1024, 32, 0.3), True), (scattered, False)):
        features = Features.of(matrix)
        assert FAMILY.suits(problem, features, TILES, H100) is suits
        heuristic = FAMILY.heuristic(problem, features, H100)
        space = Space.build([FAMILY], problem, H100, features=features, first=[heuristic])
        assert any(c.storage == "tiles" for c in space.candidates) is suits
    with pytest.raises(ConfigError, match="whole tiles want 15% or more"):
        sparsegen.prepare(
            scattered,
            n=64,
            dtype="float16",
            family="mma_spmm",
            config=TILES.to_dict(),
            device="emulator",
        )


def test_blocks_are_first_tried_as_whole_tiles_large_and_small() -> None:
    """Features do not tell whether blocks fill the large tiles; few blocks hardly do."""
    problem = SpmmProblem(2048, 1024, 2048, DType.FLOAT16)
    for share, tile in ((0.5, (128, 128, 64)), (0.1, (32, 128, 32))):
        features = Features.of(dense_blocks(2048, 1024, 32, share))
        heuristic = FAMILY.heuristic(problem, features, H100)
        assert heuristic.storage == "tiles" and (heuristic.tile_m, heuristic.tile_n, heuristic.tile_k) == tile
        others = FAMILY.alternatives(problem, features, H100)
        assert {(c.tile_m, c.tile_n, c.tile_k) for c in others} == {(128, 128, 64), (32, 128, 32)}
        assert all(FAMILY.suits(problem, features, c, H100) for c in (heuristic, *others))
    scattered = Features.of(random_uniform(2048, 1024, 0.1, 0))
    assert FAMILY.alternatives(problem, scattered, H100) == ()


@pytest.mark.parametrize("share", [0.2, 0.3])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_the_width_of_blocks_is_read_off_the_rows_and_the_nonzeros(size: int, share: float) -> None:
    features = Features.of(dense_blocks(2048, 2048, size, share))
    assert block_side(features) == size
    # Blocks at an edge are cut off: the variation of the rows tells about how wide they are.
    cut = replace(features, nnz=features.nnz - 1)
    assert size / 2 <= block_side(cut) <= 2 * size


Tried = tuple[tuple[int, int, int], tuple[int, int, int], int, int, float]
# On an H100, float32: m, k, n and the share of nonzeros; tile, warps, stages and blocks of whole tiles, and their µs.
FEW_WARPS = [
    ((2048, 2048, 256, 0.5), ((64, 64, 64), (1, 1, 4), 3, 2, 62.2), ((64, 32, 64), (1, 1, 4), 3, 1, 44.7)),
    ((512, 128, 784, 0.3), ((64, 64, 64), (1, 1, 4), 3, 2, 11.6), ((64, 16, 32), (2, 1, 2), 3, 1, 8.3)),
]


@pytest.mark.parametrize(("product", "slow", "fast"), FEW_WARPS)
def test_few_warps_of_many_sums_are_expected_to_wait_and_to_spill(
    product: tuple[int, int, int, float], slow: Tried, fast: Tried
) -> None:
    m, k, n, share = product
    features = Features(m, k, int(m * k * share), k * share, 0.05, int(1.1 * k * share), share)
    expected = []
    for tile, warps, stages, blocks, us in (slow, fast):
        config = MmaSpmmConfig(*tile, False, *warps, "tiles", stages, 1, blocks)
        expected.append(FAMILY.analytic_us(SpmmProblem(m, k, n, DType.FLOAT32), features, config, H100))
        assert expected[-1] == pytest.approx(us, rel=0.2)
    assert expected[0] > 1.1 * expected[1]


def test_warpgroups_multiply_what_was_expanded() -> None:
    problem = SpmmProblem(256, 1024, 64, DType.FLOAT16)
    config = MmaSpmmConfig(tile_m=64, tile_k=64, warpgroups=True, warps_m=4, warps_n=1, storage="tiles")
    [sentence] = FAMILY.broken_constraints(problem, config, H100)
    assert "whole tiles are for block_spmm" in sentence
    assert not FAMILY.broken_constraints(problem, replace(config, storage="nonzeros"), H100)
