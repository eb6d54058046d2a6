"""Masks of sparse attention: which places are there, how many, and the same ones from the same seed."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from sparsegen import masks
from sparsegen.errors import MatrixError
from sparsegen.matrix import budget
from sparsegen.matrix.csr import CsrMatrix

MAKERS: dict[str, Callable[..., CsrMatrix]] = {
    "band": lambda n, size, **options: masks.band(n, size, 0.7, **options),
    "window": lambda n, size, seed=0, **options: masks.sliding_window(n, size, size // 2, **options),
    "strided": lambda n, size, seed=0, **options: masks.strided(n, size, **options),
    "blocks": lambda n, size, **options: masks.blocks(n, size, size % 3, size % 4, **options),
}
PINNED = {  # first digits of fingerprints: what is measured on a mask stays known by it
    "band": "de94c772b0d71be8",
    "window": "e357ac9100edaa45",
    "strided": "f73b5e3eca70a59d",
    "blocks": "b34adc42283f99ff",
}


def dense(mask: CsrMatrix) -> Any:
    assert np.all(mask.values == 1)
    return mask.to_scipy().toarray() != 0


def distances(length: int) -> Any:
    places = np.arange(length)
    return places[:, None] - places


@pytest.mark.parametrize("kind", MAKERS)
def test_fingerprints_stay(kind: str) -> None:
    assert MAKERS[kind](90, 7, seed=3).fingerprint()[:16] == PINNED[kind]


@settings(max_examples=60)
@given(st.sampled_from(sorted(MAKERS)), st.integers(0, 60), st.integers(1, 70), st.integers(0, 2**32))
def test_the_causal_mask_is_the_others_lower_triangle_and_has_its_diagonal(
    kind: str, length: int, size: int, seed: int
) -> None:
    causal = dense(MAKERS[kind](length, size, causal=True, seed=seed))
    both = dense(MAKERS[kind](length, size, causal=False, seed=seed))
    assert causal.shape == both.shape == (length, length)
    assert causal.diagonal().all() and both.diagonal().all()
    assert not np.triu(causal, 1).any()
    if kind != "blocks" or size % 4 == 0:  # random blocks are drawn among those that are allowed
        assert np.array_equal(causal, np.tril(both))


@settings(max_examples=40)
@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 70))
def test_windows_and_strides_are_as_said(length: int, size: int, sinks: int) -> None:
    d, columns = distances(length), np.arange(length)
    window = dense(masks.sliding_window(length, size, sinks, causal=False))
    assert np.array_equal(window, (np.abs(d) < size) | (columns < sinks))
    strided = dense(masks.strided(length, size, causal=False))
    assert np.array_equal(strided, (np.abs(d) < size) | (d % size == 0))


def test_the_band_of_the_paper_falls_off_with_the_distance() -> None:
    length, width, sparsity = 2048, 64, 0.95
    mask, d = dense(masks.band(length, width, sparsity, seed=1)), distances(2048)
    assert mask[(d >= 0) & (d < width)].all()
    outside = mask[d >= width]
    assert outside.mean() == pytest.approx(1 - sparsity, rel=0.01)
    far = np.arange(width, length)
    chances = np.array([mask.diagonal(-distance).mean() for distance in far])
    factor = chances.mean() / (1 / far).mean()
    for part in np.array_split(np.arange(far.size), 8):
        assert chances[part].mean() == pytest.approx((factor / far[part]).mean(), rel=0.25)
    # Diagonals say nothing of each other.
    assert abs(np.corrcoef(mask[1500, :700], mask[1501, :700])[0, 1]) < 0.15


@pytest.mark.parametrize("sparsity", [0.0, 0.02, 0.5, 1.0])
def test_a_band_at_every_sparsity(sparsity: float) -> None:
    mask, d = dense(masks.band(400, 10, sparsity, causal=False)), np.abs(distances(400))
    assert mask[d >= 10].mean() == pytest.approx(1 - sparsity, abs=0.01)
    assert mask[d < 10].all()


def test_seeds_differ_and_repeat() -> None:
    one, again, other = (masks.band(300, 8, 0.8, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()
    one, again, other = (masks.blocks(300, 8, 1, 2, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("causal", [True, False])
def test_blocks(causal: bool) -> None:
    length, block, neighbours, extra = 150, 8, 1, 3  # the last block is cut off
    mask, d = dense(masks.blocks(length, block, neighbours, extra, causal=causal)), distances(length)
    places = np.arange(length) // block
    of_blocks = places[:, None] - places
    allowed = d >= 0 if causal else np.ones_like(mask)
    assert mask[(np.abs(of_blocks) <= neighbours) & allowed].all() and not mask[~allowed].any()
    across = -(-length // block)
    for i in range(across):
        line = mask[(places == i).nonzero()[0][-1]]
        there = [j for j in range(across) if line[places == j].any()]
        assert all(line[places == j].all() for j in there)
        near = [j for j in range(across) if abs(j - i) <= neighbours and (j <= i or not causal)]
        others = (i + 1 if causal else across) - len(near)
        assert set(near) <= set(there) and len(there) == len(near) + min(extra, others)


def test_a_long_sequence_takes_little_time_and_memory() -> None:
    started = time.thread_time()
    mask = masks.band(12288)
    assert time.thread_time() - started < 10  # 1 s, whatever else runs
    assert mask.nnz == pytest.approx(256 * 12288 + 0.05 * 12288**2 / 2, rel=0.05)
    tracemalloc.start()
    masks.sliding_window(100_000, 64, 4)
    masks.band(4096, 8, 0.999)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 600e6, "far below a place for each pair"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: masks.band(-1), r"-1 rows are outside"),
        (lambda: masks.band(8, 0), r"width = 0 is outside \[1,"),
        (lambda: masks.band(8, 1, 1.5), r"a sparsity lies in \[0, 1\], got 1.5"),
        (lambda: masks.band(8, 1, float("nan")), "a sparsity lies in"),
        (lambda: masks.strided(8, 0), "stride = 0"),
        (lambda: masks.sliding_window(8, 2, -1), r"sinks = -1 is outside \[0,"),
        (lambda: masks.blocks(8, 0), "block = 0"),
        (lambda: masks.blocks(8, 2, 0, -2), "extra = -2"),
        (lambda: masks.sliding_window(10**6, 10**5), "over the 32-bit index range"),
        (lambda: masks.band(10**7), "over the 32-bit index range"),  # before places are drawn for minutes
        (lambda: masks.strided(10**7, 2), "over the 32-bit index range"),
    ],
)
def test_bad_sizes_are_refused(make: Callable[[], CsrMatrix], words: str) -> None:
    with pytest.raises(MatrixError, match=words):
        make()


@pytest.mark.parametrize(
    "make", [masks.sliding_window, masks.band, masks.strided, masks.blocks], ids=lambda make: make.__name__
)
def test_what_memory_does_not_hold_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 1 << 20)
    with pytest.raises(MatrixError, match=r"would take .* of memory, over 1\.0 MiB"):
        make(100_000, 8)
