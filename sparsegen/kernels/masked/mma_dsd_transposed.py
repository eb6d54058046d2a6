"""``dsd_transposed`` on warps' tensor cores (sm_80 and later)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.masked.masked_tiles import MaskedTiles
from sparsegen.kernels.masked.masked_tiles_config import MaskedTilesConfig
from sparsegen.operators import DsdTransposedProblem


@dataclass(frozen=True)
class MmaDsdTransposedConfig(MaskedTilesConfig):
    """One point of the tuning space of `mma_dsd_transposed`."""


class MmaDsdTransposed(MaskedTiles[DsdTransposedProblem, MmaDsdTransposedConfig]):
    """See `MaskedTiles`."""

    name = "mma_dsd_transposed"
    summary = "the transpose of a matrix masked by blocks times a dense one, on warps' tensor cores"


FAMILY = MmaDsdTransposed()
