"""Sources of masks of blocks that one launch makes: bits, bools, scores, other masks, places."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum

from sparsegen.operators.attention.span import Band

BAND = 32  # rows that a thread block makes at a time, as in block_mask.cuh
SCORED_BAND = 8  # the same in scored_mask.cu


class Given(StrEnum):
    """Form of live blocks that are given; each is the end of a kernel's name."""

    BITS = "bits"  # rows of 64-bit words in their own order, as `sparsegen.matrix.bits` packs them
    BOOLS = "bools"  # a byte for each block, row by row, live unless it is zero


class Largest(StrEnum):
    """Set of blocks among which those with the largest scores are chosen; each is the end of a kernel's name."""

    ROWS = "rows"  # within each row of blocks
    WHOLE = "whole"  # within a whole mask


@dataclass(frozen=True, slots=True)
class MaskSource:
    """Kernel that makes masks, and its arguments.

    Attributes:
        file, entry: the kernel, in `sparsegen.backends.plain`.
        arguments: those between the sizes and the scratch memory; None for an address that each launch brings.
        band: rows that a thread block makes, a warp for each.
    """

    file: str
    entry: str
    arguments: tuple[int | None, ...]
    band: int = BAND


def given(form: Given) -> MaskSource:
    """Live blocks: ``(live, mask)``, addresses, the masks one behind the other."""
    return MaskSource("block_mask.cu", f"finish_{form}", (None,))


def largest(among: Largest, live: int) -> MaskSource:
    """The ``live`` blocks with the largest scores: ``(scores, mask)``, float32; of equal ones the first. Blocks with
    -inf or NaN never live, here and in the next two.
    """
    if among is Largest.WHOLE:
        return MaskSource("largest_mask.cu", "largest_of_whole", (live, None))
    return _of_rows("largest_of_rows", live, None)


def share_of_rows(share: float) -> MaskSource:
    """The fewest blocks of each row whose softmax sums to a share: ``(scores, mask)``, float32."""
    return _of_rows("share_of_rows", _bits(share), None)


def from_threshold(least: float) -> MaskSource:
    """The blocks with scores from a number on: ``(scores, thresholds, mask)``, float32. An address of 0 stands for that
    number, any other one for a threshold of each score.
    """
    return _of_rows("from_threshold", _bits(least), None, None)


def dilated_union(group: int, by: tuple[int, int]) -> MaskSource:
    """The union of each group of masks, dilated by rows and columns of blocks: ``(masks, mask)``."""
    return MaskSource("joined_mask.cu", "dilated_union", (group, *by, None))


def both(*, unites: bool) -> MaskSource:
    """The union or the intersection of two masks: ``(left, right, mask)``."""
    return MaskSource("joined_mask.cu", "both_masks", (int(unites), None, None))


def listed(slots: int, more_slots: int) -> MaskSource:
    """The columns of one or two lists for each row: ``(counts, columns, more counts, more columns, mask)``, int32.
    Addresses of 0 stand for no second list.

    Args:
        slots, more_slots: places for columns of a row; counts above them count as many.
    """
    return MaskSource("joined_mask.cu", "listed", (slots, more_slots, None, None, None, None))


def window(shape: tuple[int, int], block: tuple[int, int], band: Band) -> MaskSource:
    """The blocks of queries × keys in which a query sees a key: ``(mask,)``."""
    return MaskSource("joined_mask.cu", "window", (*shape, *block, band.least, band.most, band.sinks))


def _of_rows(entry: str, *arguments: int | None) -> MaskSource:
    """A kernel that looks at scores row by row."""
    return MaskSource("scored_mask.cu", entry, arguments, band=SCORED_BAND)


def _bits(number: float) -> int:
    """The 32 bits of a float32, as kernels take it."""
    (found,) = struct.unpack("<i", struct.pack("<f", number))
    return int(found)
