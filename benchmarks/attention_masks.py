"""Attention with masks of blocks: ours beside FlexAttention and dense attention by cuDNN, forward and backward.

    python -m benchmarks.attention_masks --seed 7                     # all parts; seven minutes of one H200
    python -m benchmarks.attention_masks --seed 7 --part windows      # one part
    python -m benchmarks.attention_masks --row 'windows .*tokens 12288 .*window 1024$'
    python -m benchmarks.attention_masks --device emulator --tiny     # a check without times

Parts: ``masks`` (the issue's sizes, few live blocks of short rows, then drawn ones: other sizes and masks for each
seed, a mask for each head: independent blocks, blobs, which are runs of neighbouring rows with the same blocks, or each
row's largest scores), ``long`` (32,768 and 65,536 tokens), ``whole`` (nothing dead, and causal), ``windows`` (and
sinks), ``scores`` (masks made of scores, beside the attention that they are for), ``uneven`` (some rows see all keys:
left whole, and split over thread blocks), ``shares`` (blocks of 128 × 128 to 16 × 64 beside our attention where nothing
is dead, without peers), ``replays`` (a CUDA graph whose mask changes, held against eager calls: all bits are equal),
``fixed`` (masks of `sparse_attention`: blocks, the fused kernel and steps, what is chosen, and the expected times by
which it is), ``warps`` (kernels for GPUs before Hopper beside those of warpgroups, launched alone, and flash).

Parts that tell most come first, and each says how many rows it has and the seconds that they should take. A row that
the raw file holds of the same commit and seed is not measured again. Exit status 75 says that time was up before all
rows were measured: the same command goes on.

Before a row is timed, O and the gradients of what computes the same are held against attention in float32 with the same
mask, of the first and the last head. All take turns behind a busy queue, with the L2 overwritten before each call;
times are medians. ``one_pass`` and ``two_passes`` are the forms of our backward pass, launched alone: the second gives
equal bits; those with tiles of one warpgroup are ``_single``. Of a row with a mask dense attention computes what no
mask leaves out: the price of ignoring the mask. Raw output: ``attention_masks.json.xz``.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import groupby
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, flex_attention, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention_checks import flex_implementation
from benchmarks.attention_fixed import compile_fixed, measured_fixed
from benchmarks.attention_passes import STEP, compile_all, passes_of, row_forms
from benchmarks.attention_rows import (
    CAUSAL,
    FIXED,
    ISSUE,
    LONG,
    REPLAYS,
    ROUNDS,
    SHARES,
    SHORT,
    TINY,
    TINY_FIXED,
    TINY_REPLAYS,
    TINY_SHARES,
    TINY_SPANS,
    TINY_UNEVEN,
    TINY_WARPS,
    TOLERANCE,
    UNEVEN,
    WARPS,
    WHOLE,
    WINDOWS,
    AnyRow,
    Compared,
    ReplayRow,
    Row,
    ShareRow,
    SpanRow,
    WarpRow,
    drawn_rows,
)
from benchmarks.attention_warps import BACKWARD, FORWARD, measured_warps
from benchmarks.graph_capture import captured
from benchmarks.study import WrongResultError, result_file, rows_of, times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.bench.run.state import CHANGED, state
from sparsegen.integrations.torch import BlockMaskTensor, block_attention, masks
from sparsegen.measure.l2 import L2
from sparsegen.operators.attention.span import Band
from sparsegen.system.integers import ceil_div

NAME = "attention_masks"  # of the raw file
SECONDS = {  # of a row, by its part, most of which FlexAttention is compiled: one H200 and 16 CPU cores
    "masks": 11.0,
    "uneven": 5.0,
    "scores": 4.0,
    "windows": 9.0,
    "whole": 2.5,
    "long": 14.0,
    "shares": 3.0,
    "replays": 6.0,
    "fixed": 7.0,
    "warps": 5.0,
}
PASSES = "forward_us", "expected_forward_us", "backward_us", "training_us", "expected_training_us"
INCOMPLETE = 75  # exit status of a study that goes on when it is given again
KEPT = 8  # blocks of each row that live, of those by scores: an eighth of 64


def drawn_mask(row: Row, place: torch.device, seed: int) -> BlockMaskTensor:
    """A mask for each head, whose diagonal lives."""
    generator = torch.Generator(place).manual_seed(seed)
    count = ceil_div(row.tokens, row.block)
    scores = torch.rand(row.heads, count, count, device=place, generator=generator)
    shape, block = (row.tokens, row.tokens), (row.block, row.block)
    if row.kind == "largest":
        keep = max(1, round(row.share * count))
        return masks.topk_blocks(scores, keep, shape=shape, block=block)
    if row.kind == "blobs":
        scores = scores[:, ::4].repeat_interleave(4, 1)[:, :count]
    live = (scores < row.share) | torch.eye(count, dtype=torch.bool, device=place)
    if row.kind in ("tenth", "one"):
        live[:, count // 2 :: 10 if row.kind == "tenth" else count] = True
    return BlockMaskTensor.from_blocks(live, block, shape, density=float(live.float().mean()))


def by_cudnn(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def drawn_operands(row: AnyRow, place: torch.device, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    shape = (1, row.heads, row.tokens, row.head_dim)
    return [torch.randn(shape, device=place, dtype=torch.float16) for _ in range(4)]


def measured(row: Row, place: torch.device, seed: int) -> dict[str, Any]:
    """A row's errors and, on a GPU, its times in µs."""
    given, mask = drawn_operands(row, place, seed), drawn_mask(row, place, seed)
    live = float(mask.blocks().float().mean())
    compared = Compared(
        given,
        {
            "ours": lambda q, k, v: block_attention(q, k, v, mask),
            "ours_deterministic": lambda q, k, v: block_attention(q, k, v, mask, deterministic=True),
        },
        {"cudnn_dense": by_cudnn},
        passes_of(given, mask),
    )
    is_timed = place.type == "cuda"
    if is_timed:
        compared.implementations["flex"] = flex_implementation(mask)
    errors = compared.checked(lambda head: mask[head].expand(), dict.fromkeys((0, row.heads - 1)))
    found = asdict(row) | {"live": round(live, 4), "errors": errors, "failed": compared.failed}
    flop = 4 * row.heads * row.tokens**2 * row.head_dim * live
    return found | (compared.timed(flop) if is_timed else {})


