"""SpMM for decoding: unstructured 16-bit weights times few tokens, a bit for each weight and nonzeros in streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Value
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.lane_stream import ORDERS_AT_ONCE, PAIR, TILE, Partition, pack
from sparsegen.kernels.layouts.lane_stream_config import (
    LaneStreamConfig,
    block_counts,
    few_tokens,
    has_many_steps,
    partition_of,
    shaped,
)
from sparsegen.kernels.layouts.lane_stream_rows import levelled_rows
from sparsegen.kernels.layouts.limits import TENSOR_CORES, capable, enough_registers, shared_memory_fits
from sparsegen.kernels.layouts.padding import empty_as_padding
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.lane_stream_device import DeviceStreams
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.device_memory import WARP, Buffer, PlainDevice
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.numpy_types import Array

ROW_BYTES = 128  # bytes of a ring's row: a word for each lane
BARRIER_BYTES = 256
MAX_WARPS = 16
USUAL_WARPS = 8  # on a multiprocessor, if in several blocks then of fewer
FIRST_WITH_BULK_COPIES = (9, 0)
LEAST_DENSITY = 1 / 32
MOST_COLUMNS = 32  # that streams are for
FEW_COLUMNS = 8  # up to which activations are hardly a tenth of what shared memory moves
# Fitted: a multiprocessor's cycles for a weight, and for each column from 9 on; multiples of the memory's time
# for A, and for B and C, which every block has a part of.
START_US = 5.5
WEIGHT_CYCLES, COLUMN_CYCLES = 0.05, 0.00063
LOADS_OF_A, LOADS_OF_B = 0.53, 12.5
# Of rows as they come, the multiple of the nonzeros' time that their variation adds where there are no zeros, and the
# less the more of these there are; of sorted ones, what an element of C takes that has a sector of its own, which is
# read and written, and the least.
UNEVEN_ROWS = 2.0
SORTED_US, SECTOR, SECTOR_TWICE = 1.0, 32, 2
# Nonzeros among all weights up to which loads, and not decoding, are waited for, so that more warps help.
SPARSE, SPARSE_WARPS, SPARSE_DEPTH = 0.35, 12, 2


class LaneStreamSpmm(Family[SpmmProblem, LaneStreamConfig]):
    """Warps decode tiles of A to tensor-core fragments in registers. A is read once: a bit a weight, 2 bytes a nonzero.

    Zeros are multiplied like everything else, so that an infinity or NaN of B makes NaN in rows that have no nonzero
    there. Sums are added up in a fixed order: equal inputs give equal bits on every call.
    """

    name = "lane_stream_spmm"
    summary = (
        "SpMM for few columns: a bit for each weight, nonzeros as streams of single lanes, for tensor cores"
    )
    source = (
        "bitmaps for tensor cores: Fan et al., SpInfer, EuroSys 2025, section 4; equal runs of tiles: Osama et al., "
        "Stream-K, PPoPP 2023, section 4; the streams are sparsegen's own"
    )
    size_names = ("m", "k", "n", "groups", "steps")
    packed_names = ("masks", "starts", "orders", "values", "rows")
    scratch_names = ("parts", "counters")
    packing_version = 4
    multiplies_zeros = True
    problem_type = SpmmProblem
    config_type = LaneStreamConfig

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        yield from few_tokens(problem)

    def constraints(
        self, problem: SpmmProblem, config: LaneStreamConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        capability = ".".join(map(str, device.compute_capability))
        yield capable(device, TENSOR_CORES)
        yield Constraint(
            not c.bulk or device.compute_capability >= FIRST_WITH_BULK_COPIES,
            f"bulk copies need compute capability 9.0, the device has {capability}",
        )
        warps = c.warps_m * c.warps_k
        yield Constraint(warps <= MAX_WARPS, f"warps_m · warps_k ({warps}) warps decode, at most {MAX_WARPS}")
        yield Constraint(
            c.slots >= 2,
            f"slots ({c.slots}) are two at least: a warp waits for the next step before it gives back the slot of its "
            "own, and would wait forever",
        )
        yield Constraint(
            c.ring_rows >= _ring_minimum(c),
            f"ring_rows ({c.ring_rows}) are at least {_ring_minimum(c)}, what a lane may take at once",
        )
        # Sums and fragments of B, and what nvcc was seen to need beside them. Warps are given registers by fours.
        given = round_up(warps + 1, 4) * WARP
        yield enough_registers(64 + 11 * _column_tiles(problem), given, at_a_time=8)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("rings and slots", shared, device)

    def requirements(
        self, problem: SpmmProblem, features: Features, config: LaneStreamConfig
    ) -> Iterator[Constraint]:
        yield Constraint(
            features.density >= LEAST_DENSITY,
            f"one weight of {round(1 / LEAST_DENSITY)} or more is a nonzero ({features.density:.2%} are): each takes a "
            "bit of a mask",
        )
        yield Constraint(
            problem.n <= MOST_COLUMNS,
            f"B has at most {MOST_COLUMNS} columns ({problem.n}): tensor tiles took a third to two thirds of the time "
            "with 53 and 62",
        )

    @staticmethod
    def _threads(config: LaneStreamConfig) -> int:
        return WARP * (config.warps_m * config.warps_k + 1)

    @staticmethod
    def _shared_bytes(problem: SpmmProblem, config: LaneStreamConfig) -> int:
        c = config
        warps = c.warps_m * c.warps_k
        columns = c.warps_k * partition_of(problem, c).step_columns
        slot = (
            warps * WARP * 8
            + round_up(warps, ORDERS_AT_ONCE) * 4
            + columns * 8 * _column_tiles(problem) * problem.dtype.itemsize
        )
        ring = (c.ring_rows + PAIR) * ROW_BYTES + c.depth * PAIR * WARP * 2
        handed_over = (c.warps_k - 1) * c.warps_m * _part_bytes(problem)
        return BARRIER_BYTES + c.slots * slot + warps * ring + handed_over

    def is_worth_trying(self, problem: SpmmProblem, config: LaneStreamConfig, device: Device) -> bool:
        """True for balanced numbers of blocks, at least 4 warps, and as many resident blocks as shared memory holds;
        with bulk copies on every device that has them.
        """
        c = config
        warps = c.warps_m * c.warps_k
        resident = max(1, USUAL_WARPS // warps)
        if warps < 4 or c.blocks not in block_counts(problem, c, resident * device.multiprocessors):
            return False
        has_bulk_copies = device.compute_capability >= FIRST_WITH_BULK_COPIES
        if TILE * c.warps_m >= 2 * max(TILE, problem.m) or c.bulk != has_bulk_copies:
            return False
        # Rings and slots fill most of the shared memory, and more blocks than one have room.
        shared = self._shared_bytes(problem, c) + 1024
        return resident * shared <= device.shared_memory_per_multiprocessor

    def constants(self, problem: SpmmProblem, config: LaneStreamConfig) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "epilogue": problem.epilogue.value,
            "column_tiles": _column_tiles(problem),
            "whole_b": math.gcd(problem.k, 8),
        }

    def pack(self, problem: SpmmProblem, config: LaneStreamConfig, matrix: CsrMatrix) -> Packed[Array]:
        c, partition = config, partition_of(problem, config)
        rows = _row_order(c, matrix, partition)
        streams = pack(
            matrix,
            partition,
            refill_tiles=c.refill_tiles,
            ring_rows=c.ring_rows,
            head_pairs=c.depth,
            rows=rows,
        )
        stored = np.append(problem.dtype.to_storage(matrix.values), np.zeros(1, dtype=problem.dtype.storage))
        source = empty_as_padding(streams.source)
        return Packed(
            arrays={
                "masks": empty_as_one(streams.masks),
                "starts": streams.starts,
                "orders": empty_as_one(streams.orders),
                "values": stored[source],
                "rows": np.zeros(1, dtype=np.int32) if rows is None else empty_as_one(rows),
            },
            sizes=self._packed_sizes(partition),
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
            scratch=self._scratch(problem, partition),
        )

    def pack_on(
        self, problem: SpmmProblem, config: LaneStreamConfig, matrix: CsrMatrix, device: PlainDevice
    ) -> Packed[Buffer]:
        partition = partition_of(problem, config)
        rows = _row_order(config, matrix, partition)

        def laid_out() -> DeviceStreams:
            return DeviceStreams.of(
                device,
                matrix,
                partition,
                refill_tiles=config.refill_tiles,
                ring_rows=config.ring_rows,
                head_pairs=config.depth,
                rows=rows,
            )

        layout = laid_out()
        return Packed(
            arrays={
                "masks": layout.masks,
                "starts": layout.starts,
                "orders": layout.orders,
                "values": layout.values(matrix.values, problem.dtype),
                "rows": layout.rows,
            },
            sizes=self._packed_sizes(partition),
            values="values",
            # Laid out again: the pattern does not stay on the device for it.
            nnz=matrix.nnz,
            value_source=lambda: laid_out().source(),
            scratch=self._scratch(problem, partition),
        )

    @staticmethod
    def _packed_sizes(partition: Partition) -> dict[str, int]:
        return {"groups": partition.groups, "steps": partition.steps, "used_blocks": partition.used_blocks}

    @staticmethod
    def _scratch(problem: SpmmProblem, partition: Partition) -> dict[str, int]:
        return {
            "parts": (partition.used_blocks + partition.groups) * partition.warps_m * _part_bytes(problem),
            "counters": partition.groups * partition.warps_m * 4,
        }

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: LaneStreamConfig
    ) -> Mapping[str, int]:
        return {"used_blocks": partition_of(problem, config).used_blocks}

    def launch(
        self, problem: SpmmProblem, config: LaneStreamConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        return Launch(
            grid=(sizes["used_blocks"], 1, 1),
            block=(self._threads(config), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: LaneStreamConfig, device: Device
    ) -> float:
        rates, itemsize = device.expected_rates, problem.dtype.itemsize
        weights = problem.m * problem.k
        cycles = weights * (WEIGHT_CYCLES + COLUMN_CYCLES * max(0, problem.n - FEW_COLUMNS))
        moved = LOADS_OF_A * (weights / 8 + features.nnz * itemsize)
        moved += LOADS_OF_B * (problem.k + problem.m) * problem.n * itemsize
        us = rates.launch_us + START_US + cycles / device.cycles_per_us + moved / rates.copy_bytes_per_us
        return us + _order_us(problem, features, config.row_order, device)

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> LaneStreamConfig:
        """A block for each multiprocessor, with as many warps and as much in shared memory as there is room for."""
        typical = device.typical
        order = min(("natural", "balanced"), key=lambda order: _order_us(problem, features, order, typical))
        return _of_size(self, problem, order, features.density <= SPARSE, device)


@lru_cache(maxsize=1024)  # a model has many layers of one size
def _of_size(
    family: LaneStreamSpmm, problem: SpmmProblem, row_order: str, is_sparse: bool, device: Device
) -> LaneStreamConfig:
    """The heuristic config, which depends on the problem's sizes alone but for the order of the rows and the warps."""
    base = LaneStreamConfig(
        ring_rows=96,
        refill_tiles=2,
        row_order=row_order,
        bulk=device.compute_capability >= FIRST_WITH_BULK_COPIES,
    )
    tries = [(8, base), (4, base), (2, base)]
    if is_sparse and has_many_steps(problem, base, SPARSE_WARPS, device):
        tries.insert(0, (SPARSE_WARPS, replace(base, depth=SPARSE_DEPTH)))
    for warps, start in tries:
        wanted = shaped(problem, start, warps, device)
        for slots in (8, 6, 4, 3, 2):
            config = replace(wanted, slots=slots)
            if slots <= wanted.slots and family.is_valid(problem, config, device):
                return config
    return base


