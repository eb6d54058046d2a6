"""Constraints on loads that several families share, in the same words."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from sparsegen.kernels.base import Constraint
from sparsegen.operators import DType
from sparsegen.system.device_memory import WARP

LOAD_BYTES = 16  # bytes of the widest load
SHORT_INDICES = 1 << 16  # columns that indices of 16 bits can name
# Fitted to drawn problems on an H200, few blocks of which were live, so that nothing hides these: microseconds until a
# load has come; those in which a thread begins a load; warps of a multiprocessor from which on warps wait for each
# other to begin theirs; and loads of 2 bytes, which pass through registers, that are on their way at once.
ARRIVED_US, BEGUN_US, BEGINNING_WARPS, HELD = 0.85, 0.055, 8.5, 16
LEAST_ASYNC = 4  # bytes that cp.async moves at least


def step_us(
    dtype: DType,
    loads: Iterable[tuple[int, float]],
    threads: int,
    stages: int,
    resident: int = 1,
    begun_us: float = BEGUN_US,
) -> float:
    """Estimates microseconds of a step of a thread block that hides no load behind another block's products.

    Args:
        loads: elements that a load moves, and elements that the block loads so in a step.
        stages: pipeline stages; the loads of all but one are on their way.
        resident: blocks that a multiprocessor runs at once.
        begun_us: microseconds in which a thread finds where a load reads, and begins it.
    """
    waited, begun = ARRIVED_US / max(1, stages - 1), 0.0
    for vector, elements in loads:
        of_thread = elements / vector / threads
        begun += of_thread
        if vector * dtype.itemsize < LEAST_ASYNC:
            waited = max(waited, ARRIVED_US * max(1.0, of_thread / HELD))
    return waited + begun_us * begun * max(1.0, threads * resident / WARP / BEGINNING_WARPS)


@lru_cache(maxsize=1024)  # a search asks for each of its configs
def widest_vector(row_length: int, dtype: DType) -> int:
    """Elements that one load can hold: up to 16 bytes, aligned in every row."""
    return max(v for v in (1, 2, 4, 8) if v * dtype.itemsize <= LOAD_BYTES and row_length % v == 0)


def indices_fit(index_bits: int, k: int) -> Constraint:
    """Stored column indices have bits enough."""
    return Constraint(
        index_bits == 32 or k <= SHORT_INDICES, f"index_bits = 16 needs k ({k}) of at most {SHORT_INDICES}"
    )
