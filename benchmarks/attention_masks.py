"""Attention with drawn masks of blocks: ours beside FlexAttention and dense attention by cuDNN, forward and backward.

    python -m benchmarks.attention_masks --seed 7                     # the issue's sizes, then drawn ones; two minutes
    python -m benchmarks.attention_masks --seed 7 --rows 0            # the fixed sizes alone
    python -m benchmarks.attention_masks --device emulator --tiny     # a check without times

Each row has other sizes and masks, a mask for each head: independent blocks, blobs (runs of neighbouring rows with the
same blocks), or each row's largest scores. Before a row is timed, O and the gradients of both masked implementations
are held against attention in float32 with the same mask, of the first and the last head. All take turns behind a busy
queue, with the L2 overwritten before each call; times are medians. Dense attention computes what no mask leaves out: it
is there as the price of ignoring the mask. Raw output: ``attention_masks.json.xz``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention_checks import Attend, attended, flex_implementation, largest_errors
from benchmarks.study import times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.integrations.torch import BlockMaskTensor, block_attention, masks
from sparsegen.measure.l2 import L2
from sparsegen.system.integers import ceil_div

TOLERANCE = 4e-3  # of the largest element, in float16
ROUNDS = 7
KINDS = ("independent", "blobs", "largest")


@dataclass(frozen=True)
class Row:
    """Heads of tokens × head_dim, and a mask for each of them."""

    heads: int
    tokens: int
    head_dim: int
    block: int
    share: float
    kind: str = "independent"


FIXED = (Row(16, 8192, 128, 128, 0.27), Row(8, 16384, 128, 128, 0.11), Row(16, 8192, 64, 64, 0.26))
TINY = (Row(2, 128, 64, 64, 0.5), Row(2, 128, 64, 64, 0.5, "largest"))


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
    return BlockMaskTensor.from_blocks(live, block, shape, density=float(live.float().mean()))


def by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v)


def gradients(attend: Attend, given: list[Tensor]) -> Callable[[], Any]:
    """Calls of the backward pass alone, several for one forward pass."""
    torch._functorch.config.donated_buffer = False  # compiled backward passes may run once alone else
    inputs = [tensor.detach().requires_grad_() for tensor in given[:3]]
    out = attend(*inputs)
    return lambda: torch.autograd.grad(out, inputs, given[3], retain_graph=True)


def measured(row: Row, place: torch.device, seed: int) -> dict[str, Any]:
    """A row's errors and, on a GPU, its times in µs."""
    torch.manual_seed(seed)
    shape = (1, row.heads, row.tokens, row.head_dim)
    given = [torch.randn(shape, device=place, dtype=torch.float16) for _ in range(4)]
    mask = drawn_mask(row, place, seed)
    live = float(mask.blocks().float().mean())
    implementations: dict[str, Attend] = {
        "ours": lambda q, k, v: block_attention(q, k, v, mask),
        "ours_deterministic": lambda q, k, v: block_attention(q, k, v, mask, deterministic=True),
    }
    failed: dict[str, str] = {}
    if place.type == "cuda":
        implementations["flex"] = flex_implementation(mask)
    results = {}
    for name in list(implementations):
        try:
            results[name] = attended(implementations[name], given)
        except (
            Exception
        ) as error:  # FlexAttention's compiler fails in many ways: that is what the row says then
            if name != "flex":
                raise
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
            del implementations[name]
    ends = dict.fromkeys((0, row.heads - 1))
    errors = largest_errors(results, given, lambda head: mask[head].expand(), ends, TOLERANCE)
    found: dict[str, Any] = asdict(row) | {"live": round(live, 4), "errors": errors, "failed": failed}
    if place.type != "cuda":
        return found
    implementations["cudnn_dense"] = by_cudnn
    with torch.no_grad():
        forward = times_in_turn(
            [
                partial(attend, *given[:3])
                for name, attend in implementations.items()
                if name != "ours_deterministic"
            ],
            l2=L2.COLD,
            rounds=ROUNDS,
        )
    names = [name for name in implementations if name != "ours_deterministic"]
    backward = times_in_turn(
        [gradients(a, given) for a in implementations.values()], l2=L2.COLD, rounds=ROUNDS
    )
    flop = 4 * row.heads * row.tokens**2 * row.head_dim * live
    found["forward_us"] = dict(zip(names, forward, strict=True))
    found["backward_us"] = dict(zip(implementations, backward, strict=True))
    found["forward_tflops"] = round(flop / found["forward_us"]["ours"] / 1e6)
    found["backward_tflops"] = round(2.5 * flop / found["backward_us"]["ours"] / 1e6)
    return found


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--seed", default=0, show_default=True, help="of sizes and masks")
@click.option("--rows", "count", default=9, show_default=True, help="drawn rows beside the fixed ones")
@click.option("--limit", default=300.0, show_default=True, help="seconds after which no row begins")
@click.option("--tiny", is_flag=True, help="small rows alone, for a test")
def main(name: str, seed: int, count: int, limit: float, tiny: bool) -> None:
    began, device = time.monotonic(), find_device(name)
    place = torch_place(device)
    rows = []
    for number, row in enumerate(TINY if tiny else (*FIXED, *drawn_rows(seed, count))):
        if time.monotonic() - began > limit:
            click.echo(f"{limit:g} s are over: {number} rows")
            break
        torch.compiler.reset()
        found = measured(row, place, seed + number)
        rows.append(found)
        ours = found.get("forward_us", {})
        told = " ".join(f"{k} {v:.0f}" for k, v in ours.items())
        back = " ".join(f"{k} {v:.0f}" for k, v in found.get("backward_us", {}).items())
        click.echo(
            f"{row.heads}x{row.tokens}x{row.head_dim} blocks {row.block} {row.kind} {found['live']:.3f} live: "
            f"forward {told} ({found.get('forward_tflops')} T); backward {back} ({found.get('backward_tflops')} T) "
            f"{found['failed'] or ''}"
        )
        write_results(device, "attention_masks", rows, dtype="float16", l2="cold", seed=seed)


if __name__ == "__main__":
    main()
