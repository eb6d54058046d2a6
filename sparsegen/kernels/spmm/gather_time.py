"""Shared parts of the predicted times of families that gather rows of a row-major B for the nonzeros of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sparsegen.kernels.base import Device
from sparsegen.kernels.layouts.loads import SECTOR
from sparsegen.operators import DType
from sparsegen.system.integers import round_up

T = TypeVar("T")
LARGE_TILE_BYTES = 600_000  # bytes of B's tile beyond which rows that run together do not share what L1 holds
# Cycles of a multiprocessor for a sector of a column that a warp stores: 3,781 × 5,512 bfloat16 results and 11,456 ×
# 7,848 float16 ones on an H200, of which a warp had 8 and 4 rows.
COLUMN_STORE_CYCLES = 1.9
SECTOR_STORE_CYCLES = 3.3  # cycles of a multiprocessor for a sector of which a warp stores an element or two


def idle_share(blocks: int, device: Device) -> float:
    """The multiprocessors that have none of the last blocks, as a share of all blocks."""
    return round_up(blocks, device.multiprocessors) / max(1, blocks) - 1


def missing_share(tile_bytes: int, held_bytes: int) -> float:
    """Fraction of a tile of B that misses a cache of ``held_bytes``."""
    return max(0.0, 1 - held_bytes / max(1, tile_bytes))


def lone_store_cycles(elements: float, threads: int) -> float:
    """Cycles of a multiprocessor to store elements of C where its rows begin at no whole chunk.

    A thread then stores a chunk of 16 bytes element by element, and shares sectors of 32 with one neighbour at most.

    Args:
        threads: neighbouring threads that have chunks of the same row.
    """
    return elements / min(threads, 2) * SECTOR_STORE_CYCLES


def column_store_cycles(elements: float, rows: int, itemsize: int, *, is_aligned: bool) -> float:
    """Cycles of a multiprocessor to store elements of a column-major C, some consecutive rows by each warp.

    Args:
        rows: consecutive rows, which lie in one sector of 32 bytes or in whole ones.
        is_aligned: false where columns begin anywhere, so that rows lie in two sectors as a rule.
    """
    sectors = max(1.0, rows * itemsize / SECTOR) + (0.0 if is_aligned else 1.0 - itemsize / SECTOR)
    return elements / rows * sectors * COLUMN_STORE_CYCLES


def work_us(cycles: float, l2_bytes: float, memory_bytes: float, device: Device) -> float:
    """Microseconds of cycles of multiprocessors, of what L2 gives and of what memory gives, one after the other."""
    return (
        cycles / device.cycles_per_us
        + l2_bytes / device.l2_bytes_per_us
        + memory_bytes / device.expected_rates.copy_bytes_per_us
    )


def by_dtype(kind: Callable[..., T], **costs: tuple[float, float]) -> dict[DType, T]:
    """Returns the costs of each dtype, from pairs: of 16-bit elements, of float32."""
    half, single = (kind(**{name: pair[i] for name, pair in costs.items()}) for i in (0, 1))
    return {DType.FLOAT16: half, DType.BFLOAT16: half, DType.FLOAT32: single}
