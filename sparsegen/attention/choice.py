"""Implementations of sparse attention, and the choice: three operators in sequence, or one fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparsegen import api
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.dense_or_sparse import Source, Time
from sparsegen.dispatch.options import Dense, OnMiss
from sparsegen.errors import NoVariantError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features, occupied_blocks
from sparsegen.measure.decision import Entrants, Implementations, decide_between, decide_by_lack, digest_of
from sparsegen.operators import DType, ItemValues, SparseAttentionProblem
from sparsegen.settings import Settings
from sparsegen.tuning_db.records import Task, Workload
from sparsegen.tuning_db.shared_layers import described

TILE = 64  # queries and keys of the tiles by which holes in a mask are judged


class AttentionImplementation(StrEnum):
    """Implementations of attention."""

    STEPS = "steps"  # sddmm, sparse_softmax and spmm: any dtype and head_dim, scores in memory
    FUSED = "fused"  # sparse_attention: one launch, nothing in between in memory


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


def decide_implementation(
    request: Request, implementation: AttentionImplementation | None, enter: Callable[[], Entrants]
) -> Decision:
    """Decides whether the fused kernel runs, or the three steps.

    The caller's word, what can run at all, pins and earlier races come first; then the sum of the times in the
    database, or if it does not know them all, a heuristic; where these do not tell, both are raced
    (`sparsegen.measure.decision.decide_between`). With ``on_miss="tune"`` both implementations are tuned first, as far
    as they were not.

    Args:
        implementation: the implementation that the caller names; None to decide.
        enter: prepares both for a race, the fused kernel first.

    Raises:
        NoVariantError: neither implementation has a variant for every operator.
        DatabaseError: see `sparsegen.lookup`; and what `sparsegen.tune` raises if it is called.
    """
    if implementation is not None:
        return Decision.by_name(implementation is AttentionImplementation.FUSED)
    steps, fused = (
        _choices(request, candidate)
        for candidate in (AttentionImplementation.STEPS, AttentionImplementation.FUSED)
    )
    if isinstance(fused, NoVariantError) or isinstance(steps, NoVariantError):
        return decide_by_lack(Task.ATTENTION, fused, steps)
    ways = Implementations(
        Workload.of(fused[0].problem, request.mask),
        request.device,
        kernel=fused[0],
        others=steps,
        times=_times(request, fused[0], steps),
        location=str(request.db or Settings.from_environment().db),
        context=digest_of(request.at_once, *(choice.config for choice in steps)),
    )
    return decide_between(Task.ATTENTION, ways, enter)


def _times(request: Request, fused: Choice, steps: list[Choice]) -> tuple[Time, Time]:
    """Expected times of both: by measurements, or those near by; else by heuristics for both."""
    turns = request.heads // request.at_once
    known = [choice.sparse for choice in (fused, *steps) if choice.expected_us is not None]
    times = [time for time in known if time is not None]
    if len(times) == 1 + len(steps):
        return times[0], Time.of_all(times[1:], turns)
    device = described(request.device, request.db)
    by_fused = _fused_estimate(fused, request.mask, device)
    by_steps = turns * _steps_estimate(steps, request.mask, device)
    return Time.of_sparse(by_fused, Source.PREDICTED), Time.of_sparse(by_steps, Source.PREDICTED)


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
