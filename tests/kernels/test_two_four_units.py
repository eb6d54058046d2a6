"""The 2:4 format: what its packer lays down is read back as the products read it."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.kernels.layouts import two_four
from sparsegen.kernels.layouts.two_four import Units, pack
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.system.numpy_types import Array
from sparsegen.testing.matrices import csr, matrices

ZERO = 8


def code_of(vectors: Array, bits: int, paired: bool, step: int, tile: int, register: int, place: int) -> int:
    """A lane's code for a place of a four, of its vectors in a unit (bytes)."""
    if bits == 16:
        word = 4 * register + 2 * place
        return int(vectors[4 * tile + step, word : word + 2].view(np.uint16)[0])
    if bits == 4:
        number = 4 * place + register
        return int(vectors[tile, 4 * step + number // 2]) >> 4 * (number % 2) & 0xF
    word = 8 * (step % 2) + 4 * (register // 2)
    inside = 2 * (register % 2) + place if paired else 2 * place + register % 2
    return int(vectors[2 * tile + step // 2, word + inside])


def unpack(units: Units[Array], bits: int, paired: bool) -> Array:
    """Sums over layers of codes less the code of zero, [rows of whole strips, columns of whole units]."""
    strips, count = units.metadata.shape[:2]
    layers, codes = units.layers, units.codes.view(np.uint8).reshape(strips, count, -1, 32, 16)
    found = np.zeros((strips * 32, count // layers * 128), dtype=int)
    for strip, unit, step, tile, lane, register in np.ndindex(strips, count, 4, 2, 32, 4):
        row, four = tile * 16 + register % 2 * 8 + lane // 4, register // 2 * 4 + lane % 4
        # Lanes 2 · tile and the next of a quad have the metadata, four fours each.
        owner = lane // 4 * 4 + 2 * tile + four // 4
        metadata = int(units.metadata[strip, unit, owner, 4 * step : 4 * step + 4].view(np.uint32)[0])
        places = metadata >> (16 * (register % 2) + 4 * (four % 4)) & 0xF
        assert places & 3 < places >> 2, "the numbers rise"
        for place in range(2):
            column = unit // layers * 128 + step * 32 + four * 4 + (places >> 2 * place & 3)
            code = code_of(codes[strip, unit, :, lane], bits, paired, step, tile, register, place)
            found[strip * 32 + row, column] += code - ZERO
    return found


def two_of_four(m: int, k: int) -> CsrMatrix:
    """Up to two nonzeros in every four columns."""
    rng = np.random.default_rng(m)
    ranks = rng.permuted(np.tile(np.arange(4), (m, -(-k // 4), 1)), axis=-1).reshape(m, -1)[:, :k]
    kept = np.repeat(rng.integers(0, 3, (m, -(-k // 4))), 4, axis=1)[:, :k]
    return csr((ranks < kept).astype(np.float32))


@pytest.mark.parametrize(("bits", "paired"), [(4, False), (8, False), (8, True), (16, False)])
@pytest.mark.parametrize(("shape", "layers"), [((40, 130), 1), ((33, 77), 2)])
def test_codes_and_metadata_say_the_matrix(
    bits: int, paired: bool, shape: tuple[int, int], layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two_four, "WEIGHTS_AT_ONCE", 1)  # strip after strip
    matrix = two_of_four(*shape) if layers == 1 else csr(np.ones(shape, dtype=np.float32))
    codes = np.random.default_rng(0).integers(0, 16, matrix.nnz).astype(np.uint16 if bits == 16 else np.uint8)
    units = pack(matrix, codes, ZERO, bits=bits, paired=paired)
    assert units.layers == layers
    expected = matrix.with_values(codes.astype(np.float32) - ZERO).to_dense()
    np.testing.assert_array_equal(unpack(units, bits, paired)[: shape[0], : shape[1]], expected)


def test_a_two_four_matrix_takes_three_bits_a_weight_beside_codes_of_four_bits() -> None:
    matrix = two_of_four(64, 256)
    units = pack(matrix, np.full(matrix.nnz, 5, np.uint8), ZERO, bits=4, paired=False)
    assert (units.codes.nbytes + units.metadata.nbytes) * 8 == 3 * 64 * 256


def test_matrices_without_rows_have_no_unit() -> None:
    empty = matrices()["no_rows"]
    units = pack(empty, np.empty(0, np.uint8), ZERO, bits=4, paired=False)
    assert units.codes.size == units.metadata.size == 0 and units.layers == 1
