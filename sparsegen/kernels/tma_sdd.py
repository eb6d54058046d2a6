"""``sdd`` on warpgroups' tensor cores, with tiles by the copy engine (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass

from sparsegen.kernels.layouts.copied_tiles import CopiedTiles, CopiedTilesConfig
from sparsegen.operators import SddProblem


@dataclass(frozen=True)
class TmaSddConfig(CopiedTilesConfig):
    """One point of the tuning space of `tma_sdd`."""


class TmaSdd(CopiedTiles[SddProblem, TmaSddConfig]):
    """See `CopiedTiles`."""

    name = "tma_sdd"
    summary = "the live blocks of a product of dense matrices, on warpgroups' tensor cores"
    template = "masked/tma_sampled.cu.j2"
    entry = "tma_sdd"
    mapped_names = ("d", "w", "y")
    problem_type = SddProblem
    config_type = TmaSddConfig


FAMILY = TmaSdd()
