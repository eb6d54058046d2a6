"""The code-stream format: what its packer lays down is read back as the kernel reads it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegen.kernels.layouts.lane_stream import LANES, Partition
from sparsegen.kernels.layouts.lane_stream_rows import levelled_rows
from sparsegen.kernels.quantized.code_streams import (
    AHEAD,
    TILES,
    CodeStreams,
    Unit,
    pack,
    stored_codes,
)
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.testing.matrices import csr, matrices

UNITS = (Unit(4), Unit(8), Unit(8, codes=2))
of_every_unit = pytest.mark.parametrize("unit", UNITS, ids=["4 bits", "8 bits", "pairs"])


def unpack(streams: CodeStreams, partition: Partition, *, unit: Unit, ring_chunks: int, depth: int) -> Array:
    """For each weight (places of rows by columns, filled to whole steps) the nonzero's number in CSR order, or -1.

    Asserts that what is read lies in the ring at that time.
    """
    p, of_chunk, of_word = partition, unit.of_chunk, unit.of_word
    found = np.full((p.groups * p.warps_m * 32, p.steps * p.warps_k * 128), -1, dtype=np.int64)
    words, begins = streams.source.reshape(-1, LANES, of_word, unit.codes), p.begins()
    for block in range(p.used_blocks):
        for warp in range(p.warps):
            number = block * p.warps + warp
            first, last = streams.starts[number] * 8, streams.starts[number + 1] * 8
            lanes = words[first:last].transpose(1, 0, 2, 3).reshape(LANES, -1, unit.codes)
            at, chunks = np.zeros(LANES, dtype=np.int64), 0
            for step in range(begins[block], begins[block + 1]):
                order = int(streams.orders[step, warp])
                chunks += order
                if order:
                    np.maximum(at, (chunks + depth - ring_chunks) * of_chunk, out=at)
                assert at.min() >= (chunks + depth - ring_chunks) * of_chunk, "what is read was overwritten"
                group, within = divmod(step, p.steps)
                row = (group * p.warps_m + warp % p.warps_m) * 32
                column = (within * p.warps_k + warp // p.warps_m) * 128
                for tile in range(TILES):
                    into = found[row:, column + 32 * tile :]
                    for lane in range(LANES):
                        mask = int(streams.masks[step, warp, lane, tile])
                        at[lane] += _read_tile(into, mask, lane, lanes[lane, at[lane] :])
                assert at.max() + AHEAD <= chunks * of_chunk, "what may be read has come"
            assert chunks * of_chunk == lanes.shape[1]
    return found


def _read_tile(into: Array, mask: int, lane: int, stream: Array) -> int:
    """Puts one lane's units of a tile to their places, and says how many there were."""
    read, pairs = 0, stream.shape[1] == 2
    for bit in range(16 if pairs else 32):
        if mask >> bit & 1:
            assert stream[read].max() >= 0
            for code, number in enumerate(stream[read]):
                if pairs:
                    product, register, high = bit // 4, bit % 2 * 2 + code, bit // 2 % 2
                else:
                    product, register, high = bit // 8, bit // 2 % 4, bit % 2
                row = product % 2 * 16 + register % 2 * 8 + lane // 4
                column = lane % 4 * 8 + product // 2 * 4 + register // 2 * 2 + high
                into[row, column] = number
            read += 1
    return read


def assert_round_trip(
    matrix: CsrMatrix, partition: Partition, *, unit: Unit, ring_chunks: int, depth: int, balanced: bool
) -> None:
    rows = levelled_rows(matrix, partition) if balanced else None
    streams = pack(matrix, partition, unit=unit, ring_chunks=ring_chunks, depth=depth, rows=rows)
    found = unpack(streams, partition, unit=unit, ring_chunks=ring_chunks, depth=depth)
    assert np.count_nonzero(streams.source >= 0) == matrix.nnz
    m, k = matrix.shape
    places = np.arange(found.shape[0]) if rows is None else rows
    whole = np.full((m, found.shape[1]), -1, dtype=np.int64)
    whole[places[places < m]] = found[places < m]
    numbered = matrix.with_values(np.arange(1, matrix.nnz + 1, dtype=np.float64)).to_scipy()
    expected = np.asarray(scipy.sparse.csr_array(numbered).toarray(), dtype=np.int64) - 1
    np.testing.assert_array_equal(whole[:, :k], expected)
    assert (found[places >= m] == -1).all() and (whole[:, k:] == -1).all()