def measured_span(row: SpanRow, place: torch.device, seed: int) -> dict[str, Any]:
    """The same of a row without a mask; cuDNN computes it too, unless there is a window."""
    given = drawn_operands(row, place, seed)
    span: dict[str, Any] = {"causal": row.causal, "window": row.window or None, "sinks": row.sinks}
    band = Band.of(row.tokens, row.tokens, causal=row.causal, window=row.window, sinks=row.sinks)
    live = band.places(row.tokens, row.tokens) / row.tokens**2
    cudnn = partial(by_cudnn, causal=row.causal)
    compared = Compared(
        given,
        {
            "ours": lambda q, k, v: block_attention(q, k, v, **span),
            "ours_deterministic": lambda q, k, v: block_attention(q, k, v, deterministic=True, **span),
        },
        {"cudnn": cudnn},
        passes_of(given, None, **span),
    )

    def seen(q: Tensor, k: Tensor) -> Tensor:
        away = k - q
        return ((away >= band.least) | (k < band.sinks)) & (away <= band.most)

    is_timed = place.type == "cuda"
    if is_timed and row.window:
        block_mask = flex_attention.create_block_mask(
            lambda b, h, q, k: seen(q, k), None, None, row.tokens, row.tokens, place
        )
        compiled = torch.compile(flex_attention.flex_attention, dynamic=False)
        compared.implementations["flex"] = lambda q, k, v: compiled(q, k, v, block_mask=block_mask)
    at = torch.arange(row.tokens, device=place)
    places = seen(at[:, None], at)
    errors = compared.checked(lambda _: places, dict.fromkeys((0, row.heads - 1)))
    found = asdict(row) | {"live": round(live, 4), "errors": errors, "failed": compared.failed}
    flop = 4 * row.heads * row.tokens**2 * row.head_dim * live
    return found | (compared.timed(flop) if is_timed else {})


