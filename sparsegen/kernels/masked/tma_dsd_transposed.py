"""``dsd_transposed`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.masked.copied_tiles import SharedTilesConfig, WalkedTiles
from sparsegen.operators import DsdTransposedProblem


@dataclass(frozen=True)
class TmaDsdTransposedConfig(SharedTilesConfig):
    """One point of the tuning space of `tma_dsd_transposed`."""


class TmaDsdTransposed(WalkedTiles[DsdTransposedProblem, TmaDsdTransposedConfig]):
    """See `WalkedTiles`."""

    name = "tma_dsd_transposed"
    summary = "the transpose of a matrix masked by blocks times a dense one, on warpgroups' tensor cores"
    mapped_names = ("x", "d", "y")


FAMILY = TmaDsdTransposed()