@pytest.mark.parametrize("name", matrices())
@of_every_unit
def test_every_matrix_comes_back(name: str, unit: Unit) -> None:
    matrix = matrices()[name]
    for warps_m, warps_k, blocks, balanced in ((1, 1, 3, False), (4, 2, 2, True)):
        partition = Partition(*matrix.shape, warps_m, warps_k, blocks, tiles=TILES)
        assert_round_trip(matrix, partition, unit=unit, ring_chunks=8, depth=2, balanced=balanced)


@settings(max_examples=15)
@given(
    m=st.integers(1, 140),
    k=st.integers(1, 500),
    warps=st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 2)]),
    blocks=st.integers(1, 5),
    ring=st.sampled_from([(0, 8, 1), (0, 8, 4), (1, 8, 2), (1, 16, 6), (2, 8, 4), (2, 16, 6)]),
    seed=st.integers(0, 2**16),
)
def test_uneven_rows_come_back(
    m: int, k: int, warps: tuple[int, int], blocks: int, ring: tuple[int, int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dense = (rng.random((m, k)) < rng.random((m, 1)) ** 2).astype(np.float32)
    number, ring_chunks, depth = ring
    unit = UNITS[number]
    partition = Partition(m, k, *warps, blocks, tiles=TILES)
    assert_round_trip(
        csr(dense), partition, unit=unit, ring_chunks=ring_chunks, depth=depth, balanced=bool(seed % 2)
    )


def test_lanes_that_are_a_ring_behind_are_brought_up() -> None:
    """Rows from nearly empty to full drift apart; `unpack` asserts that nothing is overwritten that is still read."""
    rng = np.random.default_rng(1)
    dense = (rng.random((32, 4096)) < np.linspace(0.05, 1.0, 32)[:, None]).astype(np.float32)
    partition = Partition(32, 4096, 1, 1, 1, tiles=TILES)
    for unit, depth in zip(UNITS, (4, 2, 4), strict=True):
        assert_round_trip(csr(dense), partition, unit=unit, ring_chunks=8, depth=depth, balanced=False)
        streams = pack(csr(dense), partition, unit=unit, ring_chunks=8, depth=depth)
        emptiest = streams.source.reshape(-1, LANES, unit.of_word, unit.codes)[:, 0].max(axis=-1).ravel() >= 0
        assert np.flatnonzero(emptiest).max() > 1.2 * np.count_nonzero(emptiest), "some are left out"


def test_streams_are_hardly_longer_than_their_codes() -> None:
    rng = np.random.default_rng(0)
    matrix = csr((rng.random((256, 4096)) < 0.5).astype(np.float32))
    for unit, bits in zip(
        UNITS, (4, 8, 6), strict=True
    ):  # 3 of 4 pairs are there, of 2 of whose weights they hold 4/3
        streams = pack(matrix, Partition(256, 4096, 8, 1, 2, tiles=TILES), unit=unit, ring_chunks=8, depth=1)
        taken = streams.masks.nbytes + streams.source.size * unit.bits / unit.codes / 8
        assert taken < 1.12 * (256 * 4096 / 8 / unit.codes + matrix.nnz * bits / 8)


def test_codes_of_four_bits_come_in_pairs() -> None:
    codes, source = np.array([1, 15, 7], dtype=np.uint8), np.array([0, -1, 2, 1], dtype=np.int32)
    np.testing.assert_array_equal(stored_codes(codes, source, Unit(bits=8, codes=2)), [0x81, 0xF7])
    np.testing.assert_array_equal(stored_codes(codes, source, Unit(8)), [1, 0, 7, 15])
