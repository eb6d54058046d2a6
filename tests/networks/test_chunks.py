"""Chunks of inputs: each input once, chunks as large as each other, whatever dies in all of them alike."""

from __future__ import annotations

import numpy as np
import pytest

from sparsegen.networks.chunks import Chunk, chunks_of


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
    assert count > (turns - 1) * devices * min(most, 64), "no more turns than it takes"
    for chunk in chunks:
        middle = chunk.count // 3
        runs = [*chunk.runs(0, middle), *chunk.runs(middle, chunk.count)]
        np.testing.assert_array_equal(np.concatenate([np.array(run) for run in runs]), chunk.numbers)


def test_chunks_are_as_large_as_each_other_and_whole_tiles() -> None:
    chunks = chunks_of(60000, 2, 7552, 64, is_spread=False)
    assert len(chunks) == 8
    assert all(chunk.count % 64 == 0 for chunk in chunks[:-1])
    assert max(chunk.count for chunk in chunks) - min(chunk.count for chunk in chunks) <= 96


def test_inputs_of_one_device_follow_each_other() -> None:
    assert chunks_of(100, 1, 50, 50, is_spread=False) == [Chunk(0, 50, 50, 50), Chunk(50, 50, 50, 50)]
    assert chunks_of(100, 1, 200, 8, is_spread=True) == [Chunk(0, 100, 100, 100)]


@pytest.mark.parametrize("lives", [lambda i: i >= 45000, lambda i: i % 4 == 0, lambda i: i % 12000 < 3000])
def test_what_lives_is_in_all_chunks_alike(lives: object) -> None:
    assert callable(lives)
    alive = [
        np.count_nonzero(lives(chunk.numbers)) for chunk in chunks_of(60000, 4, 3776, 64, is_spread=True)
    ]
    assert len(alive) == 16 and sum(alive) == 15000
    of_device = [sum(alive[i::4]) for i in range(4)]
    assert max(of_device) - min(of_device) <= 0.06 * 15000 / 4, of_device
