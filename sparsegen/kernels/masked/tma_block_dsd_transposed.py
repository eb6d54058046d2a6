"""``dsd_transposed`` in small blocks on warps' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.masked.small_mask_blocks import SmallBlocks, SmallBlocksConfig
from sparsegen.operators import DsdTransposedProblem


@dataclass(frozen=True)
class TmaBlockDsdTransposedConfig(SmallBlocksConfig):
    """One point of the tuning space of `tma_block_dsd_transposed`."""


class TmaBlockDsdTransposed(SmallBlocks[DsdTransposedProblem, TmaBlockDsdTransposedConfig]):
    """See `SmallBlocks`."""

    name = "tma_block_dsd_transposed"
    summary = "the transpose of a matrix masked by small blocks times a dense one, on warps' tensor cores"
    mapped_names = ("d",)


FAMILY = TmaBlockDsdTransposed()
