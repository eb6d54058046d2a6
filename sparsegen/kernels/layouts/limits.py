"""Constraints on a device's resources that several families share, in the same words."""

from __future__ import annotations

from sparsegen.kernels.base import Constraint, Device
from sparsegen.system.integers import ceil_div

REGISTERS_PER_MULTIPROCESSOR = 65536  # also the limit of a block
THREADS_PER_MULTIPROCESSOR, BLOCKS_PER_MULTIPROCESSOR = 2048, 32
SCHEDULERS = 4  # of a multiprocessor, which issue an instruction a cycle each
RESERVED_PER_BLOCK = 1024  # bytes of shared memory
MAX_GRID_Y = 65535
# Fraction of a device's multiprocessors in resident clusters: those of a graphics processing cluster come in pairs, and
# not all have the same number. An H200 has 66, 30, 15 and 7 clusters (cudaOccupancyMaxActiveClusters).
RESIDENT_SHARE = {2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
CLUSTERS = (9, 0)  # compute capability with clusters of blocks
TENSOR_CORES = (8, 0)  # compute capability with bfloat16 and TF32 fragments, asynchronous copies and barriers


def capable(device: Device, first: tuple[int, int]) -> Constraint:
    """The device has a compute capability or a later one."""
    has, least = (".".join(map(str, capability)) for capability in (device.compute_capability, first))
    return Constraint(
        device.compute_capability >= first, f"the device ({has}) has compute capability {least} or later"
    )


def warpgroups_capable(device: Device) -> Constraint:
    """The device has the warpgroups of compute capability 9.x, which later ones lack."""
    return Constraint(device.compute_capability[0] == 9, "warpgroups need compute capability 9.x")


def whole_tiles(axis: str, warps: int, side: str, tile: int, unit: int, what: str) -> Constraint:
    """Warps along an axis share a tile's side evenly, in tiles of the instruction."""
    return Constraint(
        tile % (unit * warps) == 0,
        f"each of {axis} ({warps}) warps takes whole tiles of {unit} of {side} ({tile}) {what}",
    )


def enough_registers(needed: int, threads: int, *, at_a_time: int = 1) -> Constraint:
    """Requires that a thread's estimated registers are available where ``threads`` share a multiprocessor; registers
    are allocated ``at_a_time``.
    """
    available = min(255, REGISTERS_PER_MULTIPROCESSOR // threads // at_a_time * at_a_time)
    return Constraint(
        needed <= available,
        f"a thread needs about {needed} registers for its sums and operands and has {available}",
    )


def allowed_registers_fit(registers: int, threads: int) -> Constraint:
    """Requires that the threads of a block may have ``registers`` registers each, the limit that the compiler is
    told.
    """
    return Constraint(
        threads * registers <= REGISTERS_PER_MULTIPROCESSOR,
        f"threads · registers ({threads * registers}) is at most {REGISTERS_PER_MULTIPROCESSOR}",
    )


def resident_blocks(threads: int, registers: int, taken: int, device: Device) -> int:
    """Returns how many blocks a multiprocessor holds at once, at least 1, by threads, registers of a thread and
    ``taken`` bytes of shared memory.
    """
    return max(
        1,
        min(
            device.shared_memory_per_multiprocessor // (taken + RESERVED_PER_BLOCK),
            REGISTERS_PER_MULTIPROCESSOR // (threads * registers),
            THREADS_PER_MULTIPROCESSOR // threads,
            BLOCKS_PER_MULTIPROCESSOR,
        ),
    )


def resident_clusters(device: Device, cluster: int) -> int:
    """Estimates how many clusters of ``cluster`` blocks are resident on a device, with one block on each
    multiprocessor.
    """
    return max(1, int(RESIDENT_SHARE[cluster] * device.multiprocessors / cluster))


def lacking_share(needed: float, registers: int) -> float:
    """Fraction of its allowed registers that a thread should need in addition to them."""
    return max(0, needed - registers) / registers


def shared_memory_fits(what: str, taken: int, device: Device) -> Constraint:
    """Shared memory of a block; ``what`` takes it, in the plural."""
    return Constraint(
        taken <= device.shared_memory_per_block,
        f"{what} take {taken} bytes of shared memory, a block has {device.shared_memory_per_block}",
    )


def resident_blocks_fit(blocks: int, taken: int, device: Device) -> Constraint:
    """Requires that a multiprocessor has shared memory for ``blocks`` blocks of ``taken`` bytes and what it reserves
    for each.
    """
    return Constraint(
        blocks == 1 or blocks * (taken + RESERVED_PER_BLOCK) <= device.shared_memory_per_multiprocessor,
        f"resident_blocks ({blocks}) blocks of {taken} bytes fit a multiprocessor's shared memory "
        f"({device.shared_memory_per_multiprocessor})",
    )


def tiles_in_grid(what: str, extent: int, tile: int) -> Constraint:
    """Requires that a grid can count the tiles along y; ``what`` names their number in words."""
    tiles = ceil_div(extent, tile)
    return Constraint(tiles <= MAX_GRID_Y, f"{what} ({tiles}) is at most {MAX_GRID_Y}")
