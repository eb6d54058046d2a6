"""Shared parts of the families of `block_attention`: what they compute, its tiles, and their kernels' constants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

from sparsegen.kernels.attention.block_attention import (
    ALIGNED,
    WIDEST,
    BlockAttentionFamily,
    in_steps,
    option_constants,
    whole_columns,
)
from sparsegen.kernels.base import Constraint
from sparsegen.kernels.config import Config, Value
from sparsegen.matrix.features import Features
from sparsegen.operators import BlockAttentionProblem
from sparsegen.system.integers import ceil_div

# Sides of what stands for a block where there is no mask: as many rows as any tile has.
DENSE_BLOCK = 256, 128
CACHED_BYTES = 36 << 20  # bytes of keys and values that stay in the L2 together
C = TypeVar("C", bound=Config)


class ForwardAttentionFamily(BlockAttentionFamily[BlockAttentionProblem, C]):
    """Kernels over tiles of queries of a head, the longest ones first."""

    def scope(self, problem: BlockAttentionProblem) -> Iterator[Constraint]:
        yield from super().scope(problem)
        yield whole_columns(problem, WIDEST)
        yield Constraint(
            problem.value_columns % ALIGNED == 0 and problem.value_columns <= problem.head_dim,
            f"value_dim ({problem.value_columns}) is a multiple of {ALIGNED} up to head_dim ({problem.head_dim})",
        )


def forward_constants(problem: BlockAttentionProblem, queries: int, stage_keys: int) -> dict[str, Value]:
    """Returns what templates need to know of a problem, and of tiles of these numbers of queries and keys."""
    rows, keys = mask_block(problem)
    if not problem.has_mask:
        rows = max(rows, queries)  # a tile's queries follow one another
    return {
        "dtype": problem.dtype.value,
        "head_dim": in_steps(problem.head_dim),
        "value_dim": in_steps(problem.value_columns),
        "has_mask": problem.has_mask,
        **option_constants(problem),
        "block_rows": rows,
        "block_keys": keys,
        "tile_queries": queries,
        "stage_keys": stage_keys,
    }


def mask_block(problem: BlockAttentionProblem) -> tuple[int, int]:
    """Returns the sides of a block of the mask, or of what stands for one."""
    return (problem.block.rows, problem.block.columns) if problem.has_mask else DENSE_BLOCK


def tile_count(problem: BlockAttentionProblem, queries: int) -> int:
    """Counts the tiles of ``queries`` queries: of small blocks whole rows share one."""
    rows = ceil_div(problem.queries, queries)
    if problem.has_mask:
        side, of_mask = problem.block.rows, problem.mask_layout.rows
        rows = ceil_div(of_mask * side, queries) if side < queries else of_mask * (side // queries)
    return rows * problem.heads * problem.batch


def section_heads(problem: BlockAttentionProblem, mebibytes: int) -> int:
    """Query heads whose keys and values are processed together: all if the L2 holds them."""
    of_head = problem.keys * (problem.head_dim + problem.value_columns) * problem.dtype.itemsize
    heads = problem.batch * problem.kv_heads
    if heads * of_head <= CACHED_BYTES:
        return heads * problem.group
    sections = ceil_div(heads * of_head, mebibytes << 20)
    return ceil_div(heads, sections) * problem.group


def longest_share(problem: BlockAttentionProblem, features: Features, tiles: int) -> float:
    """Estimates the share of all products that the longest of some tiles has, which one block computes.

    Rows of blocks: the mean and as many deviations as the largest of that number of normal numbers has.
    """
    band, mean = problem.band, max(features.row_mean, 1.0)
    in_span = min(problem.keys, band.most - band.least + 1 + band.sinks)
    spread = 1.0 + features.row_cov * math.sqrt(2.0 * math.log(max(1, tiles)))
    share, longest = (problem.density.share, problem.density.longest) if problem.has_mask else (1.0, 0.0)
    return min(1.0, min(max(share * spread, longest), 1.0) * in_span / mean / max(1, tiles))
