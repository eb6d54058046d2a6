"""Implementations of sparse attention, and the choice: three operators in sequence, or one fused kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparsegen import api
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.options import Dense, OnMiss
from sparsegen.errors import NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features, occupied_blocks
from sparsegen.operators import DType, ItemValues, SparseAttentionProblem
from sparsegen.tuning_db.shared_layers import described

TILE = 64  # queries and keys of the tiles by which holes in a mask are judged


class AttentionImplementation(StrEnum):
    """Implementations of attention."""

    STEPS = "steps"  # sddmm, sparse_softmax and spmm: any dtype and head_dim, scores in memory
    FUSED = "fused"  # sparse_attention: one launch, nothing in between in memory


@dataclass(frozen=True, slots=True)
class ChosenImplementation:
    """The implementation that runs, and why, in a sentence."""

    implementation: AttentionImplementation
    why: str


@dataclass(frozen=True, slots=True)
class Request:
    """Attention as `prepare_attention` was asked for it.

    Attributes:
        at_once: heads that the three steps run together; divides heads.
        on_miss, device, db: see `sparsegen.lookup`.
    """

    mask: CsrMatrix
    heads: int
    at_once: int
    head_dim: int
    dtype: DType
    on_miss: OnMiss
    device: Device
    db: str | Path | None

    @property
    def look_up(self) -> dict[str, Any]:
        """Arguments of `sparsegen.lookup` that all operators share."""
        return {"on_miss": self.on_miss, "device": self.device, "db": self.db, "dense": Dense.NEVER}

    def options(self, implementation: AttentionImplementation) -> list[dict[str, Any]]:
        """Returns the arguments of `sparsegen.lookup` and `sparsegen.tune` for each operator, in the order of their
        calls.
        """
        if implementation is AttentionImplementation.FUSED:
            fused = {"operator": SparseAttentionProblem.operator, "k": self.head_dim}
            return [{**fused, "dtype": self.dtype, "batch": self.heads}]
        values = ItemValues.OWN if self.at_once > 1 else ItemValues.SHARED
        steps: list[dict[str, Any]] = [
            {"operator": "sddmm", "k": self.head_dim},
            {"operator": "sparse_softmax"},
            {"operator": "spmm", "n": self.head_dim, "item_values": values},
        ]
        return [{**step, "dtype": self.dtype, "batch": self.at_once} for step in steps]


def choose_implementation(
    request: Request, implementation: AttentionImplementation | None
) -> ChosenImplementation:
    """Decides by the sum of the times in the database; if it does not know them all, by a heuristic.

    With ``on_miss="tune"`` both implementations are tuned first, as far as they were not.

    Args:
        implementation: the implementation that the caller names; None to decide.

    Raises:
        NoVariantError: neither implementation has a variant for every operator.
        DatabaseError: see `sparsegen.lookup`; and what `sparsegen.tune` raises if it is called.
    """
    if implementation is not None:
        return ChosenImplementation(implementation, "named by the caller")
    steps, fused = (_choices(request, candidate) for candidate in AttentionImplementation)
    if isinstance(fused, NoVariantError):
        if isinstance(steps, NoVariantError):
            raise steps
        return ChosenImplementation(AttentionImplementation.STEPS, f"the fused kernel cannot run: {fused}")
    if isinstance(steps, NoVariantError):
        return ChosenImplementation(AttentionImplementation.FUSED, f"the three steps cannot run: {steps}")
    turns = request.heads // request.at_once
    times = [_known(steps, turns), _known(fused, 1)]
    source = "measured or estimated from what was"
    if None in times:
        device = described(request.device, request.db)
        times = [
            turns * _steps_estimate(steps, request.mask, device),
            _fused_estimate(fused[0], request.mask, device),
        ]
        source = "a heuristic, for not all of it was measured near by"
    by_steps, by_fused = (float(time or 0.0) for time in times)
    implementation = AttentionImplementation.FUSED if by_fused <= by_steps else AttentionImplementation.STEPS
    return ChosenImplementation(
        implementation,
        f"{by_fused:.1f} µs for the fused kernel against {by_steps:.1f} µs for the three steps ({source})",
    )


def _choices(request: Request, implementation: AttentionImplementation) -> list[Choice] | NoVariantError:
    """The choice for each operator of an implementation, or why there is none."""
    try:
        return [_look_up(request, options) for options in request.options(implementation)]
    except NoVariantError as error:
        return error


def _look_up(request: Request, options: dict[str, Any]) -> Choice:
    choice = api.lookup(request.mask, **options, **request.look_up)
    if request.on_miss is not OnMiss.TUNE or choice.is_hit:
        return choice
    api.tune(request.mask, **options, device=request.device, db=request.db)
    return api.lookup(request.mask, **options, **request.look_up)


def _known(choices: list[Choice], turns: int) -> float | None:
    """The sum of the times, in microseconds, if all are known."""
    times = [choice.expected_us for choice in choices]
    return None if None in times else turns * sum(time or 0.0 for time in times)


def _steps_estimate(choices: list[Choice], mask: CsrMatrix, device: Device) -> float:
    """Microseconds that a turn should take: of the steps, and to gather the weights into the packed mask."""
    features, rates = Features.of(mask), device.expected_rates
    steps = sum(choice.family.predicted_us(choice.problem, features, device) for choice in choices)
    softmax = choices[1].problem.cost(mask.nnz)  # reads and writes as many bytes as the gathering does
    return steps + rates.launch_us + softmax.bytes / rates.copy_bytes_per_us


def _fused_estimate(choice: Choice, mask: CsrMatrix, device: Device) -> float:
    """Microseconds that the fused kernel should take: as for a mask without holes, of the tiles that hold a nonzero."""
    m, n = mask.shape
    places = min(occupied_blocks(mask, TILE) * TILE * TILE, m * n)
    whole = Features(m, n, m * n, float(n), 0.0, n, 1.0)
    launch_us = device.expected_rates.launch_us
    of_whole = choice.family.predicted_us(choice.problem, whole, device) - launch_us
    return launch_us + of_whole * places / max(1, m * n)
