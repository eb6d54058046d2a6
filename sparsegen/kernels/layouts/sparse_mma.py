"""The common part of families for 2:4 sparsity and few columns, which multiply on sparse tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.lane_stream_config import few_tokens
from sparsegen.kernels.layouts.limits import (
    TENSOR_CORES,
    capable,
    enough_registers,
    resident_blocks_fit,
    shared_memory_fits,
)
from sparsegen.kernels.layouts.two_four import LANES, STRIP, UNIT_COLUMNS, VECTOR, code_vectors, units_across
from sparsegen.matrix.chosen_columns import CHOSEN
from sparsegen.matrix.features import Features
from sparsegen.operators import SpmmProblem
from sparsegen.system.integers import ceil_div

if TYPE_CHECKING:  # a look-up of spmm imports no other operator
    from sparsegen.operators import QuantizedSpmmProblem

PITCH, GAP = STRIP + 4, 16  # floats from a token's sums to the next one's; bytes behind a token's activations
LIST_BYTES = 128  # that say which columns of a unit are chosen
STEPS = 4  # of a unit
FEW_TILES = 2  # of 8 columns of C, up to which sums of two strips are kept
WORTH_PARTS = 0.8  # blocks that share rows must use the device so much better than one for all columns
# Fitted to an H200 (docs/notes/decode.md): of a multiprocessor for a unit with 8 columns of C, and for each 8 more.
START_US = 6.5
UNIT_CYCLES, TILE_CYCLES = 100.0, 65.0
PARTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class SparseMmaConfig(Config):
    """Tunables that the families share."""

    warps: int = tunable(8, (4, 8, 16), "warps of a block, which share the columns of its rows")
    of_columns: int = tunable(
        4, (4, 8, 16), "columns of which four are chosen for each 32 rows; 4: none are", packs=True
    )
    parts: int = tunable(
        1, PARTS, "blocks that share rows, each with its own columns, whose activations it keeps", packs=True
    )
    stages: int = tunable(8, (3, 4, 6, 8, 12), "units of 32 rows by 128 columns in each warp's ring")
    resident_blocks: int = tunable(1, (1, 2), "blocks of a multiprocessor")


P = TypeVar("P", "SpmmProblem", "QuantizedSpmmProblem")
C = TypeVar("C", bound=SparseMmaConfig)


class SparseMma(Family[P, C]):
    """Products of mma.sp: of every four columns two values and their metadata as stored, activations in shared memory.

    Sums are float32. Fours with fewer nonzeros are filled with zeros, which are multiplied, so that an infinity or NaN
    of B may make NaN in rows that have no nonzero there. Sums are added up in a fixed order: equal inputs give equal
    bits on every call.
    """

    source = "2:4 sparsity and its metadata: Mishra et al., Accelerating Sparse Deep Neural Networks, 2021, section 3"
    template = "quantized/quantized_sparse_mma_spmm.cu.j2"
    size_names = ("m", "k", "n", "layers")
    scratch_names = ("parts", "counters")
    multiplies_zeros = True

    def value_bits(self, problem: P) -> int:
        """Bits that a nonzero is stored in."""
        raise NotImplementedError

    def group_columns(self, problem: P) -> int:
        """Columns of a row that share a scale; 0: all of them, or there is none."""
        raise NotImplementedError

    def first_capability(self, problem: P) -> tuple[int, int]:
        """The first compute capability with the instructions."""
        return TENSOR_CORES

    def scope(self, problem: P) -> Iterator[Constraint]:
        yield from few_tokens(problem)

    def constraints(self, problem: P, config: C, device: Device) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, self.first_capability(problem))
        scales = self._scales(problem, c)
        yield Constraint(
            scales <= STEPS,
            f"groups of columns ({self.group_columns(problem)}) end with steps, which have {8 * c.of_columns}",
        )
        sums = 8 * column_tiles(problem) * (2 if self.group_columns(problem) else 1)
        needed = 64 + sums + 2 * self.value_bits(problem)
        yield enough_registers(needed, LANES * c.warps * c.resident_blocks, at_a_time=8)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("activations and rings", shared, device)
        yield resident_blocks_fit(c.resident_blocks, shared, device)

    def requirements(self, problem: P, features: Features, config: C) -> Iterator[Constraint]:
        if config.of_columns == CHOSEN:
            yield Constraint(
                features.two_four,
                "no four columns of a row hold more than two nonzeros, and they hold one on average",
            )
            return
        yield Constraint(
            features.chosen_of == config.of_columns,
            f"four of every {config.of_columns} columns are enough for each 32 rows, no row has more than two "
            "nonzeros in them, and rows have one on average",
        )

    def _shared_bytes(self, problem: P, config: C) -> int:
        c, tiles = config, column_tiles(problem)
        columns = ceil_div(units_across(problem.k, c.of_columns), c.parts) * _unit_columns(c)
        activations = 16 * tiles * columns if c.of_columns > CHOSEN else problem.n * (columns * 2 + GAP)
        scales = self._scales(problem, c) * STRIP * 2
        sums = (2 if tiles <= FEW_TILES else 1) * 8 * tiles * PITCH * 4
        return activations + c.warps * (c.stages * (self._unit_bytes(problem, c) + scales) + sums)

    def _unit_bytes(self, problem: P, config: C) -> int:
        lists = LIST_BYTES if config.of_columns > CHOSEN else 0
        return (code_vectors(self.value_bits(problem)) + 1) * LANES * VECTOR + lists

    def _scales(self, problem: P, config: C) -> int:
        """Scales of a row in a unit."""
        group = self.group_columns(problem)
        return _unit_columns(config) // group if group else 0

    def constants(self, problem: P, config: C) -> Mapping[str, Value]:
        return {
            "dtype": problem.dtype.value,
            "epilogue": problem.epilogue.value,
            "bits": self.value_bits(problem),
            "group_columns": self.group_columns(problem),
            "column_tiles": column_tiles(problem),
            "aligned_b": problem.k % 8 == 0,
            "aligned_m": problem.m % 8 == 0,
        }

    @staticmethod
    def scratch(problem: P, config: C) -> dict[str, int]:
        """Bytes of sums that blocks have parts of, and of their counters."""
        strips, shared = ceil_div(problem.m, STRIP), config.parts > 1
        sums = strips * config.parts * STRIP * 8 * column_tiles(problem) * 4
        return {"parts": sums if shared else 4, "counters": 4 * max(1, strips if shared else 1)}

    def launch(self, problem: P, config: C, sizes: Mapping[str, int], device: Device) -> Launch:
        blocks = 0 if problem.n == 0 else _blocks_over_rows(problem, config, device)
        return Launch(
            grid=(blocks, config.parts, 1),
            block=(LANES * config.warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(self, problem: P, features: Features, config: C, device: Device) -> float:
        rates, strips = device.expected_rates, ceil_div(problem.m, STRIP)
        across = units_across(problem.k, config.of_columns)
        moved = across * strips * self._unit_bytes(problem, config)
        blocks = max(1, _blocks_over_rows(problem, config, device))
        of_block = ceil_div(strips, blocks) * across / config.parts
        cycles = UNIT_CYCLES + TILE_CYCLES * (column_tiles(problem) - 1)
        busy = of_block * cycles * config.resident_blocks / rates.clock_mhz
        return rates.launch_us + START_US + max(busy, moved / rates.copy_bytes_per_us)

    def heuristic(self, problem: P, features: Features, device: Device) -> C:
        """Chosen columns where a matrix has such and they fit; blocks with all columns where their activations fit, or
        that share rows where this uses the device better.
        """
        found, used = self.config_type(), 0.0
        strips = max(1, ceil_div(problem.m, STRIP))
        for of_columns, parts in product((features.chosen_of or CHOSEN, CHOSEN), PARTS):
            if used and of_columns != found.of_columns:
                break
            config = self._fitting(problem, parts, of_columns, device)
            if config is None:
                continue
            rounds = ceil_div(strips, max(1, _blocks_over_rows(problem, config, device)))
            share = strips * parts / (rounds * device.multiprocessors)
            if share * WORTH_PARTS > used:
                found, used = config, share
        return found

    def _fitting(self, problem: P, parts: int, of_columns: int, device: Device) -> C | None:
        """Returns the first valid config with these; None if there is none."""
        tried = ((8, 4), (4, 8), (8, 3), (4, 4), (4, 3))
        base = replace(self.config_type(), parts=parts, of_columns=of_columns)
        some = (replace(base, warps=warps, stages=stages) for warps, stages in tried)
        return next((config for config in some if self.is_valid(problem, config, device)), None)


def _blocks_over_rows(
    problem: SpmmProblem | QuantizedSpmmProblem, config: SparseMmaConfig, device: Device
) -> int:
    """Blocks that deal the strips of rows among them: as many as are resident."""
    resident = device.multiprocessors * config.resident_blocks
    return min(ceil_div(problem.m, STRIP), max(1, resident // config.parts))


def _unit_columns(config: SparseMmaConfig) -> int:
    """Columns of the matrix that a unit stands for."""
    return UNIT_COLUMNS // CHOSEN * config.of_columns


def column_tiles(problem: SpmmProblem | QuantizedSpmmProblem) -> int:
    """Tiles of 8 columns of C."""
    return ceil_div(problem.n, 8)
