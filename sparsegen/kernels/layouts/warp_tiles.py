"""Base class of the families whose warps tile the result side by side, each with its part of the sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.layouts.limits import TENSOR_CORES, capable, whole_tiles
from sparsegen.system.device_memory import WARP


class WarpTiles(Protocol):
    """A config whose thread blocks compute ``tile_m`` by ``tile_n`` results with ``warps_m`` by ``warps_n`` warps."""

    @property
    def tile_m(self) -> int: ...

    @property
    def tile_n(self) -> int: ...

    @property
    def warps_m(self) -> int: ...

    @property
    def warps_n(self) -> int: ...


def threads_of(config: WarpTiles) -> int:
    """The threads of a block."""
    return WARP * config.warps_m * config.warps_n


def sums_of(config: WarpTiles) -> int:
    """The sums that each thread keeps in registers."""
    return config.tile_m * config.tile_n // threads_of(config)


def on_tensor_cores(
    config: WarpTiles, device: Device, rows: str, columns: str, *, unit_columns: int = 16
) -> Iterator[Constraint]:
    """The device multiplies fragments, and warps share a tile's ``rows`` and ``columns`` (in words) evenly."""
    yield capable(device, TENSOR_CORES)
    yield whole_tiles("warps_m", config.warps_m, "tile_m", config.tile_m, 16, rows)
    yield whole_tiles("warps_n", config.warps_n, "tile_n", config.tile_n, unit_columns, columns)
