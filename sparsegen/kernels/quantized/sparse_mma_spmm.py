"""SpMM for decoding: weights of 8 or 4 bits with 2:4 sparsity times few tokens, on sparse tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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
from sparsegen.kernels.packed import Memory, Packed, empty_as_one
from sparsegen.kernels.quantized.two_four import (
    LANES,
    STRIP,
    UNIT_COLUMNS,
    VECTOR,
    is_paired,
    pack,
    pack_there,
    unit_vectors,
    units_across,
)
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import DType, QuantizedSpmmProblem, ScaleGroup, Symmetry, ValueType
from sparsegen.system.device_memory import Buffer, PlainDevice
from sparsegen.system.integers import ceil_div
from sparsegen.system.numpy_types import Array

M = TypeVar("M", bound=Memory)
PITCH, GAP = STRIP + 4, 16  # floats from a token's sums to the next one's; bytes behind a token's activations
FIRST_WITH_E4M3 = (8, 9)
LEAST_DENSITY = 1 / 4
WORTH_PARTS = 0.9  # blocks that share rows must use the device so much better than one for all columns
START_US = 5.0
UNIT_CYCLES, TILE_CYCLES = (
    45.0,
    12.0,
)  # of a multiprocessor for a unit with 8 columns of C, and for each 8 more


@dataclass(frozen=True)
class SparseMmaConfig(Config):
    """One point of the tuning space of `SparseMmaSpmm`."""

    warps: int = tunable(8, (4, 8, 16), "warps of a block, which share the columns of its rows")
    parts: int = tunable(
        1,
        (1, 2, 4, 8, 16),
        "blocks that share rows, each with its own columns, whose activations it keeps",
        packs=True,
    )
    stages: int = tunable(8, (2, 3, 4, 6, 8, 12), "units of 32 rows by 128 columns in each warp's ring")
    resident_blocks: int = tunable(1, (1, 2), "blocks of a multiprocessor")


class SparseMmaSpmm(Family[QuantizedSpmmProblem, SparseMmaConfig]):
    """Products of mma.sp: of every four columns two codes and their metadata as stored, activations in shared memory.

    Codes become 16-bit elements exactly; sums are float32, and those of a group of columns are multiplied by its
    scale. Fours with fewer nonzeros are filled with zeros, which are multiplied, so that an infinity or NaN of B may
    make NaN in rows that have no nonzero there. Sums are added up in a fixed order: equal inputs give equal bits on
    every call.
    """

    name = "sparse_mma_spmm"
    summary = "SpMM for few columns and 2:4 sparsity: codes of 8 or 4 bits for sparse tensor cores"
    source = (
        "2:4 sparsity and its metadata: Mishra et al., Accelerating Sparse Deep Neural Networks, 2021, section 3; "
        "codes of 4 bits beside it: Frantar et al., MARLIN, PPoPP 2025, section 4; integers in the fraction of a half: "
        "Kim et al., Who Says Elephants Can't Run, 2022, section 3"
    )
    template = "quantized/sparse_mma_spmm.cu.j2"
    entry = "sparse_mma_spmm"
    size_names = ("m", "k", "n", "layers")
    packed_names = ("units",)
    scratch_names = ("parts", "counters")
    problem_type = QuantizedSpmmProblem
    config_type = SparseMmaConfig

    def scope(self, problem: QuantizedSpmmProblem) -> Iterator[Constraint]:
        yield from few_tokens(problem)
        yield Constraint(
            problem.symmetry is Symmetry.SYMMETRIC,
            f"codes are {Symmetry.SYMMETRIC}, as some fours are filled with zeros (they are {problem.symmetry})",
        )

    def constraints(
        self, problem: QuantizedSpmmProblem, config: SparseMmaConfig, device: Device
    ) -> Iterator[Constraint]:
        c = config
        yield from self.scope(problem)
        yield capable(device, _first_capability(problem))
        yield enough_registers(_registers(problem), LANES * c.warps * c.resident_blocks, at_a_time=8)
        shared = self._shared_bytes(problem, c)
        yield shared_memory_fits("activations and rings", shared, device)
        yield resident_blocks_fit(c.resident_blocks, shared, device)

    def requirements(
        self, problem: QuantizedSpmmProblem, features: Features, config: SparseMmaConfig
    ) -> Iterator[Constraint]:
        yield Constraint(features.two_four, "no four columns of a row hold more than two nonzeros")
        yield Constraint(
            features.density >= LEAST_DENSITY,
            f"one weight of {round(1 / LEAST_DENSITY)} or more is a nonzero ({features.density:.2%} are): each four "
            "takes two codes",
        )

    @staticmethod
    def _shared_bytes(problem: QuantizedSpmmProblem, config: SparseMmaConfig) -> int:
        c, tiles = config, _column_tiles(problem)
        activations = problem.n * (ceil_div(units_across(problem.k), c.parts) * UNIT_COLUMNS * 2 + GAP)
        scales = 0 if problem.scale_group is ScaleGroup.ROW else UNIT_COLUMNS // problem.scale_group.size(0)
        stage = unit_vectors(problem.value_type.bits) * LANES * VECTOR + scales * STRIP * 2
        sums = (2 if tiles <= 2 else 1) * 8 * tiles * PITCH * 4
        return activations + c.warps * (c.stages * stage + sums)

    def skips_zeros(self, problem: QuantizedSpmmProblem, config: SparseMmaConfig) -> bool:
        return False

    def constants(self, problem: QuantizedSpmmProblem, config: SparseMmaConfig) -> Mapping[str, Value]:
        by_row = problem.scale_group is ScaleGroup.ROW
        return {
            "dtype": problem.dtype.value,
            "epilogue": problem.epilogue.value,
            "value_type": problem.value_type.value,
            "asymmetric": False,
            "bits": problem.value_type.bits,
            "group_columns": 0 if by_row else problem.scale_group.size(problem.k),
            "column_tiles": _column_tiles(problem),
            "aligned_b": problem.k % 8 == 0,
            "aligned_m": problem.m % 8 == 0,
        }

    def pack(
        self, problem: QuantizedSpmmProblem, config: SparseMmaConfig, matrix: CsrMatrix
    ) -> Packed[Array]:
        units, layers = pack(matrix, *_codes(problem, matrix), **_order(problem))
        return _packed(problem, config, matrix, empty_as_one(units), layers)

    def pack_on(
        self, problem: QuantizedSpmmProblem, config: SparseMmaConfig, matrix: CsrMatrix, device: PlainDevice
    ) -> Packed[Buffer]:
        units, layers = pack_there(device, matrix, *_codes(problem, matrix), **_order(problem))
        return _packed(problem, config, matrix, units, layers)

    def launch(
        self,
        problem: QuantizedSpmmProblem,
        config: SparseMmaConfig,
        sizes: Mapping[str, int],
        device: Device,
    ) -> Launch:
        blocks = 0 if problem.n == 0 else _blocks_over_rows(problem, config, device)
        return Launch(
            grid=(blocks, config.parts, 1),
            block=(LANES * config.warps, 1, 1),
            shared_memory_bytes=self._shared_bytes(problem, config),
        )

    def analytic_us(
        self, problem: QuantizedSpmmProblem, features: Features, config: SparseMmaConfig, device: Device
    ) -> float:
        rates, strips = device.expected_rates, ceil_div(problem.m, STRIP)
        units = units_across(problem.k) * strips
        moved = units * unit_vectors(problem.value_type.bits) * LANES * VECTOR
        blocks = max(1, _blocks_over_rows(problem, config, device))
        of_block = ceil_div(strips, blocks) * units_across(problem.k) / config.parts
        cycles = UNIT_CYCLES + TILE_CYCLES * (_column_tiles(problem) - 1)
        busy = of_block * cycles * config.resident_blocks / rates.clock_mhz
        return rates.launch_us + START_US + max(busy, moved / rates.copy_bytes_per_us)

    def heuristic(self, problem: QuantizedSpmmProblem, features: Features, device: Device) -> SparseMmaConfig:
        """Blocks with all columns where their activations fit, or that share rows where this uses the device better."""
        found, used = SparseMmaConfig(), 0.0
        for parts in (1, 2, 4, 8, 16):
            config = self._fitting(problem, parts, device)
            if config is None:
                continue
            strips = max(1, ceil_div(problem.m, STRIP))
            rounds = ceil_div(strips, max(1, _blocks_over_rows(problem, config, device)))
            share = strips * parts / (rounds * device.multiprocessors)
            if share * WORTH_PARTS > used:
                found, used = config, share
        return found

    def _fitting(self, problem: QuantizedSpmmProblem, parts: int, device: Device) -> SparseMmaConfig | None:
        """The config with so many parts and as many warps and stages as there is room for, if there is one."""
        tried = ((8, 12), (8, 8), (8, 6), (8, 4), (4, 8), (8, 3), (4, 4), (8, 2), (4, 3), (4, 2))
        some = (SparseMmaConfig(warps=warps, parts=parts, stages=stages) for warps, stages in tried)
        return next((config for config in some if self.is_valid(problem, config, device)), None)


def _codes(problem: QuantizedSpmmProblem, matrix: CsrMatrix) -> tuple[Array, int]:
    """The nonzeros' codes, and that of zero."""
    kind = problem.value_type
    return kind.to_codes(matrix.values), int(kind.to_codes([0.0])[0])


