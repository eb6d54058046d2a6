"""PyTorch's attention on the keys of chosen pages, which the call gathers, or which were gathered before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sparsegen.bench.baseline.baseline import Implementation
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._attention import TorchAttention, attention_implementation
from sparsegen.bench.baselines._torch import TensorResult, import_torch, place, to_tensor
from sparsegen.bench.results.results import Kind
from sparsegen.operators import Chosen, PagedAttentionProblem, Problem, TokenOrder
from sparsegen.system.numpy_types import Array


class TorchSdpaPages(TorchAttention):
    name, kind = "torch-sdpa-pages", Kind.SPARSE
    operators: tuple[type[Problem], ...] = (PagedAttentionProblem,)

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        import_torch()
        from torch.nn.functional import scaled_dot_product_attention

        pages = _Pages(bench)
        gathered = pages.gathered()

        def attend(k: Any, v: Any) -> Any:
            found = scaled_dot_product_attention(pages.q, k, v, pages.mask, scale=pages.scale)
            return pages.stored(found)

        result = bench.problem.result(0).shape
        for detail, run in (
            ("gathers pages", lambda: attend(*pages.gathered())),
            ("pages gathered before", lambda: attend(*gathered)),
        ):
            yield attention_implementation(detail, TensorResult(bench, result), run, None)


class _Pages:
    """A row on PyTorch's device; queries of a key head are rows of it, and lists have one length for all.

    Attributes:
        q: batch × key heads × (group · queries) × head_dim.
        mask: bool, batch × key heads × (group · queries) × gathered tokens.
    """

    def __init__(self, bench: Workbench) -> None:
        p = self.problem = bench.problem_as(PagedAttentionProblem)
        self.k_pages, self.v_pages = (
            to_tensor(bench.operand(name), p.dtype) for name in ("k_pages", "v_pages")
        )
        whole = to_tensor(bench.operand("q"), p.dtype).reshape(
            p.batch, *p.order.shape(p.heads, p.queries, p.head_dim)
        )
        by_heads = whole if p.order is TokenOrder.HEADS else whole.transpose(1, 2)
        self.q = by_heads.reshape(p.batch, p.kv_heads, p.group * p.queries, p.head_dim).contiguous()
        self.scale = float(bench.operand("scale")[0])
        numbers, counts = self._lists(bench)
        table = bench.operand("page_table").reshape(p.batch, 1, p.slots)
        torch = import_torch()
        physical = np.take_along_axis(np.broadcast_to(table, (p.batch, p.kv_heads, p.slots)), numbers, 2)
        self._physical = torch.from_numpy(physical.astype(np.int64)).to(place())
        self._head = torch.arange(p.kv_heads, device=place())[:, None]
        self.mask = torch.from_numpy(self._seen(bench, numbers, counts)).to(place())

    def _lists(self, bench: Workbench) -> tuple[Array, Array]:
        """Numbers of pages, batch × key heads × as many as the longest list has, and how many count."""
        p = self.problem
        if p.chosen is Chosen.ALL:
            every = np.broadcast_to(np.arange(p.slots), (p.batch, p.kv_heads, p.slots))
            return every, np.full((p.batch, p.kv_heads), p.slots)
        counts = bench.operand("counts").reshape(p.batch, p.kv_heads)
        lists = bench.operand("pages").reshape(p.batch, p.kv_heads, -1)
        return lists[..., : max(1, int(counts.max()))], counts

    def _seen(self, bench: Workbench, numbers: Array, counts: Array) -> Array:
        """Marks the gathered tokens that each query sees."""
        p = self.problem
        tree = np.unpackbits(bench.operand("tree").view(np.uint8), axis=1, bitorder="little").astype(bool)
        old = bench.operand("lengths").reshape(p.batch, 1, 1) - p.queries
        new = (numbers[..., None] * p.page.count + np.arange(p.page.count)).reshape(
            p.batch, p.kv_heads, -1
        ) - old
        newest = tree[:, np.clip(new, 0, p.queries - 1)]  # queries × batch × key heads × tokens
        seen = (new < 0) | (newest & (new < p.queries))
        seen &= np.repeat(np.arange(numbers.shape[2]) < counts[..., None], p.page.count, -1)
        return np.ascontiguousarray(np.tile(np.moveaxis(seen, 0, 2), (1, 1, p.group, 1)))

    def gathered(self) -> tuple[Any, Any]:
        """K and V of the chosen pages, batch × key heads × tokens × head_dim."""
        p = self.problem
        of_heads = p.order is TokenOrder.HEADS
        found = (
            x[self._physical, self._head] if of_heads else x[self._physical, :, self._head]
            for x in (self.k_pages, self.v_pages)
        )
        k, v = (x.reshape(p.batch, p.kv_heads, -1, p.head_dim) for x in found)
        return k, v

    def stored(self, found: Any) -> Any:
        """O in the shape and the order of the problem."""
        p = self.problem
        by_heads = found.reshape(p.batch, p.heads, p.queries, p.head_dim)
        whole = by_heads if p.order is TokenOrder.HEADS else by_heads.transpose(1, 2)
        return whole if p.batch > 1 else whole[0]


BASELINES = (TorchSdpaPages(),)
