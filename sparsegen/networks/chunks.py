"""Chunks of inputs, which a device infers together: as many as it takes turns, as large as each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sparsegen.matrix.csr import Array

WIDTHS = (64, 32, 16, 8, 4, 2)  # inputs that follow each other where chunks are spread over all of them
RUNS = 8  # of so many inputs in a chunk, at least


@dataclass(frozen=True, slots=True)
class Chunk:
    """Runs of inputs that follow each other, equally far apart.

    Attributes:
        first: the number of the first input.
        width: inputs of a run; the last one may be shorter.
        stride: from one run's first input to the next one's.
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

    def runs(self, begin: int, end: int) -> Iterator[range]:
        """The numbers of its inputs from the one at ``begin`` to the one before ``end``, run by run."""
        while begin < end:
            run, place = divmod(begin, self.width)
            size = min(end - begin, self.width - place)
            first = self.first + run * self.stride + place
            yield range(first, first + size)
            begin += size


def chunks_of(count: int, devices: int, most: int, granule: int, *, is_spread: bool) -> list[Chunk]:
    """All inputs in chunks: as many for each device, all as large as each other but for a granule.

    Args:
        count: inputs in all.
        most: inputs of a chunk, at the most.
        granule: inputs that a device computes together anyway, such as those of a tile: chunks are multiples of it, if
            ``most`` is.
        is_spread: whether each chunk has inputs of everywhere, for those that die to be in all chunks alike; else its
            inputs follow each other.
    """
    step = granule if most % granule == 0 else 1
    units, most_units = -(-count // step), most // step
    pieces = devices * -(-units // (devices * most_units))
    if is_spread and pieces > 1:
        return _spread(count, pieces, most)
    ends = [min(count, step * (units * (i + 1) // pieces)) for i in range(pieces)]
    sizes = [(begin, end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
    return [Chunk(begin, size, size, size) for begin, size in sizes if size]


def _spread(count: int, pieces: int, most: int) -> list[Chunk]:
    wide = (width for width in WIDTHS if most % width == 0 and count >= RUNS * pieces * width)
    width = next(wide, 1)
    runs, missing = -(-count // width), -count % width
    found = []
    for i in range(min(pieces, runs)):
        own = -(-(runs - i) // pieces)
        has_last = (runs - 1) % pieces == i
        found.append(Chunk(i * width, width, pieces * width, own * width - (missing if has_last else 0)))
    return found
