"""Times of masks that are made on the device, beside the attention that they are for.

    python -m benchmarks.mask_times                           # twenty seconds
    python -m benchmarks.mask_times --device emulator --tiny  # a check without times

Every way of making a mask is captured in a CUDA graph, as a model's step would be, and takes turns with the attention
that follows it, causal and with that mask. Times are medians, with the L2 full of clean lines. Raw output:
``mask_times.json.xz``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click
import torch
from torch import Tensor

from benchmarks.graph_capture import captured
from benchmarks.study import times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.integrations.torch import block_attention, masks
from sparsegen.measure.l2 import L2

ROUNDS = 15


@dataclass(frozen=True)
class Row:
    """Heads of tokens × head_dim, and the part of their blocks that lives."""

    heads: int
    kv_heads: int
    tokens: int
    head_dim: int
    block: int
    share: float


ROWS = (
    Row(16, 16, 8192, 128, 128, 0.25),
    Row(16, 4, 16384, 128, 128, 0.25),
    Row(8, 8, 32768, 128, 128, 0.1),
    Row(16, 16, 8192, 64, 64, 0.25),
)
TINY = (Row(2, 1, 256, 64, 64, 0.5),)


def ways(row: Row, q: Tensor, k: Tensor) -> dict[str, Callable[[], Any]]:
    """Ways to make a mask for these heads, from Q and K or from scores that are there."""
    side, shape, group = row.block, (row.tokens, row.tokens), row.heads // row.kv_heads
    scores = masks.pooled_scores(q, k, side)
    places, document = torch.arange(row.tokens, device=q.device), row.tokens // 8
    ids, cutting = places // document, (places + side // 3) // document
    mask = masks.topk_blocks(scores, row.share, side, shape)
    return {
        "pooled mean": lambda: masks.pooled_scores(q, k, side),
        "pooled max": lambda: masks.pooled_scores(q, k, side, pooling="max"),
        "topk": lambda: masks.topk_blocks(scores, row.share, side, shape),
        "topk of a head": lambda: masks.topk_blocks(scores, row.share, side, shape, per="head"),
        "pooled mean, topk": lambda: masks.topk_blocks(
            masks.pooled_scores(q, k, side), row.share, side, shape
        ),
        "top p": lambda: masks.top_p_blocks(scores, 0.9, side, shape),
        "threshold": lambda: masks.threshold_blocks(scores, 0.0, side, shape),
        "dilated": lambda: masks.dilated(mask, 1),
        "with another mask": lambda: mask & mask,
        "union of a group": lambda: masks.union_of_group(mask, group),
        "window and sinks": lambda: masks.window_blocks(
            shape, side, causal=True, window=1024, sinks=64, device=q.device
        ),
        "documents of whole blocks": lambda: masks.document_blocks(ids, side),
        "documents that cut blocks": lambda: masks.document_blocks(cutting, side),
    }


def measured(row: Row, place: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, row.tokens, row.head_dim, device=place, dtype=torch.float16)
        for heads in (row.heads, row.kv_heads, row.kv_heads)
    )
    made = ways(row, q, k)
    mask = masks.topk_blocks(
        masks.pooled_scores(q, k, row.block), row.share, row.block, (row.tokens, row.tokens)
    )
    calls = {"attention": lambda: block_attention(q, k, v, mask), **made}
    for call in calls.values():
        call()
    found: dict[str, Any] = asdict(row)
    if place.type == "cuda":
        with torch.no_grad():
            runs = [captured(call, place)[0] for call in calls.values()]
            us = times_in_turn(runs, l2=L2.CLEAN, rounds=ROUNDS)
        found["us"] = dict(zip(calls, us, strict=True))
    return found


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="a small row alone, for a test")
def main(name: str, tiny: bool) -> None:
    device = find_device(name)
    place = torch_place(device)
    rows = []
    for row in TINY if tiny else ROWS:
        rows.append(measured(row, place))
        us = rows[-1].get("us", {})
        click.echo(str(row))
        for what, time in us.items():
            click.echo(f"    {time:8.1f} us {time / us['attention']:7.1%}  {what}")
        write_results(device, "mask_times", rows, dtype="float16", l2="clean")


if __name__ == "__main__":
    main()
