"""``dsd`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.masked.copied_tiles import SharedTilesConfig, WalkedTiles
from sparsegen.operators import DsdProblem


@dataclass(frozen=True)
class TmaDsdConfig(SharedTilesConfig):
    """One point of the tuning space of `tma_dsd`."""


class TmaDsd(WalkedTiles[DsdProblem, TmaDsdConfig]):
    """See `WalkedTiles`."""

    name = "tma_dsd"
    summary = "a matrix masked by blocks times a dense one, on warpgroups' tensor cores"
    mapped_names = ("x", "w", "y")


FAMILY = TmaDsd()
