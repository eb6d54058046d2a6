"""The common part of families of masked products that load their tiles by TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from sparsegen.kernels.base import Constraint, Device, Family
from sparsegen.kernels.config import Value, tunable
from sparsegen.kernels.launch import Launch
from sparsegen.kernels.layouts.batches import batch_constants
from sparsegen.kernels.layouts.copied_ring import (
    CHUNK_BYTES,
    COUNTER_BYTES,
    MOST_BATCH,
    MOST_ROWS,
    PIECE,
    ROW_BYTES,
    TILE_M,
    CopiedTilesConfig,
    Order,
    WalkedTilesConfig,
    persistent_launch,
    ring_constraints,
    walk_constraint,
)
from sparsegen.kernels.masked.copied_tiles_time import (
    COUNTED_US,
    FEW,
    MOVED,
    START_US,
    TILE_US,
    TOGETHER,
    Counts,
    Spread,
    Tiles,
    counted_out,
    parts_us,
    ranked_blocks,
    sampled_counts,
    sampled_us,
    sums_us,
)
from sparsegen.kernels.masked.side import Side
from sparsegen.kernels.packed import Packed
from sparsegen.kernels.tensor_map import Swizzle, TensorMap
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import DsdProblem, DType, FactorType, Float8, MaskedProblem
from sparsegen.system.integers import ceil_div, round_up

# Density from which on rows are so equally long that a short tail costs more than it saves.
EVEN_DENSITY = 0.97
MOST_TAIL = 16
WIDTHS = (256, 192, 128, 64)  # columns of a tile
WIDEST = WIDTHS[0]
MOST_ALTERNATIVES = 5
KEPT = 0.5  # fraction of the L2 for the rows of A that a group of tiles reads again and again
MOST_SHARES = 144  # blocks that share tiles: no device of compute capability 9.x has more multiprocessors
NARROW = 128  # columns of a sampled result's narrow tiles


@dataclass(frozen=True, slots=True)
class _Array:
    """A matrix by its sizes, the contiguous one first."""

    sizes: tuple[int, int]
    dtype: DType | Float8

    @property
    def row_bytes(self) -> int:
        return self.sizes[0] * self.dtype.itemsize

    @property
    def has_whole_chunks(self) -> bool:
        return self.row_bytes % CHUNK_BYTES == 0


P = TypeVar("P", bound=MaskedProblem)
C = TypeVar("C", bound=CopiedTilesConfig)


class CopiedTiles(Family[P, C]):
    """A persistent kernel: a producer warp loads the live tiles by TMA, and two consumer warpgroups multiply them.

    The producer reads the mask's words. Tiles take their rows in the mask's order, rows with most live blocks first.
    Two groups of 64 rows share a tile; each skips the blocks that are dead in its own rows. The kernel reads no dead
    block.
    """

    size_names = ("m", "k", "n")
    packed_names = ()
    scratch_names: ClassVar[tuple[str, ...]] = ("counters",)
    source = (
        "Lo: Efficient Sparse Training with Structured Dropout (block-sparse products that skip dropped blocks); warps "
        "that load beside warps that multiply, and copies for a whole cluster: NVIDIA, Hopper tuning guide"
    )

    def batch_size_names(self, problem: P) -> tuple[str, ...]:
        return ("batch",) if problem.batch > 1 else ()

    def scope(self, problem: P) -> Iterator[Constraint]:
        side, block = Side.of(problem), problem.block
        is_8bit = problem.factor_type is not FactorType.SAME
        yield Constraint(
            problem.batch <= MOST_BATCH,
            f"a launch computes at most {MOST_BATCH} batch elements (batch = {problem.batch})",
        )
        yield Constraint(
            is_8bit or problem.dtype is not DType.FLOAT32 or (side.a_by_inner and side.b_by_inner),
            "warpgroups multiply 16-bit elements, or float32 ones (as TF32) if both matrices are contiguous along the "
            "contraction",
        )
        yield Constraint(
            not is_8bit or (side.a_by_inner and side.b_by_inner),
            "8-bit factors are contiguous along the contraction: W is n x k for dsd and k x n for sdd; instead of "
            "dsd_transposed, copy both matrices transposed, and call dsd with the transposed mask",
        )
        yield Constraint(
            not is_8bit or side.samples or side.inner_block % ROW_BYTES == 0,
            f"of 8-bit factors, blocks ({block}) have whole stages of {ROW_BYTES} elements along the contraction",
        )
        yield Constraint(
            block.rows % PIECE == 0 and block.columns % PIECE == 0,
            f"blocks ({block}) are whole pieces of {PIECE} x {PIECE}",
        )
        yield Constraint(
            all(self._array(problem, name).has_whole_chunks for name in self.mapped_names),
            f"rows of the arrays (k = {problem.k}, n = {problem.n} elements) are whole chunks of 16 bytes",
        )
        yield Constraint(
            max(side.rows, side.columns) <= MOST_ROWS,
            f"the result ({side.rows} x {side.columns}) has at most {MOST_ROWS} rows and columns",
        )

    def constraints(self, problem: P, config: C, device: Device) -> Iterator[Constraint]:
        yield from self.scope(problem)
        yield Constraint(
            problem.factor_type is FactorType.SAME or config.tile_n in (64, 128, 256),
            f"sums of 8-bit products are added up for 128 columns at a time (tile_n = {config.tile_n})",
        )
        yield from ring_constraints(device)

    def is_worth_trying(self, problem: P, config: C, device: Device) -> bool:
        """True unless a cluster's tiles are twice as wide as the result or wider: such tiles are mostly padding."""
        side = Side.of(problem)
        return config.tile_n * config.cluster < 2 * max(PIECE, side.columns)

    def constants(self, problem: P, config: C) -> Mapping[str, Value]:
        side = Side.of(problem)
        of_result = {"unit": self._unit(side, config), "fills": side.fills} if side.samples else {}
        types = problem.factor_type.types
        return {
            "dtype": problem.dtype.value,
            "entry": self.entry,
            **side.constants,
            "transposes": side.transposes,
            "by_columns": side.by_columns,
            "epilogue": problem.epilogue.value if isinstance(problem, DsdProblem) else "none",
            **of_result,
            **({} if types is None else {"a_type": types[0].name.lower(), "b_type": types[1].name.lower()}),
            **batch_constants(problem),
        }

    def tensor_map(self, problem: P, config: C, name: str) -> TensorMap:
        side, array, sizes = Side.of(problem), self._array(problem, name), self._array(problem, name).sizes
        box_rows = PIECE
        if (
            name == self.mapped_names[1] and side.b_by_inner
        ):  # one box holds all columns of B that a stage needs
            box_rows = self._unit(side, config) if side.samples else config.tile_n
        is_batch, row_bytes, row = problem.batch > 1, array.row_bytes, ROW_BYTES // array.dtype.itemsize
        return TensorMap(
            array=name,
            dtype=array.dtype,
            sizes=(*sizes, problem.batch) if is_batch else sizes,
            strides=(row_bytes, row_bytes * sizes[1]) if is_batch else (row_bytes,),
            box=(row, box_rows, 1) if is_batch else (row, box_rows),
            swizzle=Swizzle.BYTES_128,
        )

    def _array(self, problem: P, name: str) -> _Array:
        """One of the two matrices or the result, as it is stored."""
        side, (first, second) = Side.of(problem), problem.factor_types
        a, b, y = self.mapped_names
        outer, inner, is_by_inner, dtype = {
            a: (side.rows, side.inner, side.a_by_inner, first),
            b: (side.columns, side.inner, side.b_by_inner, second),
            y: (side.columns, side.rows, side.by_columns, problem.dtype),
        }[name]
        return _Array((inner, outer) if is_by_inner else (outer, inner), dtype)

    def pack(self, problem: P, config: C, matrix: CsrMatrix) -> Packed[Array]:
        return Packed(arrays={}, sizes={}, nnz=matrix.nnz, scratch={"counters": COUNTER_BYTES})

    def launch(self, problem: P, config: C, sizes: Mapping[str, int], device: Device) -> Launch:
        side = Side.of(problem)
        # Sampled tiles hold whole blocks of the mask, those that are cut off too; the rest of a row is one tile.
        columns = round_up(side.columns, side.inner_block) if side.samples else side.columns
        tiles = problem.batch * self._row_tiles(side) * ceil_div(columns, config.tile_n * config.cluster)
        return persistent_launch(max(1, tiles * self._parts(config)), config.cluster, device)

    def beside_another(self, problem: P, config: C, device: Device) -> C | None:
        """The config of the narrowest tiles, as wide as these or wider, whose launch takes at most half of the
        multiprocessors, so that another one like it runs at the same time; None if there is none.
        """
        for tile_n in (tile_n for tile_n in reversed(WIDTHS) if tile_n >= config.tile_n):
            found = replace(config, tile_n=tile_n, cluster=1)
            blocks = self.launch(problem, found, {}, device).grid[0]
            if 2 * blocks <= device.multiprocessors and self.is_valid(problem, found, device):
                return found
        return None

    def heuristic(self, problem: P, features: Features, device: Device) -> C:
        """The tiles that should be fastest, single or in pairs; many are scheduled dynamically, others by position."""
        return self._fastest_width(problem, features, self._starts(problem, device), device)

    def _starts(self, problem: P, device: Device) -> Sequence[C]:
        """Configs that differ from the heuristic one in the width of tiles alone, or do not."""
        start = self.config_type()
        is_many = self._columns(problem, device) * problem.density.share >= 1.5 * WIDEST
        pair = replace(start, order=start.order if is_many else Order.PLACED.value)
        # An H200, 3000 × 2504 × 1720, half live: 35.0 µs, single tiles 41.2; of blocks of 64 rows 49.1 and 59.1. Pairs
        # are 3 % faster where A does not stay in the L2, too.
        is_far = is_many and self._leaves_l2(problem, pair.raster, device)
        is_pair = is_far or self._is_skewed(problem, self.mapped_names[0])
        return (pair,) if is_pair else (replace(pair, cluster=1), pair)

    def alternatives(self, problem: P, features: Features, device: Device) -> tuple[C, ...]:
        """The heuristic config with tiles of other widths, single and in pairs, the fastest first."""
        found = self.heuristic(problem, features, device)
        others = [replace(found, tile_n=tile_n, cluster=cluster) for tile_n in WIDTHS for cluster in (1, 2)]
        valid = (c for c in others if c != found and self.is_valid(problem, c, device))
        worth = [config for config in valid if self.is_worth_trying(problem, config, device)]
        return tuple(self.by_time(problem, features, worth, device)[:MOST_ALTERNATIVES])

    def _fastest_width(
        self,
        problem: P,
        features: Features,
        some: Iterable[C],
        device: Device,
        widths: Iterable[int] = WIDTHS,
    ) -> C:
        """The config with the width of tiles that should be fastest; of equals the first one."""
        each = [replace(config, tile_n=tile_n) for tile_n in widths for config in some]
        valid = [config for config in each if self.is_valid(problem, config, device)]
        worth = [config for config in valid if self.is_worth_trying(problem, config, device)]
        return self.fastest(problem, features, worth or valid, device) if valid else each[0]

    def _columns(self, problem: P, device: Device) -> float:
        """The columns of tiles of rows for each multiprocessor."""
        side = Side.of(problem)
        return problem.batch * self._row_tiles(side) * side.columns / device.multiprocessors

    def analytic_us(self, problem: P, features: Features, config: C, device: Device) -> float:
        side, rates = Side.of(problem), device.expected_rates
        time = self._sampled_us if side.samples else self._walked_us
        busy, moved = time(problem, config, device), problem.cost(0).bytes / rates.copy_bytes_per_us
        begun = START_US + (COUNTED_US if side.samples else 0.0)
        return rates.launch_us + begun + max(moved, busy) + MOVED * min(moved, busy)

    def _union(self, problem: P) -> float:
        """The probability that a block is live in at least one of a tile's rows."""
        share = problem.density.share
        return share if Side.of(problem).row_block % TILE_M == 0 else any_live(share, TILE_M // PIECE)

    def _timed(self, problem: P, config: C, device: Device) -> Tiles:
        a, b = (self._is_skewed(problem, name) for name in self.mapped_names[:2])
        side = Side.of(problem)
        rows = problem.density.share / self._union(problem) if self._skips(problem, config) else 1.0
        return Tiles(device, problem.multiplied, config.cluster, rows, a, b, side.samples, side.inner_block)

    def _is_skewed(self, problem: P, name: str) -> bool:
        """True if rows of an array, which begin where the one before them ends, begin in the middle of lines."""
        return self._array(problem, name).row_bytes % ROW_BYTES != 0

    def _skips(self, problem: P, config: C) -> bool:
        """True if warpgroups multiply what lives in their own rows alone."""
        return not Side.of(problem).samples

    def _halves(self, config: C) -> bool:
        """True if wide tiles of the last, uneven wave are halved."""
        return False

    def _parts(self, config: C) -> int:
        """The clusters that share a tile of a sampled result along the contraction."""
        return 1

    def _steps(self, problem: P) -> int:
        """Steps of the contraction in a tile of a sampled result."""
        return ceil_div(Side.of(problem).inner, self._step(problem))

    def _sampled_us(self, problem: P, config: C, device: Device) -> float:
        side, unit = Side.of(problem), self._unit(Side.of(problem), config)
        narrow = min(config.tile_n, NARROW)
        counts = sampled_counts(
            ceil_div(side.columns, side.inner_block),
            self._union(problem),
            problem.batch * self._row_tiles(side),
            of_block=side.inner_block // unit,
            of_tile=config.tile_n // unit * config.cluster,
            of_narrow=narrow // unit * config.cluster,
        )
        timed, halves, parts = (
            self._timed(problem, config, device),
            self._halves(config),
            self._parts(config),
        )
        counts = Counts(*(parts * count for count in counts))
        steps = ceil_div(self._steps(problem), parts)
        us = sampled_us(timed, steps, config.tile_n, narrow, counts, halves=halves)
        return (
            us
            if parts == 1
            else us + parts_us(device, min(TILE_M, round_up(side.rows, PIECE)) * config.tile_n, parts)
        )

    def _walked_us(self, problem: P, config: C, device: Device) -> float:
        tiles = self._timed(problem, config, device)
        spread = self._spread(problem, config, tiles.clusters)
        return tiles.spread_us(config.tile_n, spread) + TILE_US * spread.tiles

    def _spread(self, problem: P, config: C, clusters: int) -> Spread:
        side, union = Side.of(problem), self._union(problem)
        blocks, rows = ceil_div(side.inner, side.inner_block), problem.batch * self._row_tiles(side)
        columns = ceil_div(side.columns, config.tile_n * config.cluster)
        ranks = max(1, rows) if rows * columns <= FEW * clusters else 1
        of_block = side.inner / max(1, blocks) / self._step(problem)
        steps = [live * of_block for live in ranked_blocks(blocks, union, ranks)]
        return counted_out(steps, columns * (rows // ranks), clusters)

    @staticmethod
    def _step(problem: P) -> int:
        """Elements of the contraction in a step."""
        return ROW_BYTES // problem.factor_types[0].itemsize

    def _leaves_l2(self, problem: P, raster: int, device: Device) -> bool:
        """True if the rows of A for ``raster`` row tiles take too much of the L2 to stay there."""
        side = Side.of(problem)
        return raster * TILE_M * side.inner * problem.factor_types[0].itemsize > KEPT * device.l2_bytes

    def _tiles(self, problem: P, config: C) -> int:
        side = Side.of(problem)
        return problem.batch * self._row_tiles(side) * ceil_div(side.columns, config.tile_n)

    @staticmethod
    def _row_tiles(side: Side) -> int:
        return ceil_div(side.mask_rows * (side.row_block // PIECE), 2)

    @staticmethod
    def _unit(side: Side, config: CopiedTilesConfig) -> int:
        """The columns of a sampled result that are computed or skipped together."""
        return 128 if side.inner_block % 128 == 0 and config.tile_n % 128 == 0 else PIECE


@dataclass(frozen=True)
class SharedTilesConfig(WalkedTilesConfig):
    """Config of the `WalkedTiles` families."""

    tile_n: int = tunable(256, WIDTHS[::-1], "columns of the result per thread block")
    shared: bool = tunable(
        False,
        (False, True),
        "blocks share all tiles evenly along the contraction (stream-K); the last one of a tile adds up the sums",
        packs=True,
    )


W = TypeVar("W", bound=SharedTilesConfig)


class WalkedTiles(CopiedTiles[P, W]):
    """The masked matrix is a factor, so that the time of a tile is proportional to the live blocks of its rows."""

    template = "masked/tma_masked.cu.j2"
    scratch_names = ("counters", "parts")
    few_widths: ClassVar[tuple[int, ...]] = WIDTHS  # of tiles, where few waves make a difference
    source = f"{CopiedTiles.source}; blocks that share tiles along the contraction: Osama et al., Stream-K, PPoPP 2023"

    def constraints(self, problem: P, config: W, device: Device) -> Iterator[Constraint]:
        yield from CopiedTiles.constraints(self, problem, config, device)
        yield walk_constraint(config.raster, config.tail)
        c = config
        yield Constraint(
            not c.shared or c.cluster == 1, "blocks that share tiles share no loads: cluster is 1"
        )
        yield Constraint(
            not c.shared or device.multiprocessors <= MOST_SHARES,
            f"at most {MOST_SHARES} blocks share tiles (multiprocessors: {device.multiprocessors})",
        )

    def is_worth_trying(self, problem: P, config: W, device: Device) -> bool:
        """True as for `CopiedTiles`; of shared tiles for few waves, which their order makes no difference to."""
        c, usual = config, CopiedTiles.is_worth_trying(self, problem, config, device)
        is_few = self._tiles(problem, c) < 4 * device.multiprocessors
        is_first = c.order == Order.PLACED and c.raster == c.tail == 1
        return usual and (not c.shared or (is_few and is_first))

    def pack(self, problem: P, config: W, matrix: CsrMatrix) -> Packed[Array]:
        """No arrays; counters of tiles and of arrivals, and two tiles of sums for each block, of whatever width."""
        found = CopiedTiles.pack(self, problem, config, matrix)
        scratch = {"counters": COUNTER_BYTES, "parts": DType.FLOAT32.itemsize}
        if config.shared:
            tiles = (
                problem.batch * self._row_tiles(Side.of(problem)) * ceil_div(Side.of(problem).columns, PIECE)
            )
            scratch["counters"] += 2 * 4 * tiles
            scratch["parts"] = 2 * MOST_SHARES * TILE_M * WIDEST * DType.FLOAT32.itemsize
        return replace(found, scratch=scratch)

    def launch(self, problem: P, config: W, sizes: Mapping[str, int], device: Device) -> Launch:
        if not config.shared:
            return CopiedTiles.launch(self, problem, config, sizes, device)
        side = Side.of(problem)
        return persistent_launch(
            self._tiles(problem, config) * ceil_div(side.inner, side.inner_block), 1, device
        )

    def heuristic(self, problem: P, features: Features, device: Device) -> W:
        """Few tiles row by row, by position, or blocks share their contraction; of long rows fewer at a time; if nearly
        all blocks are live, rows are equally long, and the last group is processed like the others.
        """
        start = self.config_type()
        if self._columns(problem, device) < 2 * WIDEST:
            # Row by row: who has one of the longest has one of the shortest too.
            few = replace(start, raster=1, tail=1, order=Order.PLACED.value)
            single = replace(few, cluster=1)
            some = (few, single, replace(single, shared=True))
            return self._fastest_width(problem, features, some, device, self.few_widths)
        found = self._fastest_width(problem, features, (start, replace(start, cluster=1)), device)
        if self._leaves_l2(problem, found.raster, device):
            return replace(found, raster=8, tail=4)
        is_even = problem.density.share > EVEN_DENSITY
        return replace(found, tail=found.raster) if is_even and found.raster == MOST_TAIL else found

    def _walked_us(self, problem: P, config: W, device: Device) -> float:
        if not config.shared:
            return CopiedTiles._walked_us(self, problem, config, device)
        tiles, side = self._timed(problem, config, device), Side.of(problem)
        count, total = self._tiles(problem, config), self._spread(problem, config, tiles.clusters).total
        blocks = min(device.multiprocessors, count * ceil_div(side.inner, side.inner_block))
        rounds = count / device.multiprocessors
        us = total / blocks * tiles.step_us(config.tile_n, blocks) / TOGETHER
        return us + TILE_US * max(1.0, rounds) + sums_us(device, config.tile_n, rounds)
