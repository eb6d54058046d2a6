"""``sdd`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import tunable
from sparsegen.kernels.layouts.copied_ring import COUNTER_BYTES, PIECE, TILE_M, CopiedTilesConfig
from sparsegen.kernels.masked.copied_tiles import NARROW, WIDEST, WIDTHS, CopiedTiles
from sparsegen.kernels.masked.side import Side
from sparsegen.kernels.packed import Packed
from sparsegen.matrix.features import Features
from sparsegen.matrix.formats import Array, CsrMatrix
from sparsegen.operators import DType, FactorType, SddProblem
from sparsegen.system.integers import ceil_div, round_up

# Density up to which heuristics take columns of their own: 7 % less time on an H200 at 4096³, half of the blocks live.
OWN_DENSITY = 0.5
PARTS = (1, 2, 4, 8, 16)  # of a tile
MOST_PLACES = 1024  # for sums of parts: 64 MB of scratch memory


@dataclass(frozen=True)
class TmaSddConfig(CopiedTilesConfig):
    """One point of the tuning space of `tma_sdd`."""

    tile_n: int = tunable(256, WIDTHS[::-1], "columns of the result per thread block")
    own_columns: bool = tunable(
        False, (False, True), "each warpgroup multiplies the live columns of its own 64 rows alone"
    )
    halves: bool = tunable(
        False, (False, True), "wide tiles of the last, uneven wave are halved if they are one wave then"
    )
    parts: int = tunable(
        1,
        PARTS,
        "clusters that share a tile along the contraction; the last one adds up the sums",
        packs=True,
    )


class TmaSdd(CopiedTiles[SddProblem, TmaSddConfig]):
    """See `CopiedTiles`. In blocks of 64 rows, a tile has the columns that live in any of its two rows of blocks."""

    name = "tma_sdd"
    summary = "the live blocks of a product of dense matrices, on warpgroups' tensor cores"
    template = "masked/tma_sampled.cu.j2"
    mapped_names = ("d", "w", "y")
    scratch_names = ("counters", "parts")

    def constraints(self, problem: SddProblem, config: TmaSddConfig, device: Device) -> Iterator[Constraint]:
        yield from CopiedTiles.constraints(self, problem, config, device)
        yield Constraint(
            not config.own_columns or problem.block.rows == PIECE,
            f"warpgroups have live columns of their own if blocks ({problem.block}) have {PIECE} rows",
        )
        yield Constraint(
            not config.halves or (config.tile_n == WIDEST and problem.batch == 1 and not config.own_columns),
            f"tiles of {WIDEST} columns can be halved, of one batch element and without own_columns",
        )
        yield Constraint(
            not config.own_columns or problem.factor_type is FactorType.SAME,
            "with 8-bit factors all columns of a tile are multiplied",
        )
        c = config
        is_narrow = c.tile_n <= NARROW and not c.own_columns
        yield Constraint(
            c.parts == 1 or is_narrow, f"tiles of at most {NARROW} columns have parts, without own_columns"
        )
        places = self._places(problem, c)
        yield Constraint(
            c.parts == 1 or places <= MOST_PLACES,
            f"places of sums ({places}), for parts of all tiles, are at most {MOST_PLACES}",
        )

    def is_worth_trying(self, problem: SddProblem, config: TmaSddConfig, device: Device) -> bool:
        """True as for `CopiedTiles`; of parts where live tiles leave multiprocessors idle."""
        usual = CopiedTiles.is_worth_trying(self, problem, config, device)
        return usual and (config.parts == 1 or self._is_idle(problem, config, device))

    def pack(self, problem: SddProblem, config: TmaSddConfig, matrix: CsrMatrix) -> Packed[Array]:
        """No arrays; counters of tiles, of arrivals, and a place for each part of a tile that may be live."""
        found, scratch = CopiedTiles.pack(self, problem, config, matrix), {"parts": DType.FLOAT32.itemsize}
        scratch["counters"] = COUNTER_BYTES
        if config.parts > 1:
            places = self._places(problem, config)
            scratch["counters"] += 2 * 4 * (places // config.parts)
            scratch["parts"] *= places * TILE_M * config.tile_n
        return replace(found, scratch=scratch)

    def alternatives(
        self, problem: SddProblem, features: Features, device: Device
    ) -> tuple[TmaSddConfig, ...]:
        """See `CopiedTiles`; and tiles of other numbers of parts, where there are few."""
        found = self.heuristic(problem, features, device)
        others = [replace(found, parts=parts) for parts in PARTS if parts != found.parts]
        usual = CopiedTiles.alternatives(self, problem, features, device)
        some = [c for c in others if self.is_valid(problem, c, device)]
        return (*usual, *(c for c in some if self.is_worth_trying(problem, c, device)))

    def _starts(self, problem: SddProblem, device: Device) -> Sequence[TmaSddConfig]:
        """Returns those of `CopiedTiles`, and with halves; for sparse masks in blocks of 64 rows, with own columns."""
        found = CopiedTiles._starts(self, problem, device)
        own = [replace(config, own_columns=True) for config in found]
        is_sparse = problem.density.share <= OWN_DENSITY
        if is_sparse and self.is_valid(problem, own[0], device):
            return own
        divided = (replace(config, parts=parts) for parts in PARTS[1:] for config in found)
        return [
            *found,
            *(replace(config, halves=True) for config in found),
            *(c for c in divided if self._is_idle(problem, c, device)),
        ]

    def _skips(self, problem: SddProblem, config: TmaSddConfig) -> bool:
        return config.own_columns

    def _parts(self, config: TmaSddConfig) -> int:
        return config.parts

    def _is_idle(self, problem: SddProblem, config: TmaSddConfig, device: Device) -> bool:
        """True if the parts of the tiles that are expected to be live are one wave."""
        return self._places(problem, config) * problem.density.share <= device.multiprocessors

    def _places(self, problem: SddProblem, config: TmaSddConfig) -> int:
        """Parts of tiles if all blocks of the mask are live."""
        c, side = config, Side.of(problem)
        columns = ceil_div(round_up(side.columns, side.inner_block), c.tile_n * c.cluster)
        return problem.batch * self._row_tiles(side) * columns * c.cluster * c.parts

    def _halves(self, config: TmaSddConfig) -> bool:
        return config.halves


FAMILY = TmaSdd()
