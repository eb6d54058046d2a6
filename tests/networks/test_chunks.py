"""Chunks of inputs: each input once, chunks as large as each other, whatever dies in all of them alike."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.networks.model.chunks import Chunk, chunks_of


@pytest.mark.parametrize("is_spread", [False, True])
@pytest.mark.parametrize("count", [1, 7, 64, 90, 1000, 60000])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("most", "granule"), [(16, 64), (100, 64), (1024, 64), (7552, 64), (30000, 8448)])
def test_every_input_is_in_one_chunk(
    count: int, devices: int, most: int, granule: int, is_spread: bool
) -> None:
    chunks = chunks_of(count, devices, most, granule, is_spread=is_spread)
    numbers = np.concatenate([chunk.numbers for chunk in chunks])
    np.testing.assert_array_equal(np.sort(numbers), np.arange(count))
    sizes = [chunk.count for chunk in chunks]
    assert min(sizes) > 0 and max(sizes) <= most
    turns = -(-len(chunks) // devices)
    assert turns <= 3 + 2 * -(-count // (devices * min(most, 64))), "about as many turns as it takes"
    for chunk in chunks:
        middle = chunk.count // 3
        parts = [*chunk.parts(0, middle), *chunk.parts(middle, chunk.count)]
        assert len(parts) <= 6
        rows = [part.rows_of(np.arange(count)).ravel() for part in parts]
        np.testing.assert_array_equal(np.concatenate(rows), chunk.numbers)


def test_first_chunks_are_small_and_the_others_whole_tiles() -> None:
    sizes = [chunk.count for chunk in chunks_of(60000, 2, 7552, 64, is_spread=False)]
    assert len(sizes) == 10
    assert all(size % 64 == 0 for size in sizes[:-1])
    assert max(sizes[:2]) < 1900 and min(sizes[2:]) > 6900 and max(sizes[2:]) - min(sizes[2:]) <= 96


def test_inputs_of_one_device_follow_each_other() -> None:
    assert chunks_of(100, 1, 80, 20, is_spread=False) == [Chunk(0, 20, 20, 20), Chunk(20, 80, 80, 80)]
    assert chunks_of(100, 1, 200, 8, is_spread=False) == [Chunk(0, 100, 100, 100)]


def test_one_chunk_for_each_device_has_half_of_the_inputs() -> None:
    sizes = [chunk.count for chunk in chunks_of(1000, 2, 512, 64, is_spread=True)]
    assert len(sizes) == 2 and abs(sizes[0] - sizes[1]) <= 16


@pytest.mark.parametrize("lives", [lambda i: i >= 45000, lambda i: i % 4 == 0, lambda i: i % 12000 < 3000])
def test_what_lives_is_in_all_chunks_alike(lives: object) -> None:
    assert callable(lives)
    chunks = chunks_of(60000, 4, 3776, 64, is_spread=True)
    assert len(chunks) == 20
    shares = [np.count_nonzero(lives(chunk.numbers)) / chunk.count for chunk in chunks]
    of_device = [np.mean(shares[i::4]) for i in range(4)]
    assert max(abs(share - 0.25) for share in of_device) <= 0.02, of_device
