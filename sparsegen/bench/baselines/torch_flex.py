"""PyTorch's FlexAttention with a block mask made of the row's; compiled where there is a GPU, as it is meant to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sparsegen.bench.baseline.baseline import Implementation, Stopwatch
from sparsegen.bench.baseline.workbench import Workbench
from sparsegen.bench.baselines._attention import Heads, TorchAttention
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


BASELINE = TorchFlex()
