"""SpMM of unstructured 16-bit weights on Hopper: read as bits and nonzeros, multiplied as dense tiles (sm_90a)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Config, Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.copied_ring import PIECE, SHARED_BYTES, persistent_launch
from sparsegen.kernels.layouts.limits import shared_memory_fits, warpgroups_capable
from sparsegen.kernels.layouts.padding import empty_as_padding, stored_values
from sparsegen.kernels.packed import Packed, empty_as_one
from sparsegen.kernels.spmm.bitmaps import ELEMENTS, TILE_K, TILE_M, bitmaps
from sparsegen.kernels.spmm.copied_operands import copied_map, copied_scope
from sparsegen.kernels.tensor_map import TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import Layout, SpmmProblem
from sparsegen.system.integers import ceil_div, round_up

ITEM_BYTES = 2
WIDEST = 256  # columns of a tile
LEAST_DENSITY = 1 / 64  # below it, bits and padding are most of what is read
MOST_PARTS_BYTES = 1 << 26
FULLEST = 2.07  # standard deviations that the fullest of 32 lanes lies above their mean
# Factor from the variance of a row's length to a lane's. A lane holds two rows; the fullest of 8 such pairs lies 1.42
# standard deviations above their mean.
OF_ROWS = (1.42 / FULLEST) ** 2 / 2
# Fitted to 420 configs on 74 products on an H100, which these describe within 5 %.
START_US = 2.4
STEP_CYCLES = {1: 838, 2: 611}  # cycles of a stage, by the granule, with PIECE columns of B
WIDER_CYCLES = 215  # further cycles of a stage for each further PIECE columns
REACHED = 1.12  # multiple of the rate of large products, which run long enough to lower the clocks
READ = 0.66  # fraction of the rate of copies
LOADED = 0.49  # fraction of the L2's time, besides other waits
LAST = 0.56  # fraction of the time to write the last tiles of C
WRITTEN, ADDED = 13, 39  # bytes of parts of sums that a multiprocessor writes, and reads, in a cycle


@dataclass(frozen=True, eq=False, repr=False)
class BitmapConfig(Config):
    """One point of the tuning space of `bitmap_spmm`."""

    tile_n: int = tunable(128, (64, 128, WIDEST), "columns of C per thread block")
    cluster: int = tunable(1, (1, 2), "thread blocks that share the loads of B's tiles (multicast)")
    splits: int = tunable(
        1, (1, 2, 4, 8), "parts of k that different thread blocks compute and add up", packs=True
    )
    granule: int = tunable(
        1,
        (1, 2),
        "neighbours in a row that a bit stands for: two are more bytes and less decoding",
        packs=True,
    )


# All of the space, the defaults first.
_TUNABLES = BitmapConfig.tunables()
CONFIGS = tuple(
    BitmapConfig.parse(dict(zip((t.name for t in _TUNABLES), values, strict=True)))
    for values in itertools.product(
        *(sorted(t.choices, key=lambda v, t=t: v != t.default) for t in _TUNABLES)  # type: ignore[misc]
    )
)


class BitmapSpmm(Family[SpmmProblem, BitmapConfig]):
    """Warps put A's nonzeros to their places among zeros in registers, where tensor cores take them as they are.

    A tile of A is a bit for each element or two and two bytes for each nonzero, padded so that the lanes of a warp find
    theirs in different banks. B is loaded and C stored by TMA. Zeros are multiplied like everything else, so that an
    infinity or NaN of B makes NaN in rows that have no nonzero there. Parts of k are added up in a fixed order: equal
    inputs give equal bits on every call.
    """

    name = "bitmap_spmm"
    summary = "SpMM of unstructured weights: a bit for each, put among zeros in registers for warpgroups' tensor cores"
    source = (
        "bitmaps for tensor cores: Fan et al., SpInfer, EuroSys 2025, section 4; sparse loads for dense products: Xia "
        "et al., Flash-LLM, VLDB 2023, section 4; warps that load beside warps that multiply: NVIDIA, Hopper tuning "
        "guide; the lanes' slots are sparsegen's own"
    )
    mapped_names = ("b", "c")
    size_names = ("m", "k", "n", "row_tiles", "steps", "value_bytes")
    packed_names = ("heads", "offsets", "values")
    scratch_names = ("parts", "counters")
    multiplies_zeros = True

    def scope(self, problem: SpmmProblem) -> Iterator[Constraint]:
        return copied_scope(problem)

    def constraints(self, problem: SpmmProblem, config: BitmapConfig, device: Device) -> Iterator[Constraint]:
        yield from self.scope(problem)
        c = config
        yield warpgroups_capable(device)
        yield shared_memory_fits("tiles", SHARED_BYTES, device)
        steps = ceil_div(problem.k, TILE_K)
        yield Constraint(
            c.splits <= steps, f"each of splits ({c.splits}) parts has some of {steps} steps along k"
        )
        parts = _parts_bytes(problem, c)
        yield Constraint(
            parts <= MOST_PARTS_BYTES, f"parts of sums take {parts} bytes, at most {MOST_PARTS_BYTES}"
        )

    def requirements(
        self, problem: SpmmProblem, features: Features, config: BitmapConfig
    ) -> Iterator[Constraint]:
        yield Constraint(
            features.density >= LEAST_DENSITY,
            f"one weight of {round(1 / LEAST_DENSITY)} or more is a nonzero ({features.density:.2%} are): each takes a "
            "bit of a mask",
        )

    def is_worth_trying(self, problem: SpmmProblem, config: BitmapConfig, device: Device) -> bool:
        """True unless a tile is twice as wide as the result, a cluster is higher than it, or splits make three waves of
        tiles or more. It rests on arithmetic: further splits only add partial sums.
        """
        c = config
        tiles = _row_tiles(problem) * ceil_div(problem.n, c.tile_n)
        if c.splits > 1 and tiles * c.splits >= 3 * device.multiprocessors:
            return False
        return c.tile_n < 2 * max(PIECE, problem.n) and c.cluster <= _row_tiles(problem)

    def constants(self, problem: SpmmProblem, config: BitmapConfig) -> Mapping[str, Value]:
        by_columns = problem.layout is Layout.COLUMN
        return {
            "dtype": problem.dtype.value,
            "layout": problem.layout.value,
            "epilogue": problem.epilogue.value,
            "b_by_inner": by_columns,
            "by_columns": by_columns,
        }

    def tensor_map(self, problem: SpmmProblem, config: BitmapConfig, name: str) -> TensorMap:
        if name == "c":
            return copied_map(problem, name, PIECE)
        rows = config.tile_n if problem.layout is Layout.COLUMN else TILE_K
        return copied_map(problem, name, rows // config.cluster)  # each block of a cluster sends its part

    def pack(self, problem: SpmmProblem, config: BitmapConfig, matrix: CsrMatrix) -> Packed[Array]:
        laid = bitmaps(matrix, config.granule)
        source = empty_as_padding(laid.source)
        return Packed(
            arrays={
                "heads": empty_as_one(laid.heads),
                "offsets": laid.offsets,
                "values": stored_values(matrix, source, problem.dtype),
            },
            sizes={"row_tiles": laid.row_tiles, "steps": laid.steps, "value_bytes": laid.most_bytes},
            nnz=matrix.nnz,
            values="values",
            value_source=lambda: source,
            scratch={
                "parts": max(4, _parts_bytes(problem, config)),
                "counters": laid.row_tiles * _columns(problem) // PIECE * (TILE_M // PIECE) * 4,
            },
        )

    def expected_sizes(
        self, problem: SpmmProblem, features: Features, config: BitmapConfig
    ) -> Mapping[str, int]:
        return {"row_tiles": _row_tiles(problem)}

    def launch(
        self, problem: SpmmProblem, config: BitmapConfig, sizes: Mapping[str, int], device: Device
    ) -> Launch:
        c = config
        units = ceil_div(sizes["row_tiles"], c.cluster) * ceil_div(problem.n, c.tile_n) * c.splits
        return persistent_launch(units, c.cluster, device)

    def heuristic(self, problem: SpmmProblem, features: Features, device: Device) -> BitmapConfig:
        """The valid config that should take the least time."""
        return self.fastest_valid(problem, features, CONFIGS, device, otherwise=self.config())

    def analytic_us(
        self, problem: SpmmProblem, features: Features, config: BitmapConfig, device: Device
    ) -> float:
        c, rates = config, device.expected_rates
        slots = expected_slots(features.density, c.granule, features.row_cov)
        read = problem.m * problem.k / ELEMENTS * (4 + slots * c.granule * ITEM_BYTES)
        moved = (read + (problem.k + problem.m) * problem.n * ITEM_BYTES) / (READ * rates.copy_bytes_per_us)

        column_tiles = ceil_div(problem.n, c.tile_n)
        of_b = _row_tiles(problem) / c.cluster * problem.k * c.tile_n * ITEM_BYTES
        loaded = LOADED * column_tiles * (read + of_b) / device.l2_bytes_per_us

        units = _row_tiles(problem) * column_tiles * c.splits
        rounds = max(1, math.ceil(units / (max(1, device.multiprocessors // c.cluster) * c.cluster)))
        clock = device.cycles_per_us / device.multiprocessors
        of_one = rates.tensor_products_per_us(problem.dtype) / device.multiprocessors
        multiplied = TILE_M * c.tile_n * TILE_K / (REACHED * of_one)
        step = max(multiplied, (STEP_CYCLES[c.granule] + WIDER_CYCLES * (c.tile_n // PIECE - 1)) / clock)
        computed = rounds * math.ceil(ceil_div(problem.k, TILE_K) / c.splits) * step
        of_c = problem.m * problem.n * ITEM_BYTES
        last = LAST * of_c / rates.copy_bytes_per_us / rounds  # nothing hides the last tiles' stores
        us = rates.launch_us + START_US + max(moved, loaded, computed) + last
        if c.splits > 1:
            of_part = TILE_M * c.tile_n * 4
            us += rounds * of_part * (1 / WRITTEN + c.splits / ADDED) / clock
        return us


def expected_slots(density: float, granule: int, row_cov: float = 0.0) -> float:
    """Slots of a tile, as many as the fullest lane needs, where nonzeros lie anywhere in rows that vary so much."""
    bits, is_set = ELEMENTS / granule, any_live(min(1.0, density), granule)
    variance = bits * is_set * (1 - is_set) + OF_ROWS * (row_cov * bits * is_set) ** 2
    return min(bits, bits * is_set + FULLEST * math.sqrt(variance))


def _row_tiles(problem: SpmmProblem) -> int:
    return ceil_div(problem.m, TILE_M)


def _columns(problem: SpmmProblem) -> int:
    """Columns of C as the widest tiles pad them, so that scratch memory does not depend on the width of tiles."""
    return round_up(problem.n, WIDEST)


def _parts_bytes(problem: SpmmProblem, config: BitmapConfig) -> int:
    return _row_tiles(problem) * TILE_M * _columns(problem) * 4 * config.splits if config.splits > 1 else 0


FAMILY = BitmapSpmm()
