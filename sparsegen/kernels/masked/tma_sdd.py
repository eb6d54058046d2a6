"""``sdd`` on warpgroups' tensor cores, with tiles loaded by TMA (sm_90a)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sparsegen.kernels.base import Constraint, Device
from sparsegen.kernels.config import tunable
from sparsegen.kernels.layouts.copied_ring import PIECE, TILE_M, CopiedTilesConfig
from sparsegen.kernels.masked.copied_tiles import WIDTHS, CopiedTiles
from sparsegen.matrix.features import Features
from sparsegen.matrix.live_blocks import any_live
from sparsegen.operators import FactorType, SddProblem

# Measured on an H200 at 4096³ with half of the blocks dropped: the least share of a tile's time that columns of their
# own leave, by blocks of a cluster, as a tile's bytes come through L2 all the same; and the density up to which
# heuristics take them.
LEAST_OWN = {1: 0.93, 2: 0.89}
OWN_DENSITY = 0.5


@dataclass(frozen=True)
class TmaSddConfig(CopiedTilesConfig):
    """One point of the tuning space of `tma_sdd`."""

    tile_n: int = tunable(256, WIDTHS[::-1], "columns of the result per thread block")
    own_columns: bool = tunable(
        False, (False, True), "each warpgroup multiplies the live columns of its own 64 rows alone"
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
            not config.own_columns or problem.factor_type is FactorType.SAME,
            "with 8-bit factors all columns of a tile are multiplied",
        )

    def heuristic(self, problem: SddProblem, features: Features, device: Device) -> TmaSddConfig:
        """Returns the config of `CopiedTiles`; for sparse masks in blocks of 64 rows, with own columns."""
        found = CopiedTiles.heuristic(self, problem, features, device)
        own = replace(found, own_columns=True, cluster=1)
        is_sparse = problem.density.share <= OWN_DENSITY
        return own if is_sparse and self.is_valid(problem, own, device) else found

    def analytic_us(
        self, problem: SddProblem, features: Features, config: TmaSddConfig, device: Device
    ) -> float:
        """Estimates as `CopiedTiles` does; with own columns, warpgroups multiply only the live share of a tile's
        columns.
        """
        whole = CopiedTiles.analytic_us(self, problem, features, config, device)
        if not config.own_columns:
            return whole
        share = problem.density.share
        union = any_live(share, TILE_M // PIECE)
        return whole * max(LEAST_OWN[config.cluster], share / union)


FAMILY = TmaSdd()
