"""Sparse attention for inference: three prepared operators on one mask, started one after the other for many heads."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from sparsegen import api, arguments, backends
from sparsegen.attention.block_form import BlockForm
from sparsegen.attention.choice import (
    AttentionImplementation,
    Request,
    decide_blocks,
    decide_implementation,
)
from sparsegen.attention.fused import FusedAttentionOperator
from sparsegen.backends.executor import Buffer
from sparsegen.dispatch.chosen import Choice
from sparsegen.dispatch.decision import Decision
from sparsegen.dispatch.options import OnMiss
from sparsegen.errors import ConfigError, OperandError
from sparsegen.kernels.base import Device
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.formats import as_mask
from sparsegen.measure.decision import Entrants
from sparsegen.measure.race import call_on_addresses
from sparsegen.operators import BlockAttentionProblem, DType, Operator, TensorSpec, member
from sparsegen.plan.arrays import Call, Target, caller
from sparsegen.plan.binding import BoundVariant, bind_variant
from sparsegen.plan.own_launch import Bound, OwnLaunch
from sparsegen.plan.packing import Gather
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.system.device_bound import DeviceBound

# Limit for the scores of heads that run at once: 8 heads of 12288 tokens that see 5 % of the keys fit in float32.
MOST_SCORES_BYTES = 256 << 20
MOST_AT_ONCE = 65535  # elements of a batch
CALLS = 4  # behind each other in a race, as of a network's layers


def prepare_attention(
    mask: object,
    *,
    heads: int | None = None,
    head_dim: int,
    dtype: DType | str = DType.FLOAT32,
    scale: float | None = None,
    heads_at_once: int | None = None,
    implementation: AttentionImplementation | str | None = None,
    on_miss: OnMiss | str = OnMiss.NEAREST,
    device: Device | str | None = None,
    db: str | Path | None = None,
) -> AttentionOperator | FusedAttentionOperator:
    """Prepare softmax(scale · Q · Kᵀ at the mask) · V; do it once for a mask.

    There are three implementations. In steps, it runs the operators ``sddmm`` (k = head_dim), ``sparse_softmax`` and
    ``spmm`` (n = head_dim). Each of them is looked up in the tuning database on its own, with a batch of
    ``heads_at_once``. Fused, it runs the operator ``sparse_attention`` (k = head_dim) with a batch of all heads; this
    supports 16-bit elements and head dimensions that are multiples of 8. By blocks, it runs ``block_attention``, with a
    causal window and sinks if that is all that the mask says, else over the blocks of 128 × 128 or 64 × 64 that hold a
    nonzero, with bits of partial ones.

    Blocks run where they should take less time than both others, by the database or the families' models. Of the
    others the implementation with the shorter time in the database runs. Where the database does not know both times, a
    heuristic prefers the fused kernel, unless nearly all elements of the 64 × 64 tiles that hold a nonzero are zeros.
    On a GPU, where these times do not tell that the fused kernel is faster, both are timed on the spot, once, and the
    database keeps the answer; what counts is the device's time.

    Args:
        mask: anything that `sparsegen.as_csr` takes, queries × keys: query i sees the keys at the nonzeros of row i;
            the values play no part. All heads share it. `sparsegen.masks` makes some.
        heads: their number; None for one, whose arrays have no dimension for heads.
        head_dim: the columns of Q, K and V.
        dtype: type of Q, K, V, the result, and the scores in between; sums are float32.
        scale: default 1 / √head_dim.
        heads_at_once: a divisor of heads; fewer need less memory for scores, and more launches. Default `at_once`.
        implementation: ``"steps"``, ``"fused"`` or ``"blocks"``; default the one that should be faster.
        on_miss, device, db: see `sparsegen.prepare`; nothing dense runs instead.

    Returns:
        An `AttentionOperator` (steps) or a `FusedAttentionOperator` (one launch), which are called alike.

    Raises:
        MatrixError: the mask is malformed.
        ConfigError: heads or head_dim is below 1, the scale is not finite, heads_at_once does not divide heads, or a
            word is unknown.
        DeviceUnavailableError, NoVariantError, DatabaseError, CompileError, LaunchError: see `sparsegen.prepare`.
    """
    heads = None if heads is None else arguments.whole(heads, "heads", least=1)
    head_dim = arguments.whole(head_dim, "head_dim", least=1)
    factor = head_dim**-0.5 if scale is None else arguments.factor(scale, "scale")
    kind = member(DType, dtype, "dtype")
    csr = as_mask(mask)
    pattern = csr.with_values(np.ones(csr.nnz, dtype=np.float32))
    where = device if isinstance(device, Device) else backends.find_device(device)
    many = heads or 1
    if heads_at_once is None:
        batch = at_once(many, csr.nnz * kind.itemsize)
    else:
        batch = arguments.whole(heads_at_once, "heads_at_once")
    if not 1 <= batch <= MOST_AT_ONCE or many % batch:
        raise ConfigError(f"heads_at_once = {batch} is no divisor of {many} heads up to {MOST_AT_ONCE}")
    wanted = Request(pattern, many, batch, head_dim, kind, OnMiss.parse(on_miss), where, db)
    named = (
        None if implementation is None else member(AttentionImplementation, implementation, "implementation")
    )
    if named in (None, AttentionImplementation.BLOCKS):
        blocks = decide_blocks(wanted, is_named=named is not None)
        if blocks is not None:
            operator = _by_blocks(wanted, heads, factor, blocks.form)
            operator.decision = blocks.decision
            return operator
    made = cache(partial(_prepared, wanted, heads, factor))

    def enter() -> Entrants:
        fused, steps = made(AttentionImplementation.FUSED), made(AttentionImplementation.STEPS)
        assert isinstance(fused, FusedAttentionOperator)
        calls = call_on_addresses(fused), call_on_addresses(steps)
        return Entrants(fused.variant, lambda _: calls, CALLS)

    decision = decide_implementation(wanted, named, enter)
    chosen = made(AttentionImplementation.FUSED if decision.on_device else AttentionImplementation.STEPS)
    chosen.decision = decision
    return chosen


def _by_blocks(wanted: Request, heads: int | None, scale: float, form: BlockForm) -> FusedAttentionOperator:
    """The operator of ``block_attention``; whoever prepares it says why."""
    problem = form.problem(BlockAttentionProblem, wanted.heads, wanted.head_dim, wanted.dtype)
    operator = api.prepare(problem=problem, scale=scale, **wanted.look_up)
    return FusedAttentionOperator(
        operator,
        problem.kept({"scale": scale}) | form.operands(),
        implementation=AttentionImplementation.BLOCKS,
        heads=heads,
        head_dim=wanted.head_dim,
        scale=scale,
    )


def _prepared(
    wanted: Request, heads: int | None, scale: float, implementation: AttentionImplementation
) -> AttentionOperator | FusedAttentionOperator:
    """The operator of one implementation; whoever prepares it says why."""
    mask, head_dim = wanted.mask, wanted.head_dim
    parts = [{**options, **wanted.look_up} for options in wanted.options(implementation)]
    if implementation is AttentionImplementation.FUSED:
        fused = api.prepare(mask, **parts[0], scale=scale)
        kept = {"scale": np.array([scale], np.float32)}
        return FusedAttentionOperator(
            fused, kept, implementation=implementation, heads=heads, head_dim=head_dim, scale=scale
        )
    scores, softmax, product = (api.prepare(mask, **part) for part in parts)
    return AttentionOperator(scores, softmax, product, mask, heads=heads, head_dim=head_dim, scale=scale)


def at_once(heads: int, scores_bytes: int) -> int:
    """Number of heads that run at once: the most that divide them and have scores of `MOST_SCORES_BYTES` in all; at
    least 1.

    Args:
        scores_bytes: bytes of one head's scores, one for each nonzero of the mask.
    """
    fit = min(heads, MOST_AT_ONCE, MOST_SCORES_BYTES // max(1, scores_bytes))
    return next((batch for batch in range(fit, 1, -1) if heads % batch == 0), 1)


class AttentionOperator(DeviceBound, OwnLaunch):
    """softmax(scale · Q · Kᵀ at a mask) · V; make one with `prepare_attention`.

    A query whose row of the mask has no nonzero gets zeros. A call takes four launches for the heads that run at once:
    the scores at the mask, their softmax in place, its gathering into the packed mask, and the product.

    Calls are thread-safe, never tune, compile or wait, and allocate nothing but ``out`` after a thread's first: a CUDA
    graph captures them (capture after one call in the same thread). Each thread has its own scores and packed weights,
    `work_bytes` of them, kept as long as the operator. Launches of one thread therefore must not overlap: a stream each
    for several calls needs an event between them, or an operator each. Gradients are not recorded;
    `sparsegen.integrations.torch.SparseAttention` records them.

    Attributes:
        heads, heads_at_once, head_dim, scale: the values that it was prepared with.
        dtype, device: type of the arrays, and the device that it runs on.
        operands, result: shapes and dtypes of Q, K, V and of the result.
        work_bytes: device memory for each thread that calls it.
        decision: decision of `prepare_attention` between it and the fused kernel.
    """

    decision: Decision

    def __init__(
        self,
        scores: Operator,
        softmax: Operator,
        product: Operator,
        mask: CsrMatrix,
        *,
        heads: int | None,
        head_dim: int,
        scale: float,
    ) -> None:
        """Join operators that were prepared for the same mask, dtype, device and batch, which divides the heads."""
        self.heads, self.head_dim, self.scale = heads, head_dim, scale
        self.heads_at_once = scores.problem.batch
        operators = {"scores": scores, "softmax": softmax, "product": product}
        self._parts = {name: variant_launcher(operator) for name, operator in operators.items()}
        self.device: Device = self._parts["scores"].device
        self.dtype: DType = scores.problem.dtype
        super().__init__(self._parts["scores"].prepared.executor)
        self._nnz = mask.nnz
        queries, keys = mask.shape
        self._rows = {"q": queries, "k": keys, "v": keys, "out": queries}
        specs = {
            name: TensorSpec(name, (rows, head_dim) if heads is None else (heads, rows, head_dim), self.dtype)
            for name, rows in self._rows.items()
        }
        self.result = specs.pop("out")
        self.operands = tuple(specs.values())
        packed = self._parts["product"].prepared.packed
        assert packed.values is not None
        with self.executor.entered():
            self._scale = self.executor.upload(np.array([scale], dtype=np.float32))
            self._gather = Gather(packed, product.problem, self.executor)
            self.executor.synchronize()  # calls may come on other streams than the upload
        self._scores_bytes = max(1, self.heads_at_once * self._nnz) * self.dtype.itemsize
        self.work_bytes = self._scores_bytes + packed.arrays[packed.values].nbytes
        self.launching = nullcontext()  # each thread has scores of its own
        self._kept: list[Any] = []  # scores of all threads: a graph may outlive the thread that captured it
        self._growing = threading.Lock()
        self._callers: dict[type, Call] = {}

    def __repr__(self) -> str:
        heads = "one head" if self.heads is None else f"{self.heads} heads"
        return f"<AttentionOperator: {heads}, head_dim {self.head_dim}, {self.dtype}, on {self.device.name}>"

    def __call__(self, q: object, k: object, v: object, out: object = None, stream: object = None) -> Any:
        """Compute attention at the mask.

        Args:
            q: heads × queries × head_dim (without heads, if none were prepared).
            k, v: heads × keys × head_dim. All are contiguous and of the operator's dtype:
                NumPy, PyTorch or CuPy arrays, as `Operator` takes them.
            out: an array of q's shape and kind; by default a new one. It may be q, for a head's queries are read before
                its result is written, but it must not share memory with v.
            stream: see `Operator`.

        Raises:
            OperandError: an argument is not as it must be; the message says what was expected.
            LaunchError: the driver refused a launch.
        """
        if out is not None and out is v:
            raise OperandError("out: expected another array than v, which is read while out is written")
        kind = type(q)
        call = self._callers.get(kind)
        if call is None:
            call = self._callers[kind] = caller(kind, Target(self, self.device, {}))
        return call((q, k, v), out, stream)

    @property
    def choices(self) -> dict[str, Choice]:
        """The variants of ``scores``, ``softmax`` and ``product``, and why they were chosen."""
        return {name: part.choice for name, part in self._parts.items()}

    def explain(self) -> str:
        """Describes what runs, and why."""
        queries, keys, heads = self._rows["q"], self._rows["k"], self.heads or 1
        turns = heads // self.heads_at_once
        at_a_time = f" for {self.heads_at_once} heads at a time" if turns > 1 else ""
        lines = [
            f"attention of {heads} head{'s' if heads > 1 else ''}, {queries} queries × {keys} keys, head_dim "
            f"{self.head_dim}, {self.dtype}: {4 * turns} launches{at_a_time}, "
            f"{self.work_bytes} bytes of work memory a thread",
            f"{AttentionImplementation.STEPS}: {self.decision.why}",
        ]
        for name, part in self._parts.items():
            lines += [f"{name}:", *(f"  {line}" for line in part.explain().splitlines())]
        return "\n".join(lines)

    def _bind(self) -> Bound:
        """Launches of one thread: ``bound(stream, q, k, v, out)``."""
        scores, softmax = self._parts["scores"].prepared.bound(), self._parts["softmax"].prepared.bound()
        with self.executor.entered():
            variant, gather = self._own_product()
            buffer: Buffer = self.executor.allocate(self._scores_bytes)
        gathered, product = gather.bound(), variant.bound()
        with self._growing:
            self._kept += (variant, gather, buffer)
        line = self.heads_at_once * self.head_dim * self.dtype.itemsize
        of_queries, of_keys = self._rows["q"] * line, self._rows["k"] * line
        turns = range((self.heads or 1) // self.heads_at_once)
        scale, weights = self._scale.address, buffer.address

        def run(stream: int, q: int, k: int, v: int, out: int) -> None:
            for turn in turns:
                own_queries, own_keys = turn * of_queries, turn * of_keys
                scores(stream, q + own_queries, k + own_keys, weights)
                softmax(stream, weights, scale, weights)
                gathered(stream, weights)
                product(stream, v + own_keys, out + own_queries)

        return run

    def _own_product(self) -> tuple[BoundVariant, Gather]:
        """The product with packed values of the calling thread's own; all else is shared."""
        part = self._parts["product"]
        packed, choice = part.prepared.packed, part.choice
        with self._growing:
            if not self._kept:  # the first thread takes what was packed
                self._kept.append(part)
                return part.prepared, self._gather
        assert packed.values is not None
        values = self.executor.allocate(packed.arrays[packed.values].nbytes)
        own = replace(
            packed,
            arrays={**packed.arrays, packed.values: values},
            value_source=lambda: self._gather.source,
        )
        variant = bind_variant(
            choice.config, choice.problem, own, self.executor, backends.toolchain(self.device)
        )
        return variant, Gather(own, choice.problem, self.executor)
