"""Attention of new tokens over a paged cache: ours in several configs beside a copy of as many bytes, and PyTorch's.

    python -m benchmarks.decode                          # contexts of 64k tokens, one in 16 pages live; a minute
    python -m benchmarks.decode --configs                # several configs of some rows too
    python -m benchmarks.decode --device emulator --tiny # a check without times

Sequences are equally long unless a row says that they are uneven. Every result is held against attention in float32 of
some sequences and heads before anything is timed. All take turns behind a busy queue with the L2 full of clean lines;
times are medians. ``copy`` moves as many bytes as the live pages have, half of them read and half written, by PyTorch.
``sdpa`` is PyTorch's attention on keys that were gathered before, without the order of the newest tokens, and
``gather+sdpa`` gathers them itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import sparsegen
from benchmarks.study import WrongResultError, times_in_turn, torch_place, write_results
from sparsegen.backends import find_device, toolchain
from sparsegen.kernels import family as family_named
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.measure.l2 import L2
from sparsegen.operators import PagedAttentionOperator, PagedAttentionProblem
from sparsegen.operators.attention.paged_attention import causal_tree
from sparsegen.plan.variants import compile_variant

TOLERANCE = 4e-3  # of the largest element, in float16
ROUNDS = 15
FLEX_BLOCK = 128  # least block of FlexAttention's kernels


@dataclass(frozen=True)
class Row:
    """Sequences on pages, and the share of these that each key head attends to."""

    batch: int
    context: int = 65536
    share: float = 1 / 16
    page: int = 64
    kv_heads: int = 8
    group: int = 4
    head_dim: int = 128
    queries: int = 1
    uneven: bool = False
    order: str = "tokens"

    @property
    def slots(self) -> int:
        return self.context // self.page

    @property
    def chosen(self) -> int:
        return max(1, round(self.share * self.slots))

    @property
    def fits_flex(self) -> bool:
        """True if FlexAttention's kernels take the pages, which queries see whole, and count their elements."""
        elements = self.batch * self.context * self.kv_heads * self.head_dim
        is_taken = self.page >= FLEX_BLOCK and elements < 1 << 31
        return is_taken and self.queries == 1 and self.order == "tokens" and not self.uneven

    @property
    def problem(self) -> PagedAttentionProblem:
        return PagedAttentionProblem.of(
            (self.queries, self.context),
            kv_heads=self.kv_heads,
            group=self.group,
            head_dim=self.head_dim,
            dtype="float16",
            page=self.page,
            density=self.share,
            capacity=self.chosen,
            order=self.order,
            batch=self.batch,
        )

    def configs(self, device: Device, several: bool) -> dict[str, Config]:
        """The heuristic config, and those of `CONFIGS` that are valid and worth trying."""
        family, problem = family_named("paged_attention"), self.problem
        found = {"heuristic": family.heuristic(problem, problem.features(problem.without_pattern), device)}
        for changes in CONFIGS if several else ():
            config: Config = family.config(**changes)
            if family.is_valid(problem, config, device) and family.is_worth_trying(problem, config, device):
                found[config.settings] = config
        return found


ROWS = (
    *(Row(batch) for batch in (1, 2, 4, 8, 16, 32, 64)),
    *(Row(batch, page=128) for batch in (1, 16)),
    Row(16, order="heads"),
    Row(16, page=16),
    Row(16, head_dim=64),
    Row(16, head_dim=256, kv_heads=4),
    Row(16, group=1),
    Row(16, group=16),
    Row(16, queries=4),
    Row(16, queries=16, group=8),
    Row(16, uneven=True),
    Row(4, share=1.0),
    Row(1, context=131072, share=1.0),
)
TINY = (Row(2, 256, 0.5, 16, 2, 4, 64), Row(1, 256, 0.5, 64, 1, 2, 64, 4, uneven=True, order="heads"))
CONFIGS: tuple[dict[str, int], ...] = (
    {"tile": 16, "stages": 2, "teams": 8},
    {"tile": 32, "stages": 3, "teams": 4},
    {"tile": 32, "stages": 3, "teams": 1},
    {"tile": 16, "stages": 4, "teams": 1, "row_tiles": 2},
)


