"""Masks as lists of tiles of keys: nothing is lost, nothing is listed in vain, equal bits are kept once."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen import masks
from sparsegen.kernels.attention import key_tiles
from sparsegen.kernels.attention.key_tiles import FULL, KeyTiles, tile_counts
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.testing.matrices import csr, matrices

SHAPES = [(64, 64), (128, 32), (64, 128)]


def dense(found: KeyTiles, height: int, width: int, shape: tuple[int, int]) -> Array:
    """Decodes the lists and bits, row by row, with the places beyond the mask's ends."""
    m, n = shape
    out = np.zeros((-(-m // height) * height, max(1, -(-n // width)) * width), dtype=bool)
    tile = np.repeat(np.arange(found.counts.size), found.counts)
    for row, column, bits in zip(tile, found.keys, found.bits, strict=True):
        block = np.ones((height, width), dtype=bool)
        if bits != FULL:
            block = np.unpackbits(found.words[bits].view(np.uint8), axis=1, bitorder="little").astype(bool)
        assert block.any(), "an empty tile is listed"
        out[row * height : (row + 1) * height, column * width : (column + 1) * width] = block
    return out


def places(mask: CsrMatrix) -> Array:
    return mask.with_values(np.ones(mask.nnz, np.float32)).to_scipy().toarray() != 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", matrices())
def test_the_lists_hold_the_mask(name: str, shape: tuple[int, int]) -> None:
    mask = matrices()[name]
    found = KeyTiles.of(mask, *shape)
    assert found.counts.size == -(-mask.shape[0] // shape[0])
    np.testing.assert_array_equal(tile_counts(mask, *shape), found.counts)
    got = dense(found, *shape, mask.shape)
    m, n = mask.shape
    np.testing.assert_array_equal(got[:m, :n], places(mask))
    assert not got[:m, n:].any(), "keys behind the last are seen by none"


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = masks.band(700, 40, 0.9, seed=3)
    whole = KeyTiles.of(mask, 64, 32)
    for chunk in (1, 1000):
        monkeypatch.setattr(key_tiles, "CHUNK", chunk)
        parts = KeyTiles.of(mask, 64, 32)
        np.testing.assert_array_equal(tile_counts(mask, 64, 32), whole.counts)
        for name in ("counts", "keys"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
        np.testing.assert_array_equal(dense(parts, 64, 32, mask.shape), dense(whole, 64, 32, mask.shape))
        assert len(parts.words) == len(whole.words)


def test_equal_tiles_share_their_bits() -> None:
    causal = KeyTiles.of(masks.sliding_window(1024, 1024), 64, 64)
    assert len(causal.words) == 1, "every tile on the diagonal is the same triangle"
    assert np.count_nonzero(causal.bits == FULL) == 16 * 15 // 2
    band = KeyTiles.of(masks.sliding_window(1024, 256), 64, 64)
    assert len(band.words) == 2, "the diagonal and the other edge"
    window = KeyTiles.of(masks.sliding_window(1024, 256, 4), 64, 64)
    assert len(window.words) < 6


def test_a_tile_that_all_queries_fill_is_full_although_the_tile_has_more_rows() -> None:
    found = KeyTiles.of(csr(np.ones((70, 130), np.float32)), 64, 64)
    np.testing.assert_array_equal(found.bits == FULL, [True, True, False] * 2)