def _order_us(problem: SpmmProblem, features: Features, row_order: str, device: Device) -> float:
    """Estimates the extra microseconds of rows of different lengths: waits for the longest, or stores of C row by
    row.
    """
    rate, itemsize = device.expected_rates.copy_bytes_per_us, problem.dtype.itemsize
    if row_order == "natural":
        return UNEVEN_ROWS * features.density * features.row_cov * features.nnz * itemsize / rate
    of_a_row = ceil_div(problem.n * itemsize, SECTOR) if problem.layout is Layout.ROW else problem.n
    return SORTED_US + SECTOR_TWICE * SECTOR * problem.m * of_a_row / rate


def _ring_minimum(config: LaneStreamConfig) -> int:
    """Rows that a lane may take between two refills, with a pair that is not used up and two that are read ahead."""
    return TILE * config.refill_tiles + PAIR + 2


def _row_order(config: LaneStreamConfig, matrix: CsrMatrix, partition: Partition) -> Array | None:
    return levelled_rows(matrix, partition) if config.row_order == "balanced" else None


def _column_tiles(problem: SpmmProblem) -> int:
    return ceil_div(problem.n, 8)


def _part_bytes(problem: SpmmProblem) -> int:
    """Bytes of a warp's sums."""
    return TILE * 8 * _column_tiles(problem) * 4


FAMILY = LaneStreamSpmm()
