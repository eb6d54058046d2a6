"""The order of nonzeros in `panel_spmm`: sets of threads that load together meet in different banks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sparsegen.generators import random_uniform
from sparsegen.kernels.panel_spmm import FAMILY, PanelSpmmConfig
from sparsegen.operators import SpmmProblem

CHUNKS_PER_CYCLE = 8  # 16-byte loads of different banks that shared memory serves at once
M = K = 512


def wavefronts(config: PanelSpmmConfig, offsets: np.ndarray, run_offsets: np.ndarray) -> float:
    """Mean wavefronts of a quarter-warp's 16-byte loads of B, by the kernel's addressing; 1 is conflict-free."""
    threads = config.threads_per_row // config.row_splits
    row_chunks = config.tile_n * 4 // 16
    chunks = row_chunks // threads
    groups = 32 // config.threads_per_row
    taken = []
    for first_group in range(0, M, groups):
        lengths = np.diff(run_offsets[first_group : first_group + groups + 1])
        for turn in range(min(4, lengths.min() // config.step // config.row_splits)):
            for place in range(config.step):
                addresses = []
                for lane in range(8):
                    group, split = (
                        first_group + lane // config.threads_per_row,
                        lane // threads % config.row_splits,
                    )
                    position = run_offsets[group] + (turn * config.row_splits + split) * config.step + place
                    chunk = lane % threads + threads * (lane // threads % chunks)
                    addresses.append(int(offsets[position]) + chunk)
                banks = [address % CHUNKS_PER_CYCLE for address in set(addresses)]
                taken.append(max(banks.count(bank) for bank in set(banks)))
    return float(np.mean(taken))


@pytest.mark.parametrize(
    ("tile_n", "threads_per_row", "row_splits"), [(8, 4, 2), (8, 8, 8), (16, 4, 1), (16, 8, 4)]
)
def test_short_rows_of_a_panel_are_read_nearly_without_conflicts(
    tile_n: int, threads_per_row: int, row_splits: int
) -> None:
    config = PanelSpmmConfig(tile_n=tile_n, threads_per_row=threads_per_row, row_splits=row_splits, step=8)
    packed = FAMILY.prepare(SpmmProblem(M, K, 32), config, random_uniform(M, K, 0.3, 0))
    offsets, run_offsets = packed.arrays["offsets"], packed.arrays["run_offsets"]
    ordered = wavefronts(config, offsets, run_offsets)
    by_column = offsets.copy()
    for begin, end in pairwise(run_offsets):
        by_column[begin:end].sort()
    assert ordered < 1.3
    assert wavefronts(config, by_column, run_offsets) > 1.4, "the order makes no difference"