def _order(problem: QuantizedSpmmProblem) -> dict[str, Any]:
    """How codes lie in words; see `pack`."""
    return {"bits": problem.value_type.bits, "paired": is_paired(problem.value_type, problem.dtype)}


def _packed(
    problem: QuantizedSpmmProblem, config: SparseMmaConfig, matrix: CsrMatrix, units: M, layers: int
) -> Packed[M]:
    strips, shared = ceil_div(problem.m, STRIP), config.parts > 1
    sums = strips * config.parts * STRIP * 8 * _column_tiles(problem) * 4
    return Packed(
        arrays={"units": units},
        sizes={"layers": layers},
        nnz=matrix.nnz,
        scratch={"parts": sums if shared else 4, "counters": 4 * max(1, strips if shared else 1)},
    )


def _blocks_over_rows(problem: QuantizedSpmmProblem, config: SparseMmaConfig, device: Device) -> int:
    """Blocks that deal the strips of rows among them: as many as are resident."""
    resident = device.multiprocessors * config.resident_blocks
    return min(ceil_div(problem.m, STRIP), max(1, resident // config.parts))


def _first_capability(problem: QuantizedSpmmProblem) -> tuple[int, int]:
    """The first compute capability with the instructions: those that convert e4m3 to float16 are later ones."""
    converts = problem.value_type is ValueType.E4M3 and problem.dtype is DType.FLOAT16
    return FIRST_WITH_E4M3 if converts else TENSOR_CORES


def _column_tiles(problem: QuantizedSpmmProblem) -> int:
    return ceil_div(problem.n, 8)


def _registers(problem: QuantizedSpmmProblem) -> int:
    sums = 8 * _column_tiles(problem) * (1 if problem.scale_group is ScaleGroup.ROW else 2)
    return 64 + sums + 64 * problem.value_type.bits // 32


FAMILY = SparseMmaSpmm()
