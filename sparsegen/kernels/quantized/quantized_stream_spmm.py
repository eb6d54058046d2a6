"""SpMM for decoding: unstructured weights of 8 or 4 bits times few tokens, a bit a weight and codes in streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.lane_stream import ORDERS_AT_ONCE, TILE, Partition
from sparsegen.kernels.layouts.lane_stream_config import BLOCKS, NEARLY_ALL, WARPS_K, WARPS_M, few_tokens
from sparsegen.kernels.layouts.lane_stream_rows import levelled_rows
from sparsegen.kernels.layouts.limits import TENSOR_CORES, capable, enough_registers, shared_memory_fits
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.quantized.code_streams import AHEAD, TILES, Unit, pack, stored_codes
from sparsegen.kernels.quantized.code_streams_device import DeviceCodeStreams
from sparsegen.kernels.rates import L2_BYTES_PER_CYCLE
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DType, QuantizedSpmmProblem, ScaleGroup, Symmetry, ValueType
from sparsegen.system.device_memory import WARP, Buffer, PlainDevice
from sparsegen.system.integers import ceil_div, round_up
from sparsegen.system.numpy_types import Array

STEP_COLUMNS = TILES * TILE
CHUNK_BYTES, MIRROR_BYTES, BARRIER_BYTES = 1024, 256, 256
MAX_WARPS = 16
FIRST_WITH_E4M3 = (8, 9)
LEAST_DENSITY = 1 / 32
# What the heuristic chooses from: warps over rows and over columns, and KB of a ring, of these on their way, and slots.
WARPS = ((8, 1), (4, 2), (4, 1), (2, 4), (2, 2), (1, 8), (1, 4), (2, 1), (1, 2), (1, 1))
RINGS = ((16, 4, 8), (16, 4, 4), (16, 2, 8), (8, 2, 8), (8, 2, 4))
SMALL_RINGS = ((8, 2, 2), (8, 1, 2))  # where no other has room
START_US = 3.8
# Fitted on an H200: a multiprocessor's cycles for a weight by the bits of its code, with 8 columns and for each 8 more;
# cycles of a warp for a step, alone, and for each 8 columns of it; until masks come from memory; for a group of rows,
# and where warps hand over its sums; and microseconds where blocks share sums.
WEIGHT_CYCLES = {8: 0.047, 4: 0.049}
TILE_CYCLES = {8: 0.0136, 4: 0.0082}
WARP_CYCLES, WARP_TILE_CYCLES, MASK_CYCLES = 1390.0, 71.0, 1600.0
GROUP_CYCLES, HANDED_OVER_CYCLES, SHARED_US = 320.0, 570.0, 2.5
PART_BYTES = 73e3  # of sums that a block adds up in a microsecond
SCATTERED_CYCLES = 6.5  # of a multiprocessor for a result or a scale where rows are reordered
ACTIVATIONS = 1.85  # multiple of the time of the L2
FULL_STREAMS = 31.5  # KB on their way to a multiprocessor, with which memory is busy


@dataclass(frozen=True)
class QuantizedStreamConfig(Config):
    """One point of the tuning space of `QuantizedStreamSpmm`."""

    blocks: int = tunable(
        132,
        BLOCKS,
        "blocks, which get equal runs of the tiles; one for each multiprocessor, or a multiple",
        packs=True,
    )
    warps_m: int = tunable(
        8, WARPS_M, "warps over the rows of a group, 32 for each", searched=(1, 2, 4, 8), packs=True
    )
    warps_k: int = tunable(1, WARPS_K, "warps over the columns of a step, 128 for each", packs=True)
    ring_chunks: int = tunable(8, (8, 16), "KB of codes in each warp's ring", packs=True)
    depth: int = tunable(2, (1, 2, 3, 4, 6), "KB of codes on their way to each warp", packs=True)
    slots: int = tunable(
        4,
        (2, 3, 4, 6, 8),
        "steps whose masks and activations are in shared memory: how far a warp may be ahead of another",
    )
    row_order: str = tunable(
        "natural",
        ("natural", "balanced"),
        "rows as they are, or distributed by length so that lanes have equally many nonzeros",
        packs=True,
    )


class QuantizedStreamSpmm(Family[QuantizedSpmmProblem, QuantizedStreamConfig]):
    """Warps decode codes to tensor-core fragments in registers. A is read once: a bit a weight, 4 or 8 a nonzero.

    Codes become 16-bit elements exactly, less their zero points; sums are float32, and those of a group of columns are
    multiplied by its scale.
    Zeros are multiplied like everything else, so that an infinity or NaN of B makes NaN in rows that have no nonzero
    there. Sums are added up in a fixed order: equal inputs give equal bits on every call.
    """

    name = "quantized_stream_spmm"
    summary = (
        "SpMM for few columns: a bit a weight, codes of 8 or 4 bits as streams of lanes, for tensor cores"
    )
    source = (
        "bitmaps for tensor cores: Fan et al., SpInfer, EuroSys 2025, section 4; equal runs of tiles: Osama et al., "
        "Stream-K, PPoPP 2023, section 4; integers in the fraction of a half: Kim et al., Who Says Elephants Can't "
        "Run, 2022, section 3; the streams are sparsegen's own"
    )
    size_names = ("m", "k", "n", "groups", "steps")
    packed_names = ("masks", "starts", "orders", "values", "rows")
    scratch_names = ("parts", "counters")
    problem_type = QuantizedSpmmProblem
    config_type = QuantizedStreamConfig
    packing_version = 2
    multiplies_zeros = True

    def scope(self, problem: QuantizedSpmmProblem) -> Iterator[Constraint]:
        yield from few_tokens(problem)
        yield Constraint(
            problem.symmetry is Symmetry.SYMMETRIC or problem.value_type is not ValueType.E4M3,
            f"codes with zero points are integers ({problem.value_type} is not)",
        )

    def constraints(
        self, problem: QuantizedSpmmProblem, config: QuantizedStreamConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, _first_capability(problem))
        warps = c.warps_m * c.warps_k
        yield Constraint(warps <= MAX_WARPS, f"warps_m · warps_k ({warps}) warps decode, at most {MAX_WARPS}")
        least = _kept_chunks(problem)
        yield Constraint(
            c.ring_chunks - c.depth >= least,
            f"ring_chunks ({c.ring_chunks}) are at least {least}, what a lane may take in a step, and depth "
            f"({c.depth})",
        )
        given = round_up(warps + 1, 4) * WARP
        yield enough_registers(_registers(problem), given, at_a_time=8)
        yield shared_memory_fits("rings and slots", self._shared_bytes(problem, c), device)

    def requirements(
        self, problem: QuantizedSpmmProblem, features: Features, config: QuantizedStreamConfig
    ) -> Iterator[Constraint]:
        yield Constraint(
            features.density >= LEAST_DENSITY,
            f"one weight of {round(1 / LEAST_DENSITY)} or more is a nonzero ({features.density:.2%} are): each takes a "
            "bit of a mask",
        )

    def is_worth_trying(
        self, problem: QuantizedSpmmProblem, config: QuantizedStreamConfig, device: Device
    ) -> bool:
        """True for 4 to 16 warps on each multiprocessor in one block or two, with no group of rows mostly empty."""
        c = config
        resident = ceil_div(c.blocks, device.multiprocessors)
        if not 4 <= c.warps_m * c.warps_k * resident <= MAX_WARPS or c.blocks < 0.9 * device.multiprocessors:
            return False
        if TILE * c.warps_m >= 2 * max(TILE, problem.m):
            return False
        shared = self._shared_bytes(problem, c) + 1024
        return resident * shared <= device.shared_memory_per_multiprocessor

    @staticmethod
    def _shared_bytes(problem: QuantizedSpmmProblem, config: QuantizedStreamConfig) -> int:
        c = config
        warps, tokens = c.warps_m * c.warps_k, 8 * _column_tiles(problem)
        slot = warps * WARP * unit_of(problem).mask_bytes() + round_up(warps, ORDERS_AT_ONCE) * 4
        slot += c.warps_k * tokens * STEP_COLUMNS * problem.dtype.itemsize
        ring = c.ring_chunks * CHUNK_BYTES + MIRROR_BYTES
        handed_over = (c.warps_k - 1) * c.warps_m * _part_bytes(problem)
        return BARRIER_BYTES + c.slots * slot + warps * ring + handed_over

    def constants(self, problem: QuantizedSpmmProblem, config: QuantizedStreamConfig) -> Mapping[str, Value]:
        by_row = problem.scale_group is ScaleGroup.ROW
        return {
            "dtype": problem.dtype.value,
            "epilogue": problem.epilogue.value,
            "value_type": problem.value_type.value,
            "asymmetric": problem.symmetry is Symmetry.ASYMMETRIC,
            "pairs": unit_of(problem).codes == 2,
            "unit_bits": unit_of(problem).bits,
            "group_columns": 0 if by_row else problem.scale_group.size(problem.k),
            "column_tiles": _column_tiles(problem),
            "whole_b": math.gcd(problem.k, 8),
        }

    def pack(
        self, problem: QuantizedSpmmProblem, config: QuantizedStreamConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        c, partition, kind = config, partition_of(problem, config), problem.value_type
        rows = levelled_rows(matrix, partition) if c.row_order == "balanced" else None
        unit = unit_of(problem)
        streams = pack(matrix, partition, unit=unit, ring_chunks=c.ring_chunks, depth=c.depth, rows=rows)
        source = streams.source if streams.source.size else np.full(32 // kind.bits, -1, dtype=np.int32)
        return Packed(
            arrays={
                "masks": empty_as_one(streams.masks),
                "starts": streams.starts,
                "orders": empty_as_one(streams.orders),
                "values": stored_codes(kind.to_codes(matrix.values), source, unit),
                "rows": np.zeros(1, dtype=np.int32) if rows is None else empty_as_one(rows),
            },
            sizes=_packed_sizes(partition),
            nnz=matrix.nnz,
            scratch=_scratch(problem, partition),
        )

    def pack_on(
        self,
        problem: QuantizedSpmmProblem,
        config: QuantizedStreamConfig,
        matrix: CsrMatrix,
        device: PlainDevice,
    ) -> Packed[Buffer]:
        c, partition, kind = config, partition_of(problem, config), problem.value_type
        layout = DeviceCodeStreams.of(
            device,
            matrix,
            partition,
            kind.to_codes(matrix.values),
            unit=unit_of(problem),
            ring_chunks=c.ring_chunks,
            depth=c.depth,
            rows=levelled_rows(matrix, partition) if c.row_order == "balanced" else None,
        )
        return Packed(
            arrays={name: getattr(layout, name) for name in self.packed_names},
            sizes=_packed_sizes(partition),
            nnz=matrix.nnz,
            scratch=_scratch(problem, partition),
        )

    def expected_sizes(
        self, problem: QuantizedSpmmProblem, features: Features, config: QuantizedStreamConfig
    ) -> Mapping[str, int]:
        return {"used_blocks": partition_of(problem, config).used_blocks}

    def launch(
        self,
        problem: QuantizedSpmmProblem,
        config: QuantizedStreamConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        return Launch(
            grid=(sizes["used_blocks"], 1, 1),
            block=(WARP * (config.warps_m * config.warps_k + 1), 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self, problem: QuantizedSpmmProblem, features: Features, config: QuantizedStreamConfig, device: Device
    ) -> float:
        """The block with most steps, or the bytes of A; sums that blocks or warps share come on top.

        A step takes as long as its weights keep the multiprocessor busy, as one warp needs for its own, as its
        activations take from the L2, or as masks take to come, over the steps that are under way.
        """
        c, rates, tiles = config, device.expected_rates, _column_tiles(problem)
        partition, bits = partition_of(problem, c), problem.value_type.bits
        blocks = max(1, partition.used_blocks)  # none where nothing is stored
        resident = ceil_div(blocks, device.multiprocessors)
        of_weight = WEIGHT_CYCLES[bits] + TILE_CYCLES[bits] * (tiles - 1)
        warps, steps = partition.warps * resident, ceil_div(partition.total, blocks)
        activations = c.warps_k * resident * 8 * tiles * STEP_COLUMNS * problem.dtype.itemsize
        step = max(
            warps * TILE * STEP_COLUMNS * of_weight,
            WARP_CYCLES + WARP_TILE_CYCLES * tiles,
            ACTIVATIONS * activations / L2_BYTES_PER_CYCLE,
            MASK_CYCLES / (c.slots - 1),
        )
        begun = max(1.0, steps / partition.steps)  # groups of rows
        of_group = GROUP_CYCLES + (HANDED_OVER_CYCLES if c.warps_k > 1 else 0.0)
        busy = (steps * step + begun * of_group) / rates.clock_mhz
        streams = min(1.0, c.depth * warps / FULL_STREAMS)
        moved = (problem.m * problem.k / 8 + features.nnz * bits / 8) / rates.copy_bytes_per_us / streams
        parts = partition.steps / steps if partition.total % blocks or steps % partition.steps else 0.0
        shared = SHARED_US * bool(parts) + parts * c.warps_m * _part_bytes(problem) / PART_BYTES
        scattered = 0.0
        if c.row_order == "balanced":  # results and scales lie anywhere
            by_row = problem.scale_group is ScaleGroup.ROW
            scales = 1 if by_row else ceil_div(problem.k, problem.scale_group.size(problem.k))
            scattered = SCATTERED_CYCLES * problem.m * (8 * tiles + scales) / device.cycles_per_us
        return (
            rates.launch_us
            + START_US
            + math.sqrt(math.hypot(busy * busy, moved * moved))
            + shared
            + scattered
        )

    def heuristic(
        self, problem: QuantizedSpmmProblem, features: Features, device: Device
    ) -> QuantizedStreamConfig:
        """The warps, rings and slots that should be fastest, with a block for each multiprocessor.

        Rows stay as they are: on an H200 lengths that vary by .8 cost less than results and scales that lie anywhere.
        """
        room = device.multiprocessors
        most_rows = 1 << (max(1, ceil_div(problem.m, TILE)) - 1).bit_length()
        shapes = [
            (warps_m, warps_k)
            for warps_m, warps_k in WARPS
            if warps_m <= most_rows and (warps_k - 1) * STEP_COLUMNS < max(1, problem.k)
        ]
        for rings in (RINGS, SMALL_RINGS):
            configs = [
                QuantizedStreamConfig(
                    blocks=_blocks(_partition(problem, *warps, room).groups, room),
                    warps_m=warps[0],
                    warps_k=warps[1],
                    ring_chunks=ring,
                    depth=depth,
                    slots=slots,
                )
                for warps in shapes
                for ring, depth, slots in rings
            ]
            valid = [config for config in configs if self.is_valid(problem, config, device)]
            if valid:
                return self.fastest(problem, features, valid, device)
        return QuantizedStreamConfig()


def _blocks(groups: int, room: int) -> int:
    """The most blocks that there is room for, or slightly fewer where all groups of rows then share equally many."""
    fitting = [b for b in BLOCKS if b <= room] or [BLOCKS[0]]
    aligned = [b for b in fitting if b >= NEARLY_ALL * max(fitting) and b % max(1, groups) == 0]
    return max(aligned or fitting)


def _partition(problem: QuantizedSpmmProblem, warps_m: int, warps_k: int, blocks: int) -> Partition:
    return Partition(problem.m, problem.k, warps_m, warps_k, blocks, tiles=TILES)


def partition_of(problem: QuantizedSpmmProblem, config: QuantizedStreamConfig) -> Partition:
    """Returns how a config divides a weight's tiles."""
    return _partition(problem, config.warps_m, config.warps_k, config.blocks)


