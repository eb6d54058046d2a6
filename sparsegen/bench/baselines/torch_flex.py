"""PyTorch's FlexAttention, compiled: masks of positions, and of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sparsegen.bench.baseline.baseline import Implementation, Stopwatch
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._attention import Heads, TorchAttention
from sparsegen.bench.baselines._block_attention import BlockHeads, TorchBlockAttention
from sparsegen.bench.baselines._torch import import_torch, wait
from sparsegen.bench.results.results import Kind


class TorchFlex(TorchAttention):
    name, kind = "torch-flex", Kind.SPARSE

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        heads = Heads(bench)
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = heads.mask

        def is_seen(batch: object, head: object, query: object, key: object) -> Any:
            return mask[query, key]

        watch = Stopwatch()
        queries, keys = mask.shape
        blocks = create_block_mask(is_seen, None, None, queries, keys, device=str(mask.device))
        wait()
        elapsed = watch.lap()
        attend: Any = compiled(flex_attention) if mask.is_cuda else flex_attention

        def run() -> Any:
            return attend(heads.q, heads.k, heads.v, block_mask=blocks, scale=heads.scale)

        yield replace(heads.implementation("FlexAttention", run), preparation_ms=elapsed)


def compiled(function: object) -> Any:
    """Compiles the function for one row's shapes.

    PyTorch compiles a function for a limited number of shapes in a process, and would run it uncompiled afterwards,
    some fifty times slower. Therefore code compiled for other rows is dropped, and running uncompiled is an error.
    """
    torch = import_torch()
    torch.compiler.reset()
    return torch.compile(function, dynamic=False, fullgraph=True)


USUAL_TILE = 128  # tile of FlexAttention's kernels, which must divide blocks


class TorchFlexBlocks(TorchBlockAttention):
    name, kind = "torch-flex-blocks", Kind.SPARSE

    def implementations(self, bench: Workbench) -> Iterator[Implementation]:
        heads = BlockHeads(bench)
        from torch.nn.attention.flex_attention import flex_attention

        p, mask = heads.problem, block_mask(heads)
        attend: Any = compiled(flex_attention) if heads.q.is_cuda else flex_attention
        options: dict[str, Any] = dict(heads.shares_keys)
        if min(p.block.rows, p.block.columns) < USUAL_TILE:
            tile = {"BLOCK_M": min(p.block.rows, USUAL_TILE), "BLOCK_N": min(p.block.columns, USUAL_TILE)}
            options["kernel_options"] = tile

        def run() -> Any:
            return attend(heads.q, heads.k, heads.v, block_mask=mask, scale=heads.scale, **options)

        yield heads.implementation("FlexAttention", run)


def block_mask(heads: BlockHeads) -> Any:
    """FlexAttention's mask: live blocks that the band leaves whole, and others whose places it looks at."""
    torch, p, band = import_torch(), heads.problem, heads.band
    from torch.nn.attention.flex_attention import BlockMask

    live, rows, columns = heads.live, p.block.rows, p.block.columns
    first_query = torch.arange(live.shape[2], device=live.device)[:, None] * rows
    first_key = torch.arange(live.shape[3], device=live.device) * columns
    last_query = (first_query + rows).clamp(max=p.queries) - 1
    last_key = (first_key + columns).clamp(max=p.keys) - 1
    touched = (first_key - last_query <= band.most) & (
        (last_key - first_query >= band.least) | (first_key < band.sinks)
    )
    whole = (last_key - first_query <= band.most) & (
        (first_key - last_query >= band.least) | (last_key < band.sinks)
    )
    partial, full = listed(live & touched & ~whole), listed(live & touched & whole)

    def is_seen(item: Any, head: Any, query: Any, key: Any) -> Any:
        near = (key - query >= band.least) | (key < band.sinks)
        return near & (key - query <= band.most)

    def is_live(item: Any, head: Any, query: Any, key: Any) -> Any:
        of_block = live[item % live.shape[0], head % live.shape[1], query // rows, key // columns]
        return of_block & is_seen(item, head, query, key)

    # Compiled it looks at the lists first; elsewhere it asks for every place.
    asked = is_seen if heads.q.is_cuda else is_live
    return BlockMask.from_kv_blocks(
        *partial, *full, BLOCK_SIZE=(rows, columns), mask_mod=asked, seq_lengths=(p.queries, p.keys)
    )


def listed(blocks: Any) -> tuple[Any, Any]:
    """Returns the number of true blocks in each row, and the numbers of all blocks, true ones first; int32."""
    torch = import_torch()
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


BASELINES = (TorchFlex(), TorchFlexBlocks())
