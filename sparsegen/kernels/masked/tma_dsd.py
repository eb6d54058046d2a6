"""``dsd`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import tunable
from sparsegen.kernels.layouts.copied_ring import PIECE
from sparsegen.kernels.masked.copied_tiles import WIDTHS, SharedTilesConfig, WalkedTiles
from sparsegen.kernels.masked.side import Side
from sparsegen.operators import DsdProblem

MORE_WIDTHS = (216, 176, 168)  # where W's columns need not be loaded by 64


@dataclass(frozen=True)
class TmaDsdConfig(SharedTilesConfig):
    """One point of the tuning space of `tma_dsd`."""

    tile_n: int = tunable(256, tuple(sorted(WIDTHS + MORE_WIDTHS)), "columns of the result per thread block")


class TmaDsd(WalkedTiles[DsdProblem, TmaDsdConfig]):
    """See `WalkedTiles`."""

    name = "tma_dsd"
    summary = "a matrix masked by blocks times a dense one, on warpgroups' tensor cores"
    mapped_names = ("x", "w", "y")
    few_widths = WIDTHS + MORE_WIDTHS

    def constraints(self, problem: DsdProblem, config: TmaDsdConfig, device: Device) -> Iterator[Constraint]:
        yield from WalkedTiles.constraints(self, problem, config, device)
        yield Constraint(
            config.tile_n % PIECE == 0 or (Side.of(problem).b_by_inner and not config.shared),
            f"tiles of {config.tile_n} columns are not shared, and W is contiguous along the contraction",
        )


FAMILY = TmaDsd()
