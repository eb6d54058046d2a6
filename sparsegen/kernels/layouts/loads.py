"""Constraints on loads that several families share, in the same words, and the times of loads and stores."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from sparsegen.kernels.base import Constraint, Device
from sparsegen.operators import DType
from sparsegen.system.device_memory import WARP

LOAD_BYTES = 16  # bytes of the widest load
SHORT_INDICES = 1 << 16  # columns that indices of 16 bits can name
# Fitted to drawn problems on an H200, few blocks of which were live, so that nothing hides these: microseconds until a
# load has come from memory; those in which a thread begins a load; warps of a multiprocessor from which on warps wait
# for each other to begin theirs; and microseconds of a load of 2 bytes, which passes through registers.
ARRIVED_US, BEGUN_US, BEGINNING_WARPS, HELD_US = 0.85, 0.04, 6.0, 0.05
LEAST_ASYNC = 4  # bytes that cp.async moves at least
LINE_BYTES, SECTOR = 128, 32  # of global memory that L1 holds together, and that the L2 gives at the least
# Time of storing a part of a sector over that of reading one from L2: 77,000 rows of 159 elements of 2 bytes on an
# H200, four of which a request of a warp stored.
STORED = 2.8
# The same of a sector whose parts two thread blocks store: 5,504 rows of 3,518 elements of 2 bytes in tiles of 64, and
# 77,000 of 159 in tiles of 128, on an H200.
DIVIDED = 14.0


def step_us(
    dtype: DType,
    loads: Iterable[tuple[int, float]],
    threads: int,
    stages: int,
    resident: float = 1,
    begun_us: float = BEGUN_US,
    arrived_us: float = ARRIVED_US,
) -> float:
    """Estimates microseconds of a step of a thread block that hides no load behind another block's products.

    Args:
        loads: elements that a load moves, and elements that the block loads so in a step.
        stages: pipeline stages; the loads of all but one are on their way.
        resident: blocks that a multiprocessor runs at once, in the mean.
        begun_us: microseconds in which a thread finds where a load reads, and begins it.
        arrived_us: microseconds until a load has come.
    """
    waited, begun = arrived_us / max(1, stages - 1), 0.0
    for vector, elements in loads:
        of_thread = elements / vector / threads
        begun += of_thread
        if vector * dtype.itemsize < LEAST_ASYNC:
            waited = max(waited, arrived_us, HELD_US * of_thread)
    return waited + begun_us * begun * max(1.0, threads * resident / WARP / BEGINNING_WARPS)


def partial_stores_us(sectors: float, device: Device) -> float:
    """Estimates microseconds of storing to parts of sectors, one request each."""
    return STORED * sectors * SECTOR / device.l2_bytes_per_us


def divided_sectors_us(rows: float, row_bytes: int, pieces: int, device: Device) -> float:
    """Estimates microseconds of storing the sectors at the ends of pieces of rows, one of a thread block each."""
    ends = 2 * rows * pieces if row_bytes % SECTOR else 0.0
    return DIVIDED * ends * SECTOR / device.l2_bytes_per_us


@lru_cache(maxsize=1024)  # a search asks for each of its configs
def widest_vector(row_length: int, dtype: DType) -> int:
    """Elements that one load can hold: up to 16 bytes, aligned in every row."""
    return max(v for v in (1, 2, 4, 8) if v * dtype.itemsize <= LOAD_BYTES and row_length % v == 0)


def indices_fit(index_bits: int, k: int) -> Constraint:
    """Stored column indices have bits enough."""
    return Constraint(
        index_bits == 32 or k <= SHORT_INDICES, f"index_bits = 16 needs k ({k}) of at most {SHORT_INDICES}"
    )