def measured_scores(row: Row, place: torch.device, seed: int) -> dict[str, Any]:
    """Times in µs of scores, of masks of them, and of the attention that these are for."""
    given, block = drawn_operands(row, place, seed), row.block
    q, k, v = given[:3]
    scores = masks.pooled_scores(q, k, block)
    keep = max(1, round(row.share * scores.shape[-1]))
    mask = masks.topk_blocks(scores, keep, block, (row.tokens, row.tokens))
    if int(mask.blocks().sum()) != row.heads * scores.shape[-2] * keep:
        raise click.ClickException(f"{row}: another number of blocks lives than were to be kept")
    calls: dict[str, Callable[[], Any]] = {
        "pooled_scores": lambda: masks.pooled_scores(q, k, block),
        "topk_blocks": lambda: masks.topk_blocks(scores, keep, block, (row.tokens, row.tokens)),
        "attention": lambda: block_attention(q, k, v, mask),
    }
    if place.type != "cuda":
        return asdict(row)
    times = times_in_turn(list(calls.values()), l2=L2.COLD, rounds=ROUNDS)
    return asdict(row) | {"us": dict(zip(calls, times, strict=True))}


def measured_uneven(row: Row, place: torch.device, seed: int) -> dict[str, Any]:
    """Errors of O and times in µs of both forms of the forward pass: rows left whole, and long ones split."""
    q, k, v = drawn_operands(row, place, seed)[:3]
    mask, out = drawn_mask(row, place, seed), torch.empty_like(q)
    live = float(mask.blocks().float().mean())
    found = asdict(row) | {"live": round(live, 4)}
    forms, errors = row_forms(q, k, v, mask, out), {}
    one = [tensor[:, :1].float() for tensor in (q, k, v)]
    right = scaled_dot_product_attention(one[0], one[1], one[2], attn_mask=mask[0].expand())
    for name, call in forms.items():
        out.fill_(torch.nan)
        call()
        errors[name] = float((out[:, :1].float() - right).abs().max() / right.abs().max())
        if not errors[name] <= TOLERANCE:
            raise WrongResultError(f"{row}, {name}: the error is {errors[name]:.3g} of the largest element")
    if place.type != "cuda":
        return found | {"errors": errors}
    times = times_in_turn(list(forms.values()), l2=L2.COLD, rounds=ROUNDS)
    return found | {"errors": errors, "us": dict(zip(forms, times, strict=True))}


def blocks_drawn(
    row: ShareRow | ReplayRow | WarpRow, block: tuple[int, int], generator: torch.Generator
) -> BlockMaskTensor:
    """A mask for each head, of whose blocks a share lives."""
    sizes = row.heads, ceil_div(row.tokens, block[0]), ceil_div(row.tokens, block[1])
    live = torch.rand(sizes, device=generator.device, generator=generator) < row.share
    return BlockMaskTensor.from_blocks(live, block, (row.tokens, row.tokens), density=row.share)


