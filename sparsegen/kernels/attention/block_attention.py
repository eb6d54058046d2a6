"""Shared parts of the families of block attention, forward and backward: limits, and masks among a kernel's sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value
from sparsegen.kernels.layouts.limits import warpgroups_capable
from sparsegen.operators import BlockAttentionProblem, DType, SinkLogits
from sparsegen.system.integers import round_up

MOST_TOKENS = 1 << 29
BIT_WORD = 64  # keys
ROW_BYTES = 128  # of a row in shared memory
CHUNK = 64  # columns of one
ALIGNED = 8  # columns of 16 bytes, of which rows are multiples for TMA
STEP_COLUMNS = 16  # that one step of a product takes
WIDEST = 256  # head_dim whose sums fit the registers
THREADS = 384  # two warpgroups that multiply, and a third one whose first warp loads
P = TypeVar("P", bound=BlockAttentionProblem)
C = TypeVar("C", bound=Config)


class BlockAttentionFamily(Family[P, C]):
    """Kernels on tensor cores, whose masks come with every call."""

    packed_names = ()

    def batch_size_names(self, problem: P) -> tuple[str, ...]:
        return ("element_masks", "head_masks") if problem.has_mask else ()

    def scope(self, problem: P) -> Iterator[Constraint]:
        yield Constraint(problem.dtype is not DType.FLOAT32, f"elements ({problem.dtype}) have 16 bits")
        yield Constraint(
            max(problem.queries, problem.keys) < MOST_TOKENS,
            f"queries ({problem.queries}) and keys ({problem.keys}) are fewer than {MOST_TOKENS}",
        )
        yield Constraint(
            not problem.has_partial or problem.block.columns % BIT_WORD == 0,
            f"partial blocks ({problem.block}) have rows of whole words of {BIT_WORD} keys",
        )


def whole_columns(problem: BlockAttentionProblem, widest: int) -> Constraint:
    """Requires rows of queries and keys that TMA and copies of 16 bytes take, and that fit the registers."""
    return Constraint(
        problem.head_dim % ALIGNED == 0 and problem.head_dim <= widest,
        f"head_dim ({problem.head_dim}) is a multiple of {ALIGNED} up to {widest}",
    )


def in_steps(columns: int) -> int:
    """Returns the columns of a head that products compute, zeros past the last one among them."""
    return round_up(columns, STEP_COLUMNS)


def in_chunks(columns: int) -> int:
    """Returns the columns that a head's row takes in shared memory: TMA reads zeros past the last, and writes none."""
    return round_up(columns, CHUNK)


def device_constraints(device: Device, shared_bytes: int) -> Iterator[Constraint]:
    """Yields what a kernel with ``shared_bytes`` bytes of shared memory requires of a device."""
    yield warpgroups_capable(device)
    yield Constraint(
        device.shared_memory_per_block >= shared_bytes,
        f"tiles take {shared_bytes} bytes of shared memory, a block has {device.shared_memory_per_block}",
    )


def option_constants(problem: BlockAttentionProblem) -> dict[str, Value]:
    """Returns what templates need to know of partial blocks, changes of scores, and sinks."""
    return {
        "has_partial": problem.has_partial,
        "scores": problem.scores.value,
        "has_sinks": problem.sinks is SinkLogits.HEADS,
    }


def mask_sizes(problem: BlockAttentionProblem) -> dict[str, int]:
    """Count the 64-bit words from one batch element's and one head's mask to the next; 0 where they share it."""
    if not problem.has_mask:
        return {}
    words, masks = problem.mask_layout.words, problem.masks
    of_element = words * (problem.heads if masks.are_of_heads else 1)
    return {
        "head_masks": words if masks.are_of_heads else 0,
        "element_masks": of_element if masks.are_of_items else 0,
    }
