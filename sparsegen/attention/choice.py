"""Implementations of sparse attention, and the choice: by blocks, three operators in sequence, or one fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sparsegen import api
from sparsegen.attention.block_form import BlockForm, block_forms
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.dense_or_sparse import Source, Time
from sparsegen.dispatch.options import Dense, OnMiss
from sparsegen.errors import NoVariantError
from sparsegen.kernels.attention.fused_attention import FusedAttention, FusedAttentionConfig
from sparsegen.kernels.attention.key_tiles import tile_counts
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.features import Features
from sparsegen.measure.decision import (
    Entrants,
    Implementations,
    decide_between,
    decide_by_lack,
    decide_by_times,
    digest_of,
)
from sparsegen.operators import (
    BlockAttentionBackwardProblem,
    BlockAttentionProblem,
    DType,
    ItemValues,
    SparseAttentionProblem,
)
from sparsegen.settings import Settings
from sparsegen.tuning_db.records import Task, Workload
from sparsegen.tuning_db.shared_layers import described

# Time of a multiprocessor that a partial block of 128 x 128 takes beside a full one, forward and backward (H200).
PARTIAL_US = {BlockAttentionProblem: 0.35, BlockAttentionBackwardProblem: 7.0}
PARTIAL_PLACES = 128 * 128
PASSES = 3.5  # of the steps' forward pass, with its two products, that both passes take, with seven


class AttentionImplementation(StrEnum):
    """Implementations of attention."""

    STEPS = "steps"  # sddmm, sparse_softmax and spmm: any dtype and head_dim, scores in memory
    FUSED = "fused"  # sparse_attention: one launch, nothing in between in memory
    BLOCKS = "blocks"  # block_attention: likewise, over blocks that hold a place and bits of partial ones


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


@dataclass(frozen=True, slots=True)
class Blocks:
    """A mask as attention by blocks takes it, and why that runs."""

    form: BlockForm
    decision: Decision


def decide_blocks(request: Request, *, is_named: bool = False, trains: bool = False) -> Blocks | None:
    """Decides whether attention by blocks runs; None if the other implementations do.

    It runs where it should take less time than the fused kernel and than the steps do, by the times in the database or
    the families' models, and where nothing of theirs is pinned.

    Args:
        is_named: the caller names this implementation.
        trains: count the backward pass too, which the fused kernel has not.

    Raises:
        NoVariantError: it is named, and no kernel takes such masks, elements or head dimensions.
        DatabaseError: see `sparsegen.lookup`; and what `sparsegen.tune` raises if it is called.
    """
    try:
        time, form = _best_form(request, trains)
    except NoVariantError:
        if is_named:
            raise
        return None
    if is_named:
        return Blocks(form, Decision.by_name(ours=True))
    others = _other_times(request, trains)
    if others is None:
        return None
    decision = decide_by_times(AttentionImplementation.BLOCKS, time, others)
    return Blocks(form, decision) if decision.on_device else None


def expected_times(request: Request, *, trains: bool = False) -> dict[AttentionImplementation, Time]:
    """Returns the expected times of the implementations that can run, by which `decide_blocks` decides; of blocks alone
    if a variant of the others is pinned.

    Args:
        trains: of both passes, which the fused kernel has not.

    Raises:
        DatabaseError: see `sparsegen.lookup`.
    """
    try:
        blocks = {AttentionImplementation.BLOCKS: _best_form(request, trains)[0]}
    except NoVariantError:
        blocks = {}
    return blocks | (_other_times(request, trains) or {})


def _best_form(request: Request, trains: bool) -> tuple[Time, BlockForm]:
    """The form of the mask that should take the least time by blocks, and this time; raises NoVariantError."""
    found = list[tuple[Time, BlockForm]]()
    why = NoVariantError("block_attention takes masks with a place that lives")
    for form in block_forms(request.mask) if request.mask.nnz else ():
        try:
            found.append((_blocks_time(request, form, trains), form))
        except NoVariantError as error:
            why = error
    if not found:
        raise why
    time = Time.least(time for time, _ in found)
    return time, next(form for own, form in found if own is time)


def _blocks_time(request: Request, form: BlockForm, trains: bool) -> Time:
    """The expected time of attention by blocks; raises NoVariantError."""
    times, device = [], described(request.device, request.db)
    for kind in tuple(PARTIAL_US) if trains else (BlockAttentionProblem,):
        problem = form.problem(kind, request.heads, request.head_dim, request.dtype)
        choice = api.lookup(problem=problem, **request.look_up)
        if request.on_miss is OnMiss.TUNE and not choice.is_hit:
            api.tune(problem=problem, device=request.device, db=request.db)
            choice = api.lookup(problem=problem, **request.look_up)
        time = choice.sparse
        if time is None:
            features = problem.features(problem.without_pattern)
            time = Time.of_sparse(choice.family.predicted_us(problem, features, device), Source.PREDICTED)
        if not time.is_measured and form.block is not None:  # models know of full blocks alone
            places = request.heads * int(form.partial.sum()) * form.block.rows * form.block.columns
            more = PARTIAL_US[kind] * places / PARTIAL_PLACES / request.device.multiprocessors
            time = time._replace(us=time.us + more)
        times.append(time)
    return Time.of_all(times)


def _other_times(request: Request, trains: bool) -> dict[AttentionImplementation, Time] | None:
    """Expected times of the other implementations that can run; None if a variant of theirs is pinned."""
    found = {
        implementation: _choices(request, implementation)
        for implementation in (AttentionImplementation.FUSED, AttentionImplementation.STEPS)
    }
    able = {name: choices for name, choices in found.items() if not isinstance(choices, NoVariantError)}
    if any(choice.how is How.PINNED for choices in able.values() for choice in choices):
        return None
    if len(able) == len(found):
        fused, steps = able.values()
        times = dict(zip(able, _times(request, fused[0], steps), strict=True))
    else:
        times = {name: _estimate(request, name, choices) for name, choices in able.items()}
    if trains:
        times.pop(AttentionImplementation.FUSED, None)
        times = {name: time._replace(us=PASSES * time.us) for name, time in times.items()}
    return times


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
    return (
        _estimate(request, AttentionImplementation.FUSED, [fused]),
        _estimate(request, AttentionImplementation.STEPS, steps),
    )


def _estimate(request: Request, implementation: AttentionImplementation, choices: list[Choice]) -> Time:
    """The time of an implementation by heuristics."""
    device = described(request.device, request.db)
    if implementation is AttentionImplementation.FUSED:
        us = _fused_estimate(choices[0], request.mask, device)
    else:
        us = request.heads // request.at_once * _steps_estimate(choices, request.mask, device)
    return Time.of_sparse(us, Source.PREDICTED)


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
    """Microseconds that the fused kernel should take, by the mask's own tiles."""
    family, config = choice.family, choice.config
    assert isinstance(family, FusedAttention) and isinstance(config, FusedAttentionConfig), family
    assert isinstance(choice.problem, SparseAttentionProblem), choice.problem
    counts = tile_counts(mask, config.tile_m, config.tile_n)
    return family.counted_us(choice.problem, counts, config, device)