@dataclass(frozen=True)
class Inputs:
    """Tensors of a row: a pool of pages in a random order, and lists of each head's pages."""

    row: Row
    q: Tensor
    k_pages: Tensor
    v_pages: Tensor
    page_table: Tensor
    lengths: Tensor
    pages: Tensor
    counts: Tensor

    @classmethod
    def drawn(cls, row: Row, place: torch.device, seed: int) -> Inputs:
        random = torch.Generator(place).manual_seed(seed)
        heads = (
            (row.kv_heads * row.group, row.queries)
            if row.order == "heads"
            else (row.queries, row.kv_heads * row.group)
        )
        of_page = (row.kv_heads, row.page) if row.order == "heads" else (row.page, row.kv_heads)
        whole = partial(torch.randn, device=place, dtype=torch.float16, generator=random)
        pool = row.batch * row.slots
        table = (
            torch.randperm(pool, device=place, generator=random).to(torch.int32).view(row.batch, row.slots)
        )
        scores = torch.rand(row.batch, row.kv_heads, row.slots, device=place, generator=random)
        lengths = torch.full((row.batch,), row.context, dtype=torch.int32, device=place)
        counts = torch.full((row.batch, row.kv_heads), row.chosen, dtype=torch.int32, device=place)
        if row.uneven:  # the longest has about eight times the shortest's
            part = torch.linspace(1 / 8, 1, row.batch, device=place)
            lengths = (lengths * part).to(torch.int32)
            scores.masked_fill_(
                torch.arange(row.slots, device=place)
                >= ((lengths[:, None, None] + row.page - 1) // row.page),
                -1.0,
            )
            counts = (counts * part[:, None]).clamp(min=1).to(torch.int32)
        return cls(
            row,
            2.0 * whole((row.batch, *heads, row.head_dim)),
            whole((pool, *of_page, row.head_dim)),
            whole((pool, *of_page, row.head_dim)),
            table,
            lengths,
            scores.topk(row.chosen).indices.to(torch.int32),
            counts,
        )

    @property
    def live_bytes(self) -> int:
        """Bytes of K and V on the live pages."""
        row = self.row
        return int(self.counts.sum()) * row.page * row.head_dim * 2 * 2

    def gathered(self) -> tuple[Tensor, Tensor]:
        """K and V of the listed pages, batch × key heads × tokens × head_dim."""
        row = self.row
        physical = self.page_table[:, None].expand(-1, row.kv_heads, -1).gather(2, self.pages.long()).long()
        head = torch.arange(row.kv_heads, device=physical.device)[None, :, None]
        shape = (row.batch, row.kv_heads, row.chosen * row.page, row.head_dim)
        if row.order == "heads":
            return self.k_pages[physical, head].view(shape), self.v_pages[physical, head].view(shape)
        return self.k_pages[physical, :, head].view(shape), self.v_pages[physical, :, head].view(shape)

    def places(self) -> Tensor:
        """Places of the gathered tokens in their sequences; int64, batch × key heads × tokens."""
        row = self.row
        inside = torch.arange(row.page, device=self.q.device)
        found = (self.pages.long()[..., None] * row.page + inside).flatten(2)
        slot = torch.arange(row.chosen * row.page, device=self.q.device) // row.page
        return found.masked_fill(slot >= self.counts[..., None], row.context)  # where no sequence has a token

    def by_heads(self, tensor: Tensor) -> Tensor:
        return tensor if self.row.order == "heads" else tensor.transpose(1, 2)


def expected(inputs: Inputs, sequence: int, head: int, gathered: tuple[Tensor, Tensor]) -> Tensor:
    """Attention in float32 of the queries of a sequence that share a key head, group × queries × head_dim."""
    row = inputs.row
    of_head = slice(head * row.group, (head + 1) * row.group)
    q = inputs.by_heads(inputs.q)[sequence, of_head].float()
    k, v = (x[sequence, head].float() for x in gathered)
    new = inputs.places()[sequence, head] - (inputs.lengths[sequence] - row.queries)
    seen = new <= torch.arange(row.queries, device=q.device)[:, None]
    scores = (q @ k.T * row.head_dim**-0.5).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num() @ v


def largest_error(inputs: Inputs, out: Tensor, gathered: tuple[Tensor, Tensor]) -> float:
    """The largest error over the largest element, of the first and the last sequence and head."""
    row, worst = inputs.row, 0.0
    for sequence, head in {(0, 0), (row.batch - 1, row.kv_heads - 1), (row.batch // 2, 0)}:
        wanted = expected(inputs, sequence, head, gathered)
        found = inputs.by_heads(out)[sequence, head * row.group : (head + 1) * row.group].float()
        worst = max(worst, float((found - wanted).abs().max() / wanted.abs().max()))
    return worst


class Ours:
    """Operators of ours for a row's problem."""

    def __init__(self, inputs: Inputs, device: Device) -> None:
        row = inputs.row
        self.inputs, self.device = inputs, device
        place = inputs.q.device
        self.rest = {
            "scale": torch.tensor([row.head_dim**-0.5], device=place),
            "tree": torch.from_numpy(causal_tree(row.queries)).to(place),
            "lse": torch.empty(row.batch, row.kv_heads * row.group, row.queries, device=place),
        }

    def call(self, config: Config) -> Callable[[], Tensor]:
        operator = sparsegen.prepare(
            problem=self.inputs.row.problem,
            family="paged_attention",
            config=config.to_dict(),
            device=self.device,
            verify="never",
        )
        assert isinstance(operator, PagedAttentionOperator)
        row, given = self.inputs.row, self.inputs
        one = row.batch == 1
        tensors = [
            given.q,
            given.k_pages,
            given.v_pages,
            given.page_table,
            given.lengths[:, None],
            given.pages,
            given.counts,
        ]
        tensors = [t if t is given.k_pages or t is given.v_pages or not one else t[0] for t in tensors]
        out = torch.empty_like(given.q)
        rest = {n: t[0] if one and n == "lse" else t for n, t in self.rest.items()}
        if given.q.device.type == "cpu":
            arrays = {n: t.numpy() for n, t in rest.items()}
            return lambda: torch.from_numpy(operator(*(t.numpy() for t in tensors), **arrays)).view_as(out)

        def run() -> Tensor:
            operator(*tensors, out=out[0] if one else out, **rest)
            return out

        return run


def by_flex(inputs: Inputs) -> Callable[[], Tensor]:
    """Compiled FlexAttention on the pool as one row of tokens, with a mask that was made before."""
    row = inputs.row
    physical = inputs.page_table[:, None].expand(-1, row.kv_heads, -1).gather(2, inputs.pages.long())
    numbers = physical.to(torch.int32).repeat_interleave(row.group, 1)[:, :, None].contiguous()
    counts = inputs.counts.repeat_interleave(row.group, 1)[..., None].contiguous()
    mask = BlockMask.from_kv_blocks(
        torch.zeros_like(counts),
        numbers,
        counts,
        numbers,
        BLOCK_SIZE=(FLEX_BLOCK, row.page),
        seq_lengths=(row.queries, inputs.k_pages.shape[0] * row.page),
        compute_q_blocks=False,
    )
    tokens = -1, row.kv_heads, row.head_dim
    k, v = (x.view(tokens).transpose(0, 1)[None] for x in (inputs.k_pages, inputs.v_pages))
    attend = torch.compile(flex_attention, dynamic=False)
    q = inputs.by_heads(inputs.q)
    return lambda: attend(q, k, v, block_mask=mask, enable_gqa=True).transpose(1, 2)


def compile_all(rows: Iterable[Row], device: Device, with_configs: bool) -> None:
    """Compile what the rows run on all cores, so that it is found in the cache."""
    with ThreadPoolExecutor() as pool:
        for row in rows:
            for config in row.configs(device, with_configs).values():
                pool.submit(compile_variant, config, row.problem, toolchain(device))


def measured(row: Row, device: Device, place: torch.device, seed: int, with_configs: bool) -> dict[str, Any]:
    """A row's error and, on a GPU, its times in µs."""
    inputs = Inputs.drawn(row, place, seed)
    gathered = inputs.gathered()
    ours, configs = Ours(inputs, device), row.configs(device, with_configs)
    calls = {name: ours.call(config) for name, config in configs.items()}
    errors = {}
    for name, call in calls.items():
        for again in range(2):  # scratch memory is as it was before
            errors[name] = largest_error(inputs, call().clone(), gathered)
            if not errors[name] <= TOLERANCE:
                raise WrongResultError(
                    f"{row} {configs[name].settings}: {errors[name]:g} off, call {again + 1}"
                )
    live = inputs.live_bytes
    result: dict[str, Any] = asdict(row) | {
        "live_bytes": live,
        "configs": {name: config.to_dict() for name, config in configs.items()},
        "errors": errors,
    }
    if place.type != "cuda":
        return result
    half = torch.empty(live // 2, dtype=torch.uint8, device=place)
    target = torch.empty_like(half)
    calls["copy"] = lambda: target.copy_(half)
    q = inputs.by_heads(inputs.q)
    if not row.uneven:
        attend = partial(scaled_dot_product_attention, enable_gqa=True)
        calls["sdpa"] = lambda: attend(q, *gathered)
        calls["gather+sdpa"] = lambda: attend(q, *inputs.gathered())
    if row.fits_flex:
        try:
            with torch.no_grad():
                errors["flex"] = largest_error(inputs, (flex := by_flex(inputs))(), gathered)
            calls["flex"] = flex
        except Exception as error:  # its compiler fails in many ways: that is what the row says then
            result["flex"] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    with torch.no_grad():
        us = times_in_turn(list(calls.values()), l2=L2.CLEAN, rounds=ROUNDS)
    result["us"] = dict(zip(calls, us, strict=True))
    best = min(result["us"][name] for name in configs)
    result["bytes_per_us"] = round(live / best)
    return result


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--seed", default=0, show_default=True, help="of tensors and pages")
@click.option("--limit", default=300.0, show_default=True, help="seconds after which no row begins")
@click.option("--configs", "with_configs", is_flag=True, help="several configs of each row")
@click.option("--tiny", is_flag=True, help="small rows alone, for a test")
def main(name: str, seed: int, limit: float, with_configs: bool, tiny: bool) -> None:
    began, device = time.monotonic(), find_device(name)
    place = torch_place(device)
    rows, wanted = [], TINY if tiny else ROWS
    compile_all(wanted, device, with_configs)
    for number, row in enumerate(wanted):
        if time.monotonic() - began > limit:
            click.echo(f"{limit:g} s are over: {number} rows")
            break
        try:
            rows.append(measured(row, device, place, seed + number, with_configs))
        except WrongResultError as error:
            click.echo(f"WRONG: {error}")
            continue
        found = rows[-1]
        click.echo(
            f"{row}: {found['live_bytes'] / 1e6:.1f} MB, errors {found['errors']} {found.get('flex', '')}"
        )
        for what, us in found.get("us", {}).items():
            click.echo(
                f"    {us:8.1f} us {found['live_bytes'] / us / 1e6:6.2f} TB/s  {what} {found['configs'].get(what, '')}"
            )
        write_results(device, "decode", rows, dtype="float16", l2="clean", seed=seed)


if __name__ == "__main__":
    main()
