"""The lane-stream format: what its packer lays down is read back bit by bit, as the kernel reads it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen.kernels.layouts.lane_stream import LANES, PAIR, LaneStreams, Partition, _positions, pack
from sparsegen.kernels.layouts.lane_stream_rows import _in_runs, balanced_rows, levelled_rows
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.testing.matrices import csr, matrices

ROOMY, TIGHT = 160, 96
HEAD = 3  # pairs of a stream that lie in front


def unpack(streams: LaneStreams, partition: Partition, *, refill_tiles: int, ring_rows: int) -> Array:
    """For each weight (places of rows by columns, filled to whole steps) the nonzero's number in CSR order, or -1.

    Asserts that what is read lies in the ring at that time, as far as the orders have filled it.
    """
    p = partition
    found = np.full((p.groups * p.warps_m * 32, p.steps * p.warps_k * 64), -1, dtype=np.int64)
    source, begins = streams.source.reshape(-1, LANES, 8), p.begins()
    for block in range(p.used_blocks):
        for warp in range(p.warps):
            number = block * p.warps + warp
            first, last = streams.starts[number] * 2, streams.starts[number + 1] * 2
            head = source[number * HEAD * 2 : (number + 1) * HEAD * 2]
            lanes = np.r_[head, source[first:last]].transpose(1, 0, 2).reshape(LANES, -1)
            at = np.zeros(LANES, dtype=np.int64)
            filled = 0
            for step in range(begins[block], begins[block + 1]):
                group, within = divmod(step, p.steps)
                row = (group * p.warps_m + warp % p.warps_m) * 32
                column = (within * p.warps_k + warp // p.warps_m) * 64
                for tile in range(2):
                    order = int(streams.orders[step, warp]) >> (16 * tile) & 0xFFFF
                    assert tile % refill_tiles == 0 or order == 0
                    filled += PAIR * (order & 7)
                    if order & 8:
                        assert at.min() < filled - ring_rows
                        np.maximum(at, filled - ring_rows, out=at)
                    assert at.min() + 1 >= filled - ring_rows, "the last lane's next row is not overwritten"
                    into = found[row:, column + 32 * tile :]
                    for lane in range(LANES):
                        mask = int(streams.masks[step, warp, lane, tile])
                        at[lane] += _read_tile(into, mask, lane, lanes[lane, at[lane] + 1 :])
                    assert at.max() + 2 <= filled, "the ring is filled two elements further"
            assert filled == lanes.shape[1] or filled < lanes.shape[1] == HEAD * PAIR
    return found


def _read_tile(into: Array, mask: int, lane: int, stream: Array) -> int:
    """Puts one lane's nonzeros of a tile to their places, and says how many there were."""
    read = 0
    for product in range(4):
        for register in range(4):
            for high in range(2):
                if mask >> (8 * register + 2 * product + high) & 1:
                    row = product % 2 * 16 + register % 2 * 8 + lane // 4
                    column = lane % 4 * 8 + product // 2 * 4 + register // 2 * 2 + high
                    assert stream[read] >= 0
                    into[row, column] = stream[read]
                    read += 1
    return read


def expected(matrix: CsrMatrix) -> Array:
    numbered = matrix.with_values(np.arange(1, matrix.nnz + 1, dtype=np.float64)).to_scipy()
    return np.asarray(scipy.sparse.csr_array(numbered).toarray(), dtype=np.int64) - 1


def assert_round_trip(
    matrix: CsrMatrix, partition: Partition, refill_tiles: int, ring_rows: int, balanced: bool
) -> None:
    rows = levelled_rows(matrix, partition) if balanced else None
    streams = pack(
        matrix, partition, refill_tiles=refill_tiles, ring_rows=ring_rows, head_pairs=HEAD, rows=rows
    )
    found = unpack(streams, partition, refill_tiles=refill_tiles, ring_rows=ring_rows)
    assert np.count_nonzero(streams.source >= 0) == matrix.nnz
    m, k = matrix.shape
    places = np.arange(found.shape[0]) if rows is None else rows
    assert sorted(places[places < m]) == list(range(m)), "every row has one place"
    whole = np.full((m, found.shape[1]), -1, dtype=np.int64)
    whole[places[places < m]] = found[places < m]
    np.testing.assert_array_equal(whole[:, :k], expected(matrix))
    assert (found[places >= m] == -1).all() and (whole[:, k:] == -1).all()


@pytest.mark.parametrize("name", matrices())
@pytest.mark.parametrize("balanced", [False, True])
def test_every_matrix_comes_back(name: str, balanced: bool) -> None:
    matrix = matrices()[name]
    for number, (warps_m, warps_k, blocks, ring_rows) in enumerate(((1, 1, 3, TIGHT), (4, 2, 2, ROOMY))):
        partition = Partition(*matrix.shape, warps_m, warps_k, blocks)
        assert_round_trip(matrix, partition, 1 + number, ring_rows, balanced)


