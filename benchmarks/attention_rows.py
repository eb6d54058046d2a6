"""Rows of the study of attention: their sizes, and one row checked and timed beside its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.attention_checks import Attend, attended, largest_errors
from benchmarks.attention_passes import Attended
from benchmarks.study import times_in_turn
from sparsegen import masks
from sparsegen.matrix.csr import CsrMatrix
from sparsegen.matrix.generators import random_blocks, random_uniform
from sparsegen.measure.l2 import L2

TOLERANCE = 4e-3  # of the largest element, in float16
ROUNDS = 7
KINDS = ("independent", "blobs", "largest")


@dataclass(frozen=True)
class Row:
    """Heads of tokens × head_dim, and a mask for each of them.

    Attributes:
        kind: one of `KINDS`, or ``tenth`` or ``one``: a tenth of the rows, or one, see all keys.
    """

    heads: int
    tokens: int
    head_dim: int
    block: int
    share: float
    kind: str = "independent"


@dataclass(frozen=True)
class SpanRow:
    """Heads of tokens × head_dim, where queries see keys by their places alone; no window: all, or all before."""

    heads: int
    tokens: int
    head_dim: int
    causal: bool = False
    window: int = 0
    sinks: int = 0


@dataclass(frozen=True)
class ShareRow:
    """Heads of tokens × head_dim with a mask of blocks for each of them, beside the same where nothing is dead."""

    heads: int
    tokens: int
    head_dim: int
    block_rows: int
    block_columns: int
    share: float

    @property
    def attended(self) -> tuple[Attended, Attended]:
        """Attention with the mask, and where nothing is dead."""
        sizes = self.heads, self.tokens, self.head_dim
        return Attended(*sizes, (self.block_rows, self.block_columns), self.share), Attended(*sizes)


@dataclass(frozen=True)
class ReplayRow:
    """Heads of tokens × head_dim in a CUDA graph, whose mask of blocks is another one at each replay."""

    heads: int
    tokens: int
    head_dim: int
    block: int
    share: float
    replays: int


@dataclass(frozen=True)
class FixedRow:
    """Heads of tokens × head_dim, all with one mask that does not change: blocks, a causal window, or any places."""

    heads: int
    tokens: int
    head_dim: int
    block: int = 0
    share: float = 0.0
    window: int = 0

    def matrix(self, seed: int) -> CsrMatrix:
        """The mask, tokens × tokens."""
        if self.window:
            return masks.sliding_window(self.tokens, self.window)
        if self.block:
            return random_blocks(self.tokens, self.tokens, self.block, self.share, seed)
        return random_uniform(self.tokens, self.tokens, self.share, seed)


@dataclass(frozen=True)
class WarpRow:
    """Heads of tokens × head_dim for kernels of single warps, with a mask of blocks for each head, or with none."""

    heads: int
    tokens: int
    head_dim: int
    block: int = 0
    share: float = 1.0

    @property
    def attended(self) -> Attended:
        """Attention as kernels depend on it."""
        block = (self.block, self.block) if self.block else None
        return Attended(self.heads, self.tokens, self.head_dim, block, self.share)


AnyRow = Row | SpanRow | ShareRow | ReplayRow | FixedRow | WarpRow
ISSUE = (Row(16, 8192, 128, 128, 0.27), Row(8, 16384, 128, 128, 0.11), Row(16, 8192, 64, 64, 0.26))
SHORT = (Row(16, 8192, 128, 128, 0.1), Row(16, 8192, 64, 128, 0.1))
LONG = (Row(8, 32768, 128, 128, 0.25, "largest"), Row(4, 65536, 128, 128, 0.1, "blobs"))
SHARES = tuple(
    ShareRow(16, 8192, head_dim, *block, 0.25)
    for head_dim in (128, 64)
    for block in ((128, 128), (64, 64), (32, 32), (16, 64))
)
REPLAYS = (ReplayRow(8, 1024, 128, 64, 0.3, 1000),)
WHOLE = tuple(
    SpanRow(heads, tokens, head_dim)
    for head_dim in (128, 64)
    for heads, tokens in ((16, 4096), (16, 8192), (8, 16384), (8, 32768))
)
UNEVEN = (
    Row(16, 8192, 128, 128, 0.02, "tenth"),
    Row(8, 32768, 128, 128, 0.02, "tenth"),
    Row(2, 16384, 128, 128, 0.05, "one"),
)
CAUSAL = tuple(SpanRow(8, tokens, head_dim, True) for head_dim in (128, 64) for tokens in (4096, 16384))
WINDOWS = tuple(
    SpanRow(8, tokens, 128, True, window, sinks)
    for window, sinks in ((512, 0), (1024, 64), (1024, 0))
    for tokens in (32768, 12288)
)
FIXED = tuple(
    FixedRow(8, 4096, head_dim, **mask)
    for head_dim in (128, 64)
    for mask in ({"block": 128, "share": 0.27}, {"block": 64, "share": 0.1}, {"window": 512}, {"share": 0.05})
)
WARPS = tuple(WarpRow(16, 8192, head_dim, *mask) for head_dim in (128, 64) for mask in ((), (128, 0.27)))
TINY = (Row(2, 128, 64, 64, 0.5), Row(2, 128, 64, 64, 0.5, "largest"))
TINY_SHARES = (ShareRow(2, 128, 64, 16, 64, 0.5),)
TINY_REPLAYS = (ReplayRow(2, 128, 64, 64, 0.5, 3),)
TINY_UNEVEN = (Row(2, 512, 64, 64, 0.1, "one"),)
TINY_FIXED = (
    FixedRow(2, 256, 64, block=64, share=0.5),
    FixedRow(2, 192, 64, window=50),
    FixedRow(2, 128, 64, share=0.3),
)
TINY_WARPS = (WarpRow(2, 192, 64), WarpRow(2, 256, 64, 64, 0.5))
TINY_SPANS = (SpanRow(2, 128, 64), SpanRow(2, 192, 64, True), SpanRow(2, 192, 64, True, 50, 9))


def drawn_rows(seed: int, count: int) -> list[Row]:
    """Rows as contexts of models have them: no two alike, and others for another seed."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        block, head_dim = int(rng.choice([64, 128, 128])), int(rng.choice([64, 128, 128]))
        tokens = 128 * int(rng.integers(32, 129))
        share = round(float(np.exp(rng.uniform(np.log(0.08), np.log(0.5)))), 3)
        heads = int(rng.choice([4, 8, 12, 16]))
        rows.append(Row(heads, tokens, head_dim, block, share, KINDS[number % len(KINDS)]))
    return rows


