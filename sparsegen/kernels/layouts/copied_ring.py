"""Shared parts of the families whose tiles a producer warp loads by TMA: sizes, configs and the launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.limits import shared_memory_fits, warpgroups_capable

THREADS = 384  # two consumer warpgroups, and a third one whose first warp is the producer
TILE_M = 128  # rows of the result per thread block, 64 for each consumer warpgroup
PIECE = 64  # rows of a box
ROW_BYTES = 128  # bytes of a box's row
PIECE_BYTES = PIECE * ROW_BYTES
RING_BYTES = 24 * PIECE_BYTES
OUTPUT_BYTES = 4 * PIECE_BYTES
BARRIER_BYTES = 1024  # barriers, the producer's notes on stages and the next tile's number, rounded up
SHARED_BYTES = RING_BYTES + OUTPUT_BYTES + BARRIER_BYTES  # shared memory of a thread block
COUNTER_BYTES = 8
CHUNK_BYTES = 16
MOST_BATCH = 0xFFFF  # limit of the numbers in a note
MOST_ROWS = 0xFFFF * PIECE  # rows that a note, of 16 bits a number, can refer to
READ = 0.71  # fraction of the rate of copies that reading a packed A reaches, fitted on an H100


class Order(StrEnum):
    """The order in which clusters of thread blocks get their tiles."""

    COUNTED = "counted"  # dynamically: a cluster that is done increments a counter in device memory
    PLACED = "placed"  # statically: by the cluster's index, forwards and backwards in alternation


@dataclass(frozen=True, eq=False, repr=False)
class CopiedTilesConfig(Config):
    """One point of the tuning space of the `CopiedTiles` families."""

    tile_n: int = tunable(256, (64, 128, 256), "columns of the result per thread block")
    cluster: int = tunable(2, (1, 2), "thread blocks that share the loads of A's tiles (multicast)")
    raster: int = tunable(16, (1, 4, 8, 16), "row tiles that are processed before the next column tile")
    order: str = tunable(
        Order.COUNTED.value,
        tuple(o.value for o in Order),
        "dynamic (a counter) or static (by position) scheduling of tiles",
    )


@dataclass(frozen=True, eq=False, repr=False)
class WalkedTilesConfig(CopiedTilesConfig):
    """One point of the tuning space of the `WalkedTiles` families."""

    tail: int = tunable(2, (1, 2, 4, 16), "row tiles in each part of the last group, whose rows are shortest")


def persistent_launch(tiles: int, cluster: int, device: Device) -> Launch:
    """Launches clusters of ``cluster`` blocks: as many clusters as the device holds, at most one for each tile."""
    clusters = min(tiles, max(1, device.multiprocessors // cluster))
    return Launch(
        grid=(clusters * cluster, 1, 1),
        block=(THREADS, 1, 1),
        shared_memory_bytes=SHARED_BYTES,
        starts_early=True,
    )


def ring_constraints(device: Device) -> Iterator[Constraint]:
    """Yields constraints: the device has warpgroups, and shared memory for the tiles in flight."""
    yield warpgroups_capable(device)
    yield shared_memory_fits("tiles", SHARED_BYTES, device)


def walk_constraint(raster: int, tail: int) -> Constraint:
    """Requires that the last group of row tiles is walked in parts no larger than a group."""
    return Constraint(tail <= raster, f"groups of raster ({raster}) are walked in parts of tail ({tail})")
