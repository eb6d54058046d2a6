"""Config of the `MaskedTiles` families."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.config import Config, tunable


@dataclass(frozen=True)
class MaskedTilesConfig(Config):
    """One point of the tuning space of the `MaskedTiles` families."""

    tile_m: int = tunable(128, (32, 64, 128), "rows of the result per thread block")
    tile_n: int = tunable(128, (32, 64, 128, 256), "columns of the result per thread block")
    step: int = tunable(32, (16, 32, 64), "elements of the contraction per pipeline stage")
    warps_m: int = tunable(2, (1, 2, 4), "warps side by side along the rows")
    warps_n: int = tunable(4, (1, 2, 4), "warps side by side along the columns")
    stages: int = tunable(3, (2, 3, 4, 5), "pipeline stages in shared memory")
    ahead: bool = tunable(
        False,
        (False, True),
        "fragments are loaded, and copies begun, between the products of a step, not before them",
    )
    parts: int = tunable(1, (1, 2, 4, 8), "thread blocks, a cluster, that share the steps of a tile")