@dataclass
class Compared:
    """Implementations of one row's attention, and what is found of them.

    Attributes:
        given: Q, K, V and the gradient by O.
        implementations: by name; those of ``checked`` are held against float32.
        peers: what is timed beside them and computes something else.
        passes: calls of the backward pass alone by its forms, by name.
    """

    given: list[Tensor]
    implementations: dict[str, Attend]
    peers: dict[str, Attend] = field(default_factory=dict)
    passes: dict[str, Callable[[], Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def checked(self, seen_by: Callable[[int], Tensor], heads: Iterable[int]) -> dict[str, float]:
        """Errors of O and the gradients, by name; what FlexAttention's compiler cannot do is left out and told."""
        results = {}
        for name in list(self.implementations):
            try:
                results[name] = attended(self.implementations[name], self.given)
            except Exception as error:  # its compiler fails in many ways: that is what the row says then
                if name != "flex":
                    raise
                self.failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                del self.implementations[name]
        return largest_errors(results, self.given, seen_by, heads, TOLERANCE)

    def timed(self, flop: float) -> dict[str, Any]:
        """Times in µs, forward and backward, all in turn, and what ours reaches in TFLOP/s."""
        everyone = self.implementations | self.peers
        ahead = {name: attend for name, attend in everyone.items() if name != "ours_deterministic"}
        with torch.no_grad():
            calls: Mapping[str, Callable[[], Any]] = {
                name: partial(attend, *self.given[:3]) for name, attend in ahead.items()
            }
            forward = in_turn(calls)
        back = {name: gradients(attend, self.given) for name, attend in everyone.items()}
        backward = in_turn(back | self.passes)
        return {
            "forward_us": forward,
            "backward_us": backward,
            "forward_tflops": round(flop / forward["ours"] / 1e6),
            "backward_tflops": round(2.5 * flop / backward["ours"] / 1e6),
        }


def in_turn(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Times in µs by name, with the L2 overwritten before each call."""
    times = times_in_turn(list(calls.values()), l2=L2.COLD, rounds=ROUNDS)
    return dict(zip(calls, times, strict=True))


def gradients(attend: Attend, given: list[Tensor]) -> Callable[[], Any]:
    """Calls of the backward pass alone, several for one forward pass."""
    torch._functorch.config.donated_buffer = False  # compiled backward passes may run once alone else
    inputs = [tensor.detach().requires_grad_() for tensor in given[:3]]
    out = attend(*inputs)
    return lambda: torch.autograd.grad(out, inputs, given[3], retain_graph=True)
