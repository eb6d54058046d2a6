"""The tuning space of `mma_spmm`, and shapes of tiles that were fastest."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.config import Config, tunable
from sparsegen.kernels.layouts.warp_tiles import threads_of


@dataclass(frozen=True, eq=False, repr=False)
class MmaSpmmConfig(Config):
    """One point of the tuning space of `MmaSpmm`."""

    tile_m: int = tunable(
        64, (16, 32, 64, 128, 256), "rows of C per block", searched=(16, 32, 64, 128), packs=True
    )
    tile_n: int = tunable(64, (8, 16, 32, 64, 128, 256), "columns of C per block")
    tile_k: int = tunable(64, (16, 32, 64, 128, 256), "columns of A per tile", packs=True)
    warpgroups: bool = tunable(
        False,
        (False, True),
        "wgmma: four warps at a time take operands from shared memory while they make the next tile's",
    )
    warps_m: int = tunable(2, (1, 2, 4, 8), "warps over a tile's rows")
    warps_n: int = tunable(2, (1, 2, 4, 8), "warps over its columns")
    warps_k: int = tunable(1, (1, 2, 4), "warps over the columns of A, their sums added up at the end")
    storage: str = tunable(
        "nonzeros",
        ("nonzeros", "tiles"),
        "what is stored of A's tiles that have nonzeros: those and their places, or all elements",
        packs=True,
    )
    stages: int = tunable(
        3,
        (2, 3, 4),
        "pipeline stages: tiles of B in shared memory; the next ones load while one is used",
        searched=(3, 4),
    )
    prefetch: int = tunable(
        2,
        (1, 2, 4, 8),
        "vectors of nonzeros that a thread loads one tile ahead; the rest is loaded when needed",
    )
    resident_blocks: int = tunable(
        1,
        (1, 2, 3),
        "occupancy: blocks whose registers must fit on a multiprocessor; more leave a thread fewer",
        searched=(1, 2),
    )

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return threads_of(self) * self.warps_k


def _whole_tiles(
    tile: tuple[int, int, int],
    warps: tuple[int, int, int],
    stages: int,
    blocks: int,
    *,
    warpgroups: bool = False,
) -> MmaSpmmConfig:
    (m, n, k), (warps_m, warps_n, warps_k) = tile, warps
    return MmaSpmmConfig(m, n, k, warpgroups, warps_m, warps_n, warps_k, "tiles", stages, 1, blocks)


def _nonzeros(
    tile: tuple[int, int, int], warps: tuple[int, int, int], *, warpgroups: bool = False, blocks: int = 1
) -> MmaSpmmConfig:
    (m, n, k), (warps_m, warps_n, warps_k) = tile, warps
    return MmaSpmmConfig(m, n, k, warpgroups, warps_m, warps_n, warps_k, resident_blocks=blocks)


# Whole tiles: for large blocks, and for few blocks of 32 by 32, where larger tiles would hold empty ones.
LARGE_TILE_CONFIG = _whole_tiles((128, 128, 64), (2, 2, 1), 3, 2)
NARROW_TILE_CONFIG = _whole_tiles((32, 128, 32), (1, 4, 1), 3, 2)
# Candidates for each element size: the one that should be fastest comes nearest to the family's best (H100, 214 and
# 499 workloads, without the test half of DLMC: 1.02 times its time).
LIKELY_CONFIGS = {
    4: (
        _nonzeros((16, 8, 128), (1, 1, 4)),
        _nonzeros((32, 32, 32), (1, 2, 2), blocks=2),
        _nonzeros((32, 32, 128), (1, 2, 4), blocks=2),
        _nonzeros((128, 16, 128), (4, 1, 2)),
        _nonzeros((32, 128, 32), (1, 2, 2)),
        _nonzeros((64, 64, 64), (1, 2, 2)),
        _nonzeros((64, 64, 128), (1, 2, 4)),
        _nonzeros((128, 128, 32), (1, 4, 1)),
        _nonzeros((128, 128, 64), (1, 4, 2)),
        _whole_tiles((16, 16, 128), (1, 1, 4), 3, 2),
        _whole_tiles((16, 32, 64), (1, 1, 4), 3, 2),
        _whole_tiles((32, 16, 64), (1, 1, 4), 4, 1),
        _whole_tiles((32, 32, 128), (1, 1, 4), 3, 2),
        _whole_tiles((64, 16, 32), (2, 1, 2), 3, 1),
        _whole_tiles((64, 32, 64), (1, 1, 4), 3, 1),
        _whole_tiles((64, 64, 32), (1, 2, 2), 3, 1),
        _whole_tiles((128, 128, 16), (1, 4, 1), 3, 2),
        _whole_tiles((64, 64, 32), (1, 4, 1), 3, 2, warpgroups=True),
        _whole_tiles((128, 64, 32), (1, 4, 1), 3, 2, warpgroups=True),
        _whole_tiles((128, 128, 32), (1, 8, 1), 3, 1, warpgroups=True),
    ),
    2: (
        _nonzeros((32, 16, 256), (1, 2, 4), blocks=2),
        _nonzeros((32, 16, 256), (2, 2, 1)),
        _nonzeros((32, 32, 256), (1, 1, 4)),
        _nonzeros((128, 16, 128), (2, 1, 4)),
        _nonzeros((64, 64, 128), (4, 1, 1), warpgroups=True, blocks=2),
        _nonzeros((64, 64, 256), (4, 1, 2), warpgroups=True),
        _nonzeros((64, 128, 128), (4, 1, 2), warpgroups=True),
        _nonzeros((128, 128, 128), (8, 1, 1), warpgroups=True),
        _nonzeros((128, 256, 64), (8, 1, 1), warpgroups=True),
        _whole_tiles((16, 16, 256), (1, 1, 4), 4, 2),
        _whole_tiles((32, 16, 256), (2, 1, 4), 3, 1),
        _whole_tiles((32, 32, 128), (1, 1, 4), 4, 1),
        _whole_tiles((32, 32, 256), (1, 2, 2), 3, 1),
        _whole_tiles((32, 64, 256), (1, 2, 2), 4, 1),
        _whole_tiles((64, 32, 128), (2, 1, 2), 3, 1),
        NARROW_TILE_CONFIG,
        _whole_tiles((64, 64, 128), (2, 2, 1), 3, 2),
        _whole_tiles((64, 64, 256), (2, 1, 2), 3, 2),
        _whole_tiles((64, 128, 128), (1, 4, 1), 3, 2),
        LARGE_TILE_CONFIG,
    ),
}
