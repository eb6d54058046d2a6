"""``sdd`` on warps' tensor cores (sm_80 and later)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.masked.masked_tiles import MaskedTiles
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.operators import SddProblem


@dataclass(frozen=True)
class MmaSddConfig(MaskedTilesConfig):
    """One point of the tuning space of `mma_sdd`."""


class MmaSdd(MaskedTiles[SddProblem, MmaSddConfig]):
    """See `MaskedTiles`."""

    name = "mma_sdd"
    summary = "the live blocks of a product of dense matrices, on warps' tensor cores"


FAMILY = MmaSdd()
