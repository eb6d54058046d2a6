"""``sdd`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import tunable
from sparsegen.kernels.layouts.copied_ring import PIECE, CopiedTilesConfig
from sparsegen.kernels.masked.copied_tiles import WIDEST, WIDTHS, CopiedTiles
from sparsegen.operators import FactorType, SddProblem

# Density up to which heuristics take columns of their own: 7 % less time on an H200 at 4096³, half of the blocks live.
OWN_DENSITY = 0.5


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


class TmaSdd(CopiedTiles[SddProblem, TmaSddConfig]):
    """See `CopiedTiles`. In blocks of 64 rows, a tile has the columns that live in any of its two rows of blocks."""

    name = "tma_sdd"
    summary = "the live blocks of a product of dense matrices, on warpgroups' tensor cores"
    template = "masked/tma_sampled.cu.j2"
    mapped_names = ("d", "w", "y")

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

    def _starts(self, problem: SddProblem, device: Device) -> Sequence[TmaSddConfig]:
        """Returns those of `CopiedTiles`, and with halves; for sparse masks in blocks of 64 rows, with own columns."""
        found = CopiedTiles._starts(self, problem, device)
        own = [replace(config, own_columns=True) for config in found]
        is_sparse = problem.density.share <= OWN_DENSITY
        if is_sparse and self.is_valid(problem, own[0], device):
            return own
        return [*found, *(replace(config, halves=True) for config in found)]

    def _skips(self, problem: SddProblem, config: TmaSddConfig) -> bool:
        return config.own_columns

    def _halves(self, config: TmaSddConfig) -> bool:
        return config.halves


FAMILY = TmaSdd()
