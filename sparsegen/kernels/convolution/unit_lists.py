"""Base class of the families of masked convolutions that list live units and may load the pixel windows of these."""

from __future__ import annotations

from sparsegen.kernels.convolution.masked_convolution import window_sides
from sparsegen.kernels.layouts.loads import LOAD_BYTES
from sparsegen.operators import MaskedConv2dProblem, MaskOf
from sparsegen.system.device_memory import WARP
from sparsegen.system.integers import round_up

LISTED_UNITS, SEGMENT_WORDS = 128, 1024  # units that a thread block lists and counts at a time


def window_pixels(problem: MaskedConv2dProblem) -> int:
    """Pixels that the outputs of a unit read, with those between them."""
    rows, columns = window_sides(problem)
    return rows * columns


def list_bytes(problem: MaskedConv2dProblem, threads: int, beside: int = 0) -> int:
    """Bytes of shared memory for the list of units, the counts of a segment, and of what a family keeps beside them."""
    units = LISTED_UNITS * (12 if problem.mask_of is MaskOf.OUTPUT else 20)
    taken = units + 8 * SEGMENT_WORDS + 4 * (threads // WARP) + beside
    return round_up(taken, LOAD_BYTES)