def measured_share(row: ShareRow, place: torch.device, seed: int) -> dict[str, Any]:
    """The error of O, and times in µs: of the forward pass also over the live share of that where nothing is dead."""
    given, block = drawn_operands(row, place, seed), (row.block_rows, row.block_columns)
    mask, (q, k, v) = blocks_drawn(row, block, torch.Generator(place).manual_seed(seed)), given[:3]
    live = float(mask.blocks().float().mean())
    calls: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: block_attention(q, k, v, mask),
        "ours_dense": lambda: block_attention(q, k, v),
    }
    one = [tensor[:, :1].float() for tensor in (q, k, v)]
    right = scaled_dot_product_attention(one[0], one[1], one[2], attn_mask=mask[0].expand())
    error = float((calls["ours"]()[:, :1].float() - right).abs().max() / right.abs().max())
    if not error <= TOLERANCE:
        raise WrongResultError(f"{row}: the error is {error:.3g} of the largest element")
    found = asdict(row) | {"live": round(live, 4), "errors": {"ours": error}}
    if place.type != "cuda":
        return found
    forms = calls | (passes_of(given, mask) if min(block) >= STEP else {})
    times = times_in_turn(list(forms.values()), l2=L2.COLD, rounds=ROUNDS)
    us = dict(zip(forms, times, strict=True))
    return found | {"us": us, "over_share": round(us["ours"] / us["ours_dense"] / live, 3)}


def measured_replays(row: ReplayRow, place: torch.device, seed: int) -> dict[str, Any]:
    """Replays of a graph, each with another mask in its buffer, held against eager calls: all bits are equal."""
    given, block = drawn_operands(row, place, seed), (row.block, row.block)
    generator = torch.Generator(place).manual_seed(seed)
    inputs = [tensor.requires_grad_() for tensor in given[:3]]
    held = blocks_drawn(row, block, generator)

    def step(mask: BlockMaskTensor) -> tuple[Tensor, ...]:
        q, k, v = inputs
        out = block_attention(q, k, v, mask, causal=True, deterministic=True)
        return out.detach(), *torch.autograd.grad(out, inputs, given[3])

    for _ in range(3):  # the first calls prepare what no capture may
        step(held)
    replay, written = captured(partial(step, held), place)
    unequal = 0
    for _ in range(row.replays):
        other = blocks_drawn(row, block, generator)
        held.words.view(torch.int64).copy_(other.words.view(torch.int64))
        called = replay()
        pairs = zip(called if written is None else written, step(other), strict=True)
        unequal += not all(torch.equal(replayed, eager) for replayed, eager in pairs)
    if unequal:
        raise WrongResultError(f"{row}: {unequal} replays differ from eager calls")
    return asdict(row) | {"unequal": unequal}


def measured_of_warps(row: WarpRow, place: torch.device, seed: int) -> dict[str, Any]:
    """See `measured_warps`."""
    given, mask = drawn_operands(row, place, seed), None
    if row.block:
        mask = blocks_drawn(row, (row.block, row.block), torch.Generator(place).manual_seed(seed))
    everything = torch.ones(row.tokens, row.tokens, dtype=torch.bool, device=place)
    return measured_warps(row, given, mask, lambda head: everything if mask is None else mask[head].expand())


Measure = Callable[[Any, torch.device, int], dict[str, Any]]


def planned(
    parts: tuple[str, ...], seed: int, count: int, tiny: bool
) -> Iterator[tuple[Measure, Any, dict[str, Any]]]:
    """Yields what measures each row of some parts, the row, and its name in the raw file."""
    of_parts: tuple[tuple[str, Measure, Any], ...] = (
        ("fixed", measured_fixed, TINY_FIXED if tiny else FIXED),
        ("masks", measured, TINY if tiny else (*ISSUE, *SHORT)),
        ("replays", measured_replays, TINY_REPLAYS if tiny else REPLAYS),
        ("shares", measured_share, TINY_SHARES if tiny else SHARES),
        ("uneven", measured_uneven, TINY_UNEVEN if tiny else UNEVEN),
        ("scores", measured_scores, TINY[:1] if tiny else SHORT),
        ("windows", measured_span, TINY_SPANS[2:] if tiny else WINDOWS),
        ("warps", measured_of_warps, TINY_WARPS if tiny else WARPS),
        ("long", measured, () if tiny else LONG),
        ("whole", measured_span, TINY_SPANS[:2] if tiny else WHOLE + CAUSAL),
        ("masks", measured, () if tiny else drawn_rows(seed, count)),
    )
    for part, measure, rows in of_parts:
        if part in parts:
            for number, row in enumerate(rows):
                yield measure, row, {"part": part, "seed": seed + number, **asdict(row)}


