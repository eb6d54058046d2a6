"""The tuning space of `lane_stream_spmm`, and how its blocks and warps share a product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import Config, tunable
from sparsegen.kernels.layouts.batches import one_batch_element
from sparsegen.kernels.layouts.lane_stream import Partition
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.integers import ceil_div

if TYPE_CHECKING:  # a look-up of spmm imports no other operator
    from sparsegen.operators import QuantizedSpmmProblem

MAX_N = 64
NEARLY_ALL = 0.9  # fraction of the room that is used, if equal runs leave some
FEW_STEPS, MANY_STEPS = 12, 40  # steps of a block, when all of its warps are over rows
WARPS_M, WARPS_K = (1, 2, 4, 8, 12, 16), (1, 2, 4, 8)
BLOCKS = (8, 16, 32, 48, 58, 64, 72, 84, 108, 112, 114, 120, 126, 128, 129, 130, 132, 144, 160, 216, 256, 264)


@dataclass(frozen=True, eq=False, repr=False)
class LaneStreamConfig(Config):
    """One point of the tuning space of `LaneStreamSpmm`."""

    blocks: int = tunable(
        132,
        BLOCKS,
        "blocks, which get equal runs of the tiles; one for each multiprocessor, or a multiple",
        packs=True,
    )
    warps_m: int = tunable(8, WARPS_M, "warps over the rows of a group, a strip for each", packs=True)
    warps_k: int = tunable(1, WARPS_K, "warps over the columns of a step, 64 columns for each", packs=True)
    ring_rows: int = tunable(160, (64, 96, 128, 160), "decoded elements that a lane's ring holds", packs=True)
    refill_tiles: int = tunable(1, (1, 2), "tiles of 32 columns between two refills of the rings", packs=True)
    depth: int = tunable(4, (2, 3, 4), "KB of values on their way to each warp", packs=True)
    slots: int = tunable(
        4,
        (2, 3, 4, 6, 8),
        "steps whose masks and activations are in shared memory: how far a warp may be ahead of another",
        searched=(2, 4, 6, 8),
    )
    row_order: str = tunable(
        "natural",
        ("natural", "balanced"),
        "rows as they are, or distributed by length so that lanes have equally many nonzeros",
        packs=True,
    )
    bulk: bool = tunable(False, (False, True), "masks come by bulk copies")


def few_tokens(problem: SpmmProblem | QuantizedSpmmProblem) -> Iterator[Constraint]:
    """Yields the constraints of families for decoding: 16-bit elements, tokens by features, few of them."""
    yield one_batch_element(problem)
    yield Constraint(
        problem.dtype.itemsize == 2, f"elements ({problem.dtype}) have 16 bits: float16 or bfloat16"
    )
    yield Constraint(
        problem.layout is Layout.COLUMN,
        f"B and C ({problem.layout}) are column-major: tokens by features",
    )
    yield Constraint(problem.n <= MAX_N, f"there are few columns of C ({problem.n}), at most {MAX_N}")


def partition_of(problem: SpmmProblem, config: LaneStreamConfig) -> Partition:
    c = config
    return Partition(problem.m, problem.k, c.warps_m, c.warps_k, c.blocks)


def shaped(problem: SpmmProblem, config: LaneStreamConfig, warps: int, device: Device) -> LaneStreamConfig:
    """Returns the config with ``warps`` warps in a block, and with blocks shared as in the heuristic config.

    It has fewer warps where the tunables declare no split of ``warps`` over rows and columns.
    """
    steps = _steps_of_a_block(problem, config, warps, device)
    warps_m, warps_k = _warps_over_rows_and_columns(problem, config, warps, steps, device)
    config = replace(config, warps_m=warps_m, warps_k=warps_k)
    counts = block_counts(problem, config, device.multiprocessors)
    blocks = min(counts, key=lambda blocks: _unevenness(problem, config, blocks))
    return replace(config, blocks=blocks, slots=4 if steps < FEW_STEPS else 6 if steps < MANY_STEPS else 8)


def _warps_over_rows_and_columns(
    problem: SpmmProblem, config: LaneStreamConfig, warps: int, steps: float, device: Device
) -> tuple[int, int]:
    """The fewer steps a block has, the fewer parts a row's sum should have.

    Warps that share rows add up their sums in shared memory, where several blocks need memory; but each of their
    columns loads activations of its own.
    """
    of_one_warp = partition_of(problem, replace(config, warps_m=1, warps_k=1))
    strips, widest = of_one_warp.groups, of_one_warp.steps
    warps_k = 1 if steps >= MANY_STEPS else warps if steps < FEW_STEPS else 2
    over_rows = replace(config, warps_m=warps, warps_k=1)
    counts = block_counts(problem, over_rows, device.multiprocessors)
    if warps_k == 2 and any(_ends_with_groups(problem, over_rows, blocks) for blocks in counts):
        warps_k = 1
    while warps_k > widest or warps_k * problem.n > MAX_N:
        warps_k //= 2
    warps_k = _declared(WARPS_K, max(1, warps_k, warps >> (strips - 1).bit_length()))
    return _declared(WARPS_M, warps // warps_k), warps_k


def _declared(choices: tuple[int, ...], wanted: int) -> int:
    """The largest choice that is at most the wanted one."""
    return max(choice for choice in choices if choice <= wanted)


def _steps_of_a_block(problem: SpmmProblem, config: LaneStreamConfig, warps: int, device: Device) -> float:
    """Average steps of a block with one block on each multiprocessor."""
    of_one_warp = partition_of(problem, replace(config, warps_m=1, warps_k=1))
    return of_one_warp.total / (warps * device.multiprocessors)


def has_many_steps(problem: SpmmProblem, config: LaneStreamConfig, warps: int, device: Device) -> bool:
    """True if blocks of ``warps`` warps have enough steps to split their warps over rows."""
    return _steps_of_a_block(problem, config, warps, device) >= MANY_STEPS


def _unevenness(problem: SpmmProblem, config: LaneStreamConfig, blocks: int) -> tuple[bool, int]:
    """Sort key of a number of blocks: true if blocks end within groups that others go on with; then the most steps of a
    block.
    """
    most_steps = ceil_div(partition_of(problem, config).total, blocks)
    return not _ends_with_groups(problem, config, blocks), most_steps


def _ends_with_groups(problem: SpmmProblem, config: LaneStreamConfig, blocks: int) -> bool:
    """True if each group of rows is shared by equally many blocks, and none of these has steps of another."""
    return blocks % max(1, partition_of(problem, config).groups) == 0


def block_counts(problem: SpmmProblem, config: LaneStreamConfig, room: int) -> set[int]:
    """The largest number of blocks that there is room for, and ones not much smaller that end with their groups."""
    partition = partition_of(problem, config)
    fitting = [b for b in BLOCKS if b <= room] or [BLOCKS[0]]
    most = [b for b in fitting if b >= NEARLY_ALL * max(fitting)]
    equal = [b for b in most if partition.total % b == 0]
    aligned = [b for b in most if _ends_with_groups(problem, config, b)]
    return {max(fitting), *equal[-1:], *aligned[-1:]}