@settings(max_examples=25)
@given(
    m=st.integers(1, 140),
    k=st.integers(1, 300),
    warps=st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 2)]),
    blocks=st.integers(1, 5),
    refill_tiles=st.integers(1, 2),
    ring_rows=st.sampled_from([96, 112, 160]),
    seed=st.integers(0, 2**16),
)
def test_uneven_rows_come_back(
    m: int,
    k: int,
    warps: tuple[int, int],
    blocks: int,
    refill_tiles: int,
    ring_rows: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    dense = (rng.random((m, k)) < rng.random((m, 1)) ** 2).astype(np.float32)
    matrix = csr(dense)
    partition = Partition(m, k, *warps, blocks)
    assert_round_trip(matrix, partition, refill_tiles, ring_rows, balanced=bool(seed % 2))


def bytes_per_weight(matrix: CsrMatrix, partition: Partition, rows: Array | None = None) -> float:
    streams = pack(matrix, partition, refill_tiles=1, ring_rows=ROOMY, head_pairs=4, rows=rows)
    return (streams.masks.nbytes + 2 * streams.source.size) / (matrix.shape[0] * matrix.shape[1])


def test_streams_are_hardly_longer_than_their_values() -> None:
    rng = np.random.default_rng(0)
    matrix = csr((rng.random((256, 4096)) < 0.5).astype(np.float32))
    floor = 1 / 8 + 2 * matrix.nnz / (256 * 4096)
    assert bytes_per_weight(matrix, Partition(256, 4096, 8, 1, 2)) < 1.12 * floor


def uneven(m: int, k: int, density: float, row_cov: float) -> CsrMatrix:
    """Row lengths of this mean and, before rows are cut off at k, this coefficient of variation (lognormal)."""
    rng = np.random.default_rng(0)
    weights = np.exp(rng.standard_normal((m, 1)) * np.sqrt(np.log1p(row_cov**2)))
    scale = density / weights.mean()
    for _ in range(50):
        scale *= density / np.minimum(weights * scale, 1).mean()
    return csr((rng.random((m, k)) < weights * scale).astype(np.float32))


def over_bitmap_and_values(matrix: CsrMatrix, blocks: int, *, balanced: bool, refill_tiles: int) -> float:
    """Share of the bytes stored that a bitmap and bare values would not take, with rings of 160 elements."""
    partition = Partition(*matrix.shape, 8, 1, blocks)
    rows = balanced_rows(np.diff(matrix.row_offsets), partition) if balanced else None
    streams = pack(matrix, partition, refill_tiles=refill_tiles, ring_rows=ROOMY, head_pairs=4, rows=rows)
    weights = matrix.shape[0] * matrix.shape[1]
    return (streams.masks.nbytes + 2 * streams.source.size) / (weights / 8 + 2 * matrix.nnz) - 1


@pytest.mark.parametrize("row_cov", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("density", [0.5, 0.4, 0.3, 0.2])
def test_uneven_rows_cost_no_more_than_even_ones(density: float, row_cov: float) -> None:
    """In runs as long as those of 28672 x 8192 on 132 blocks within 5 % of bitmap and values. What remains is chance
    and the ends of runs. A place has four rows: one longer than four mean ones cannot be made up for.
    """
    matrix, refill_tiles = uneven(1024, 2048, density, row_cov), 1 if density >= 0.45 else 2
    lengths = np.diff(matrix.row_offsets)
    even, natural, balanced = (
        over_bitmap_and_values(one, 1, balanced=order, refill_tiles=refill_tiles)
        for one, order in ((uneven(1024, 2048, density, 0), False), (matrix, False), (matrix, True))
    )
    if lengths.max() > 4 * lengths.mean():
        assert balanced < natural - 0.1
    else:
        assert balanced < even + 0.01 and balanced < 0.05 < natural


def test_streams_hold_balanced_rows_longer_than_all_others_of_their_place() -> None:
    lengths = np.full(256, 40)
    lengths[7] = 2000
    partition = Partition(256, 2048, 4, 1, 2)
    rows = balanced_rows(lengths, partition)
    assert sorted(rows) == list(range(256))
    held = lengths[rows].reshape(-1, 4, 8).sum(axis=1)
    assert sorted(held.ravel())[:-1] == [40 * 4] * (256 // 4 - 1)


def test_equal_shares_of_the_steps() -> None:
    partition = Partition(1000, 4000, 4, 1, 13)
    runs = np.diff(partition.begins())
    assert runs.sum() == partition.total == 8 * 63 and np.ptp(runs) <= 1
    assert Partition(32, 64, 1, 1, 13).used_blocks == 1
    assert Partition(0, 64, 1, 1, 13).used_blocks == 0 and Partition(32, 0, 1, 1, 13).total == 1


@pytest.mark.parametrize(("ring_rows", "refill_tiles"), [(64, 1), (96, 2), (160, 2)])
@pytest.mark.parametrize("density", [0.05, 0.3, 0.5])
def test_the_kernel_finds_the_packers_places(ring_rows: int, refill_tiles: int, density: float) -> None:
    """A lane's position in its ring tells its position in its stream, however far behind it is."""
    partition = Partition(8192, 8192, 8, 1, 16)
    rng = np.random.default_rng(0)
    counts = rng.binomial(32, density, (partition.total, 8, 2, LANES)).astype(np.uint8)
    positions, orders, _ = _positions(counts, partition, refill_tiles, ring_rows)
    begins = partition.begins()
    at = np.zeros((partition.used_blocks, 8, LANES), dtype=np.int64)  # rows of rings
    filled = np.zeros((*at.shape[:2], 1), dtype=np.int64)
    left_out = 0
    for step in range(int(np.diff(begins).min())):
        which = begins[:-1] + step
        for tile in range(2):
            order = orders[which, :8, None].astype(np.int64) >> 16 * tile & 0xFFFF
            behind = filled % ring_rows - at
            behind[behind <= 0] += ring_rows
            skipped = np.maximum(0, behind - (ring_rows - PAIR * (order & 7))) * (order >> 3)
            left_out += np.count_nonzero(skipped)
            at, filled = (at + skipped) % ring_rows, filled + PAIR * (order & 7)
            np.testing.assert_array_equal(at, positions[which, :, tile] % ring_rows)
            at = (at + counts[which, :, tile]) % ring_rows
    assert left_out > 0 or density < 0.1


def test_drifting_lanes_are_brought_together_in_time() -> None:
    """Rows from nearly empty to full; `unpack` asserts that nothing is overwritten that is still to be read."""
    rng = np.random.default_rng(1)
    dense = (rng.random((32, 4096)) < np.linspace(0.05, 1.0, 32)[:, None]).astype(np.float32)
    partition = Partition(32, 4096, 1, 1, 1)
    for ring_rows, refill_tiles in ((64, 1), (96, 2), (160, 1)):
        assert_round_trip(csr(dense), partition, refill_tiles, ring_rows, balanced=False)
        streams = pack(csr(dense), partition, refill_tiles=refill_tiles, ring_rows=ring_rows, head_pairs=HEAD)
        assert np.count_nonzero(streams.orders & 0x80008) > 3


@pytest.mark.parametrize("warps", [(1, 1), (4, 1), (2, 2), (1, 4)])
def test_what_lanes_have_in_runs(warps: tuple[int, int]) -> None:
    """Streams are as long as those of the fullest lanes by this count, over the one or two groups of a block's run."""
    matrix = uneven(200, 700, 0.4, 0.5)
    warps_m, warps_k = warps
    partition = Partition(200, 700, warps_m, warps_k, 7)
    rows = balanced_rows(np.diff(matrix.row_offsets), partition)
    counted = _in_runs(matrix, partition, rows.reshape(-1, 32))
    held = counted.reshape(partition.groups, warps_m, 4, 8, -1, warps_k, 4).sum(axis=2)
    streams = pack(matrix, partition, refill_tiles=1, ring_rows=10**6, head_pairs=0, rows=rows)
    pairs = np.diff(streams.starts).reshape(-1, warps_k, warps_m)
    begins = partition.begins()
    for block in range(partition.used_blocks):
        reached = np.zeros((warps_k, warps_m, 8, 4), dtype=np.int64)
        groups = np.unique(np.arange(begins[block], begins[block + 1]) // partition.steps)
        for group in groups:
            first = np.searchsorted(begins, group * partition.steps, side="right") - 1
            reached += held[group, :, :, block - first].transpose(2, 0, 1, 3)
        np.testing.assert_array_equal(pairs[block], -(-(reached.max(axis=(2, 3)) + 2) // PAIR))


def test_short_runs_are_levelled() -> None:
    """Runs are as short for 4096 x 4096 on 132 blocks."""
    partition = Partition(1024, 1024, 8, 1, 8)
    for density, most in ((0.5, 0.105), (0.25, 0.17)):
        matrix = uneven(1024, 1024, density, 0.3)
        by_length = balanced_rows(np.diff(matrix.row_offsets), partition)
        levelled = levelled_rows(matrix, partition)
        assert sorted(levelled) == list(range(1024))
        stored = [
            pack(matrix, partition, refill_tiles=1, ring_rows=ROOMY, head_pairs=4, rows=r).source.size
            for r in (by_length, levelled)
        ]
        assert stored[1] < 0.975 * stored[0]
        over = (1024 * 1024 / 8 + 2 * stored[1]) / (1024 * 1024 / 8 + 2 * matrix.nnz) - 1
        assert over < most
        np.testing.assert_array_equal(levelled, levelled_rows(matrix, partition), "the order does not change")
