"""Shared parts of the families of `block_attention_backward`: steps and tiles, constants, and memory of a launch."""

from __future__ import annotations

import math
from typing import NamedTuple

from sparsegen.kernels.attention.block_attention import in_chunks, option_constants
from sparsegen.kernels.base import Constraint
from sparsegen.kernels.config import Value
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import BlockAttentionBackwardProblem, TokenOrder
from sparsegen.operators.attention.span import Band
from sparsegen.system.integers import ceil_div, round_up

TILE = 128  # keys or queries of a tile
STEP = 64  # queries or keys of a stage
COUNTER_BYTES = 64
# Standard deviations by which the longest tile has more steps than the mean; of causal masks, whose first keys alone
# are seen by all queries.
UNEVEN, UNEVEN_CAUSAL = 2.2, 1.2
FEW_ROUNDS = 4  # rounds of tiles over the multiprocessors, below which the last one leaves many idle


def whole_pieces(problem: BlockAttentionBackwardProblem) -> Constraint:
    """Requires blocks of whole steps."""
    return Constraint(
        not problem.has_mask or (problem.block.rows % STEP == 0 and problem.block.columns % STEP == 0),
        f"blocks ({problem.block}) are whole pieces of {STEP} x {STEP}",
    )


def gradient_constants(problem: BlockAttentionBackwardProblem) -> dict[str, Value]:
    """Returns what templates need to know of a problem."""
    return {
        "dtype": problem.dtype.value,
        "head_dim": in_chunks(problem.head_dim),
        "value_dim": in_chunks(problem.value_columns),
        "columns": problem.head_dim,
        "value_columns": problem.value_columns,
        "has_mask": problem.has_mask,
        **option_constants(problem),
        "query_block": problem.block.rows if problem.has_mask else TILE,
        "key_block": problem.block.columns if problem.has_mask else TILE,
        "tokens_first": problem.order is TokenOrder.TOKENS,
    }


def gradient_scratch(problem: BlockAttentionBackwardProblem, tiles: int) -> dict[str, int]:
    """Counts the bytes of counters, of values of rows, of the order of tiles, and of the ranks of a mask's rows."""
    masks_bytes = 16
    if problem.has_mask:
        masks = problem.masks
        count = (problem.batch if masks.are_of_items else 1) * (problem.heads if masks.are_of_heads else 1)
        masks_bytes = 4 * count * (problem.mask_layout.rows + problem.mask_layout.columns)
    return {
        "counters": COUNTER_BYTES,
        "row_values": 2 * 4 * problem.batch * problem.heads * round_up(problem.queries, STEP),
        "tile_order": 4 * (tiles + problem.batch * problem.kv_heads),
        "mask_ranks": masks_bytes,
    }


def computed_places(problem: BlockAttentionBackwardProblem, tile: int) -> float:
    """Places that are computed for each live one: a step of queries is computed for all keys of a tile if any block
    of it is live, or any place of the band.
    """
    found, band, sizes = 1.0, problem.band, (problem.queries, problem.keys)
    if problem.has_mask:
        blocks, share = max(1, tile // problem.block.columns), problem.density.share
        found = any_live(share, blocks) / share
    wide = Band(band.least - tile + 1, band.most + STEP - 1, round_up(band.sinks, tile))
    return found * wide.places(*sizes) / max(1, band.places(*sizes))


class Longest(NamedTuple):
    """Expected steps of the longest tile of keys and of queries, and the shortest tile's share of the mean."""

    of_keys: float
    of_queries: float
    least: float


def longest_tiles(problem: BlockAttentionBackwardProblem, tile: int) -> Longest:
    """The longest tiles of ``tile`` keys or queries, whose blocks are each live by themselves."""
    band, group = problem.band, problem.group
    wide = band.most - band.least + tile  # queries that keys of a tile see, and keys that its queries see
    queries = problem.queries if band.sinks else min(problem.queries, wide)
    keys = min(problem.keys, wide + round_up(band.sinks, STEP))
    is_causal = wide > problem.queries and band.most < problem.queries
    if not problem.has_mask:
        return Longest(group * ceil_div(queries, STEP), ceil_div(keys, STEP), 0.0 if is_causal else 1.0)
    block, share = problem.block, problem.density.share
    uneven = UNEVEN_CAUSAL if is_causal else UNEVEN

    def steps(size: int, along: int, across: int, heads: int) -> tuple[float, float]:
        """The most steps, and the least over the mean, of tiles that meet blocks of ``along``."""
        blocks = heads * ceil_div(size, along)
        found = any_live(share, max(1, tile // across))
        mean, deviation = blocks * found, math.sqrt(blocks * found * (1 - found))
        return min(blocks, mean + uneven * deviation) * along / STEP, max(0.0, 1 - uneven * deviation / mean)

    of_keys, least = steps(queries, block.rows, block.columns, group)
    return Longest(of_keys, steps(keys, block.columns, block.rows, 1)[0], 0.0 if is_causal else least)


def uneven_rounds(rounds: float, least: float) -> float:
    """The time of tiles in few rounds over the multiprocessors, as a multiple of the time if they filled them all.

    Args:
        least: the shortest tile's share of the mean: the last round has the shortest ones.
    """
    if rounds < 1:
        return 1 / rounds
    return 1 + (math.ceil(rounds) - rounds) * least / rounds if rounds < FEW_ROUNDS else 1.0
