"""The lane-stream format: what its packer lays down is read back bit by bit, as the kernel reads it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from contract_cases import csr, matrices
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen.formats import Array, CsrMatrix
from sparsegen.kernels._lane_stream import LANES, PAIR, LaneStreams, Partition, balanced_rows, pack

SLACK, TIGHT = 110, 14


def unpack(streams: LaneStreams, partition: Partition, *, refill_tiles: int, slack: int) -> Array:
    """For each weight (places of rows by columns, filled to whole steps) the nonzero's number in CSR order, or -1."""
    p = partition
    found = np.full((p.groups * p.warps_m * 32, p.steps * p.warps_k * 64), -1, dtype=np.int64)
    source, begins = streams.source.reshape(-1, LANES, 8), p.begins()
    for block in range(p.used_blocks):
        for warp in range(p.warps):
            number = block * p.warps + warp
            first, last = streams.starts[number] * 2, streams.starts[number + 1] * 2
            lanes = source[first:last].transpose(1, 0, 2).reshape(LANES, -1)
            at = np.zeros(LANES, dtype=np.int64)
            tiles = 0
            for step in range(begins[block], begins[block + 1]):
                group, within = divmod(step, p.steps)
                row = (group * p.warps_m + warp % p.warps_m) * 32
                for tile in range(2):
                    if tiles % refill_tiles == 0 and at.max() - at.min() > slack:
                        at[:] = at.max()
                    tiles += 1
                    column = (within * p.warps_k + warp // p.warps_m) * 64 + tile * 32
                    for lane in range(LANES):
                        mask = int(streams.masks[step, warp, lane, tile])
                        at[lane] += _read_tile(found[row:, column:], mask, lane, lanes[lane, at[lane] + 1 :])
                    assert at.max() + 2 <= lanes.shape[1], "the ring is filled two elements further"
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
    matrix: CsrMatrix, partition: Partition, refill_tiles: int, slack: int, balanced: bool
) -> None:
    rows = balanced_rows(np.diff(matrix.row_offsets), partition) if balanced else None
    streams = pack(matrix, partition, refill_tiles=refill_tiles, slack=slack, rows=rows)
    found = unpack(streams, partition, refill_tiles=refill_tiles, slack=slack)
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
    for number, (warps_m, warps_k, blocks, slack) in enumerate(((1, 1, 3, TIGHT), (4, 2, 2, SLACK))):
        partition = Partition(*matrix.shape, warps_m, warps_k, blocks)
        assert_round_trip(matrix, partition, 1 + number, slack, balanced)


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 70),
    k=st.integers(1, 300),
    warps=st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 2)]),
    blocks=st.integers(1, 5),
    refill_tiles=st.integers(1, 2),
    slack=st.integers(1, 40),
    seed=st.integers(0, 2**16),
)
def test_uneven_rows_come_back(
    m: int, k: int, warps: tuple[int, int], blocks: int, refill_tiles: int, slack: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dense = (rng.random((m, k)) < rng.random((m, 1)) ** 2).astype(np.float32)
    matrix = csr(dense)
    assert_round_trip(matrix, Partition(m, k, *warps, blocks), refill_tiles, slack, balanced=bool(seed % 2))


def bytes_per_weight(matrix: CsrMatrix, partition: Partition, rows: Array | None = None) -> float:
    streams = pack(matrix, partition, refill_tiles=1, slack=SLACK, rows=rows)
    return (streams.masks.nbytes + 2 * streams.source.size) / (matrix.shape[0] * matrix.shape[1])


def test_streams_are_hardly_longer_than_their_values() -> None:
    rng = np.random.default_rng(0)
    matrix = csr((rng.random((256, 4096)) < 0.5).astype(np.float32))
    floor = 1 / 8 + 2 * matrix.nnz / (256 * 4096)
    assert bytes_per_weight(matrix, Partition(256, 4096, 8, 1, 2)) < 1.12 * floor


def test_balanced_rows_keep_uneven_lanes_together() -> None:
    rng = np.random.default_rng(0)
    density = np.clip(rng.lognormal(np.log(0.3), 0.5, (512, 1)), 0.02, 0.95)
    matrix = csr((rng.random((512, 1024)) < density).astype(np.float32))
    partition = Partition(512, 1024, 8, 1, 4)
    rows = balanced_rows(np.diff(matrix.row_offsets), partition)
    natural, balanced = bytes_per_weight(matrix, partition), bytes_per_weight(matrix, partition, rows)
    assert balanced < 0.85 * natural
    assert balanced < 1.2 * (1 / 8 + 2 * matrix.nnz / (512 * 1024))


def test_equal_shares_of_the_steps() -> None:
    partition = Partition(1000, 4000, 4, 1, 13)
    runs = np.diff(partition.begins())
    assert runs.sum() == partition.total == 8 * 63 and np.ptp(runs) <= 1
    assert Partition(32, 64, 1, 1, 13).used_blocks == 1
    assert Partition(0, 64, 1, 1, 13).used_blocks == 0 and Partition(32, 0, 1, 1, 13).total == 1


def test_the_ring_is_long_enough_for_every_lane() -> None:
    """Before each refill all that lanes still need lies within the ring, by the kernel's rule for filling it."""
    rng = np.random.default_rng(1)
    dense = (rng.random((32, 4096)) < np.linspace(0.05, 1.0, 32)[:, None]).astype(np.float32)
    for ring_rows, refill_tiles in ((96, 1), (96, 2), (160, 1)):
        slack = ring_rows - 32 * refill_tiles - PAIR - 2
        partition = Partition(32, 4096, 1, 1, 1)
        streams = pack(csr(dense), partition, refill_tiles=refill_tiles, slack=slack)
        masks = streams.masks[:, 0].transpose(0, 2, 1).reshape(-1, refill_tiles, LANES)
        counts = np.bitwise_count(masks).sum(axis=1).astype(np.int64)
        at, drifted = np.zeros(LANES, dtype=np.int64), 0
        for taken in counts:
            if at.max() - at.min() > slack:
                at[:], drifted = at.max(), drifted + 1
            filled = -(-((at + taken).max() + 2) // PAIR) * PAIR
            assert at.min() + 1 >= filled - ring_rows
            at += taken
        assert drifted > 3
