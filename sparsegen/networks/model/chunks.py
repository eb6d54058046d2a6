"""Chunks of inputs, which a device infers together: as many for each, and all but the first ones equally large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

LARGER = 4  # times as many inputs as in a device's first chunk: nothing is computed before those are there
# Inputs of a first chunk that follow each other where chunks are spread over all inputs.
WIDTHS = 16, 8, 4, 2, 1
RUNS = 8  # least runs of consecutive inputs in a chunk, if there are enough of them


@dataclass(frozen=True, slots=True)
class Chunk:
    """Runs of inputs that follow each other, equally far apart.

    Attributes:
        first: the number of the first input.
        width: inputs of a run; the last one may be shorter.
        stride: distance from one run's first input to the next one's.
        count: inputs in all.
    """

    first: int
    width: int
    stride: int
    count: int

    @property
    def numbers(self) -> Array:
        """int64: the numbers of its inputs, in their order."""
        i = np.arange(self.count)
        found: Array = self.first + i // self.width * self.stride + i % self.width
        return found

    def parts(self, begin: int, end: int) -> Iterator[Chunk]:
        """Splits the inputs from ``begin`` to before ``end`` into at most three chunks of whole runs."""
        while begin < end:
            run, place = divmod(begin, self.width)
            runs = 1 if place else max(1, (end - begin) // self.width)
            width = min(self.width - place, end - begin)
            first = self.first + run * self.stride + place
            yield Chunk(first, width, self.stride, runs * width)
            begin += runs * width

    def rows_of(self, array: Array) -> Array:
        """The chunk's rows of an array that has one for each input, runs × width × columns, without a copy.

        The chunk must consist of whole runs; see `parts`.
        """
        here = array[self.first :]
        shape = (self.count // self.width, self.width, *array.shape[1:])
        strides = (self.stride * array.strides[0], *array.strides)
        return np.lib.stride_tricks.as_strided(here, shape, strides, writeable=False)


def chunks_of(count: int, devices: int, most: int, granule: int, *, is_spread: bool) -> list[Chunk]:
    """Divides all inputs into chunks: as many for each device, equally large but for a granule; first chunks are
    smaller.

    Args:
        count: number of all inputs.
        most: upper limit of inputs of a chunk.
        granule: inputs that a device computes together anyway, such as those of a tile: chunks are multiples of it, if
            ``most`` is.
        is_spread: spread the inputs of each chunk over all inputs, so that dying ones are evenly distributed; else they
            are contiguous.
    """
    turns = ceil_div(count, devices * most)
    while True:
        larger = LARGER if most >= LARGER else 1
        weights = [1] * devices + [larger] * (devices * (turns - 1))
        found = _spread(count, most, weights) if is_spread else _contiguous(count, most, granule, weights)
        if found is not None:
            return found
        turns += 1


def _contiguous(count: int, most: int, granule: int, weights: list[int]) -> list[Chunk] | None:
    """Chunks of inputs that follow each other, as large as their weights say; None if one has too many."""
    step = granule if most % granule == 0 else 1
    units = ceil_div(count, step)
    ends = [min(count, step * (units * sum(weights[: i + 1]) // sum(weights))) for i in range(len(weights))]
    sizes = [(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
    if max(size for _, size in sizes) > most:
        return None
    return [Chunk(begin, size, size, size) for begin, size in sizes if size]


def _spread(count: int, most: int, weights: list[int]) -> list[Chunk] | None:
    """The same, of runs: one of every chunk, then the next one of every chunk."""
    least = RUNS if count >= RUNS * sum(weights) else 1
    for width in WIDTHS:
        stride, firsts = width * sum(weights), [width * sum(weights[:i]) for i in range(len(weights))]
        if count < least * stride and width > 1:
            continue
        whole, rest = divmod(count, stride)
        found = []
        for first, weight in zip(firsts, weights, strict=True):
            size = whole * weight * width + min(max(0, rest - first), weight * width)
            if size:
                found.append(Chunk(first, weight * width, stride, size))
        if max(chunk.count for chunk in found) <= most:
            return found
    return None
