"""Shared parts of PyTorch's attentions over block masks: operands as batch × heads × tokens × columns, and masks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._attention import (
    CHECKED_QUERIES,
    TorchAttention,
    attention_implementation,
    over_tolerance,
)
from sparsegen.bench.baselines._torch import TensorResult, import_torch, place, to_tensor
from sparsegen.measure.clock import Call
from sparsegen.operators import Band, BlockAttentionProblem, Problem, TokenOrder


class TorchBlockAttention(TorchAttention):
    """One of PyTorch's attentions, with masks of blocks."""

    operators: tuple[type[Problem], ...] = (BlockAttentionProblem,)


class BlockHeads:
    """A row's Q, K and V on PyTorch's device, each batch × heads × tokens × columns, with what queries see."""

    def __init__(self, bench: Workbench) -> None:
        self._bench, self.problem = bench, bench.problem_as(BlockAttentionProblem)
        p = self.problem
        self.q, self.k, self.v = (
            self._by_heads(to_tensor(bench.operand(name), p.dtype), heads, tokens)
            for name, heads, tokens in (
                ("q", p.heads, p.queries),
                ("k", p.kv_heads, p.keys),
                ("v", p.kv_heads, p.keys),
            )
        )
        self.scale = float(bench.operand("scale")[0])
        self.band = Band(*(int(word) for word in bench.operand("band")))
        self.shares_keys: dict[str, Any] = {"enable_gqa": True} if p.group > 1 else {}

    def _by_heads(self, stored: Any, heads: int, tokens: int) -> Any:
        p = self.problem
        whole = stored.reshape(p.batch, *p.order.shape(heads, tokens, -1))
        return whole if p.order is TokenOrder.HEADS else whole.transpose(1, 2)

    @cached_property
    def live(self) -> Any:
        """bool, batch × heads × rows × columns of blocks, where batch elements or heads that share a mask are 1."""
        torch, p = import_torch(), self.problem
        layout = p.mask_layout
        items = p.batch if p.masks.are_of_items else 1
        heads = p.heads if p.masks.are_of_heads else 1
        if p.has_mask:
            words = self._bench.operand("mask").reshape(-1, layout.words)
            blocks = np.stack([p.mask_of(one).blocks() for one in words])
        else:
            blocks = np.ones((1, layout.rows, layout.columns), np.bool_)
        return torch.from_numpy(blocks.reshape(items, heads, layout.rows, layout.columns)).to(place())

    def implementation(
        self, detail: str, attend: Call, own_error: Callable[[Any], float] | None = None
    ) -> Implementation:
        """See `attention_implementation`; ``attend`` gives batch × heads × queries × columns."""
        p = self.problem

        def ordered() -> Any:
            found = attend()
            found = found if p.order is TokenOrder.HEADS else found.transpose(1, 2)
            return found if p.batch > 1 else found[0]

        return attention_implementation(
            detail, TensorResult(self._bench, p.result(0).shape), ordered, own_error
        )

    def dense_error(self, result: Any, is_causal: bool) -> float:
        """The largest error of dense attention over its tolerance, against float64 on queries of the first head."""
        torch, p = import_torch(), self.problem
        rows = torch.randperm(p.queries, generator=torch.Generator().manual_seed(3))[:CHECKED_QUERIES].to(
            place()
        )
        scores = self.q[0, 0, rows].double() @ self.k[0, 0].double().mT * self.scale
        if is_causal:
            future = torch.arange(p.keys, device=rows.device) > rows[:, None]
            scores = scores.masked_fill(future, -torch.inf)
        exact = torch.softmax(scores, dim=1) @ self.v[0, 0].double()
        found = result if p.batch == 1 else result[0]
        first = found[0] if p.order is TokenOrder.HEADS else found[:, 0]
        return over_tolerance(first[rows].double(), exact, p.dtype)