def sizes_of(row: AnyRow) -> str:
    """Names and values of a row's sizes."""
    return " ".join(f"{name} {value}" for name, value in asdict(row).items() if value)


def told(row: AnyRow, found: dict[str, Any]) -> str:
    """A line for a row."""
    times = []
    for name in ("us", *PASSES):
        if name in found:
            each = " ".join(f"{who} {us:.0f}" for who, us in found[name].items())
            times.append(f"{name.removesuffix('_us')} {each}")
    reached = (
        f"({found['forward_tflops']} T, {found['backward_tflops']} T)" if "forward_tflops" in found else ""
    )
    live = f"{found['live']:.3f} live" if "live" in found else ""
    reached += f" {found['over_share']} of the share" if "over_share" in found else ""
    reached += f" chosen: {found['chosen']}" if "chosen" in found else ""
    return f"{sizes_of(row)} {live}: {'; '.join(times)} {reached} {found.get('failed') or ''}"


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--seed", default=0, show_default=True, help="of sizes and masks")
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(list(SECONDS)),
    help="parts to measure; by default all",
)
@click.option(
    "--row", "wanted", default="", help="regular expression: rows whose part and sizes have it, alone"
)
@click.option("--rows", "count", default=9, show_default=True, help="drawn rows beside the fixed ones")
@click.option(
    "--limit", default=400.0, show_default=True, help="seconds within which rows that begin should end"
)
@click.option("--tiny", is_flag=True, help="small rows alone, for a test")
def main(
    name: str, seed: int, parts: tuple[str, ...], wanted: str, count: int, limit: float, tiny: bool
) -> None:
    began, device = time.monotonic(), find_device(name)
    place, now = torch_place(device), state()
    earlier = [row for row in rows_of(result_file(device, NAME)) if row["state"] == now]
    earlier = [] if now.endswith(CHANGED) else earlier  # no two such states need be the same
    rows: list[dict[str, Any]] = []
    missing = 0
    plan = [
        planned_row
        for planned_row in planned(parts or tuple(SECONDS), seed, count, tiny)
        if re.search(wanted, f"{planned_row[2]['part']} {sizes_of(planned_row[1])}")
    ]
    for part, own in groupby(plan, lambda planned_row: planned_row[2]["part"]):
        amount = len(list(own))
        click.echo(f"{part}: {amount} rows, some {amount * SECONDS[part]:.0f} s on a GPU")
    blocks = [row for measure, row, _ in plan if measure is measured_share]
    compile_all({attended for row in blocks for attended in row.attended}, device)
    compile_all([row.attended for m, row, _ in plan if m is measured_of_warps], device, (FORWARD, BACKWARD))
    compile_fixed(((row, key["seed"]) for m, row, key in plan if m is measured_fixed), device)
    for measure, row, key in plan:
        known = next((found for found in earlier if key.items() <= found.items()), None)
        if known is None and time.monotonic() - began + SECONDS[key["part"]] > limit:
            missing += 1
            continue
        if known is None:
            torch.compiler.reset()
            known = key | measure(row, place, key["seed"])
            click.echo(f"[{time.monotonic() - began:5.1f}] {told(row, known)}")
        rows.append(known)
        others = [found for found in earlier if found not in rows]
        write_results(device, NAME, rows + others, dtype="float16", l2="cold", seed=seed)
    if missing:
        click.echo(f"{limit:g} s are over: {missing} rows are not measured; the same command goes on")
        sys.exit(INCOMPLETE)


if __name__ == "__main__":
    main()
