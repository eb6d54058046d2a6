"""Configs of `uspmm_vec`: the tuning space, and those that a heuristic chooses from."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache

from sparsegen.kernels.config import Config, tunable


@dataclass(frozen=True, eq=False, repr=False)
class UspmmVecConfig(Config):
    """One point of the tuning space of `UspmmVec`."""

    tile_n: int = tunable(64, (8, 16, 32, 64, 128), "columns of C per block", packs=True)
    threads_per_row: int = tunable(
        8, (1, 2, 4, 8, 16), "threads that share rows of A", searched=(1, 2, 4, 8), packs=True
    )
    vec_size: int = tunable(
        2, (1, 2, 4, 8), "neighbouring rows of a thread, loaded as a vector", searched=(1, 2, 4), packs=True
    )
    step: int = tunable(
        4, (1, 2, 4, 8), "places of those rows that come with the same load", searched=(2, 4, 8), packs=True
    )
    k_splits: int = tunable(1, (1, 2, 4, 8, 16), "warps that share the places of the same rows")
    row_warps: int = tunable(8, (1, 2, 4, 8, 16), "warps of a block with rows of their own")
    staging: str = tunable(
        "shared",
        ("gather", "shared"),
        "where B is read from: gathered from global memory, or a tile of all its rows in shared memory",
        packs=True,
    )
    ell_width: str = tunable(
        "longest",
        ("longest", "quartile"),
        "places of a row in ELL: as the longest row needs, or as three quarters of the rows need; what longer rows "
        "have beyond is a CSR rest (HYB)",
        packs=True,
    )
    index_bits: int = tunable(16, (16, 32), "bits of a stored column index", searched=(16,), packs=True)
    registers: int = tunable(
        64, (32, 64, 128), "registers per thread that the compiler may use", searched=(64, 128)
    )


@lru_cache(maxsize=1024)
def tiled(usual: UspmmVecConfig, n: int) -> tuple[UspmmVecConfig, ...]:
    """Blocks of 16 warps whose threads each have a row, 16 bytes of A a load, and 8 or 16 sums, for n columns."""
    found = []
    for tile_n, sums, k_splits in itertools.product((8, 16, 32, 64), (8, 16), (1, 2, 4, 8, 16)):
        if sums > tile_n or (tile_n > 8 and tile_n >= 2 * n):
            continue
        config = replace(
            usual, tile_n=tile_n, threads_per_row=tile_n // sums, k_splits=k_splits, row_warps=16 // k_splits
        )
        found.append(config)
        if tile_n == 8:
            found.append(replace(config, staging="gather"))
    return tuple(found)


@lru_cache(maxsize=1024)
def gathered(usual: UspmmVecConfig, n: int) -> tuple[UspmmVecConfig, ...]:
    """Sets of threads that gather whole lines of a row-major B, one or two rows of A to a set, for n columns."""
    chunk = usual.step  # elements in 16 bytes of A and of B alike
    found = []
    for threads, chunks, rows in itertools.product((4, 8), (1, 2, 4), (1, 2)):
        tile_n = threads * chunks * chunk
        if not 16 <= tile_n <= 128 or tile_n >= 2 * n or not 8 <= chunks * chunk * rows <= 32:
            continue
        for k_splits in (1, 2, 4, 8, 16):
            config = replace(
                usual,
                tile_n=tile_n,
                threads_per_row=threads,
                vec_size=rows,
                step=chunk // rows,
                k_splits=k_splits,
                row_warps=max(1, 8 // k_splits),
                staging="gather",
                registers=64 if chunks * chunk * rows <= 16 else 128,
            )
            found.append(config)
    return tuple(found)


def halved(config: UspmmVecConfig) -> UspmmVecConfig:
    """Returns the config with half the warps."""
    if config.row_warps > 1:
        return replace(config, row_warps=config.row_warps // 2)
    return replace(config, k_splits=config.k_splits // 2)
