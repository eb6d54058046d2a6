"""``dsd`` in small blocks on warps' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.masked.small_mask_blocks import SmallBlocks, SmallBlocksConfig
from sparsegen.operators import DsdProblem


@dataclass(frozen=True)
class TmaBlockDsdConfig(SmallBlocksConfig):
    """One point of the tuning space of `tma_block_dsd`."""


class TmaBlockDsd(SmallBlocks[DsdProblem, TmaBlockDsdConfig]):
    """See `SmallBlocks`."""

    name = "tma_block_dsd"
    summary = "a matrix masked by small blocks times a dense one, on warps' tensor cores"
    mapped_names = ("w",)


FAMILY = TmaBlockDsd()
