"""``dsd`` on warps' tensor cores (sm_80 and later)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.masked.masked_tiles import MaskedTiles
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.operators import DsdProblem


@dataclass(frozen=True)
class MmaDsdConfig(MaskedTilesConfig):
    """One point of the tuning space of `mma_dsd`."""


class MmaDsd(MaskedTiles[DsdProblem, MmaDsdConfig]):
    """See `MaskedTiles`."""

    name = "mma_dsd"
    summary = "a matrix masked by blocks times a dense one, on warps' tensor cores"


FAMILY = MmaDsd()