def _packed_sizes(partition: Partition) -> dict[str, int]:
    return {"groups": partition.groups, "steps": partition.steps, "used_blocks": partition.used_blocks}


def _scratch(problem: QuantizedSpmmProblem, partition: Partition) -> dict[str, int]:
    strips = partition.warps_m
    return {
        "parts": (partition.used_blocks + partition.groups) * strips * _part_bytes(problem),
        "counters": partition.groups * strips * 4,
    }


def _first_capability(problem: QuantizedSpmmProblem) -> tuple[int, int]:
    """The first compute capability with the instructions: those that convert e4m3 to float16 are later ones."""
    converts = problem.value_type is ValueType.E4M3 and problem.dtype is DType.FLOAT16
    return FIRST_WITH_E4M3 if converts else TENSOR_CORES


def unit_of(problem: QuantizedSpmmProblem) -> Unit:
    """Returns what a bit of a mask stands for: a weight, or two of 4 bits, if zero has a code that packing knows."""
    if problem.value_type is ValueType.INT4 and problem.symmetry is Symmetry.SYMMETRIC:
        return Unit(bits=8, codes=2)
    return Unit(bits=problem.value_type.bits)


def _kept_chunks(problem: QuantizedSpmmProblem) -> int:
    """Chunks that lanes may need at once: what one takes in a step, and what else its words and its last chunk hold."""
    unit = unit_of(problem)
    return ceil_div(TILES * unit.of_tile + AHEAD + unit.of_chunk, unit.of_chunk)


def _registers(problem: QuantizedSpmmProblem) -> int:
    sums = 8 * _column_tiles(problem) * (1 if problem.scale_group is ScaleGroup.ROW else 2)
    return 72 + sums + 4 * _column_tiles(problem) + (10 if problem.symmetry is Symmetry.ASYMMETRIC else 0)


def _column_tiles(problem: QuantizedSpmmProblem) -> int:
    return ceil_div(problem.n, 8)


def _part_bytes(problem: QuantizedSpmmProblem) -> int:
    """Bytes of a warp's sums."""
    return TILE * 8 * _column_tiles(problem) * 4


FAMILY = QuantizedStreamSpmm()
