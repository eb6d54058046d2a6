"""A sparse Transformer's training step and inference: block_attention, FlexAttention, and dense causal attention.

    python -m benchmarks.attention_transformer                  # under a minute
    python -m benchmarks.attention_transformer --device emulator --tiny
    python -m benchmarks.attention_transformer --share 0.1 --block 64 --batch 2

The model is that of Gale et al. (Sparse GPU Kernels for Deep Learning, SC 2020, section VII): three layers, 8 heads of
128, a hidden layer of 4096, sequences of 12,288 bytes. Its mask by blocks: causal, a band of 256, and of the other
blocks a share, with a probability that falls with their distance, other ones for each head. block_attention and
FlexAttention (compiled) have equal masks; dense attention (`scaled_dot_product_attention`) has the causal one alone, so
that it computes another function. Before anything is timed, each implementation's attention and its gradients are held
against dense attention in float32 with the same mask.

All share one model in bfloat16 by autocast. A training step is forward, backward and Adam; inference is forward.
They take turns, called from Python; times are medians of GPU time. Memory is the peak above what lies there before.
Raw output: ``attention_transformer.json``. Without a GPU there is neither time nor FlexAttention's gradient: a tiny
model is checked, and no figures are told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from benchmarks.attention_checks import Attend, attended, flex_implementation, largest_errors
from benchmarks.study import times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.integrations.torch import BlockMaskTensor, block_attention, masks

BAND = 256
SYMBOLS = 256
TOLERANCE = 2e-2  # of the largest element, in bfloat16
ROUNDS = 5
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and its mask; the defaults are the paper's, but for the batch."""

    tokens: int = 12288
    layers: int = 3
    heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    batch: int = 1
    block: int = 128
    share: float = 0.05

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


TINY = Sizes(tokens=96, layers=2, heads=2, head_dim=16, hidden=64, block=16, share=0.3)


class Layer(nn.Module):
    """Attention and two linear layers, each behind a norm."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.heads = s.heads
        self.norms = nn.ModuleList([nn.LayerNorm(s.width), nn.LayerNorm(s.width)])
        self.qkv, self.out = nn.Linear(s.width, 3 * s.width), nn.Linear(s.width, s.width)
        self.up, self.down = nn.Linear(s.width, s.hidden), nn.Linear(s.hidden, s.width)

    def forward(self, x: Tensor, attend: Attend) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        seen = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norms[1](x))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Predicts the next byte at each place."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, s.width)
        self.places = nn.Parameter(0.02 * torch.randn(s.tokens, s.width))
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.last = nn.Sequential(nn.LayerNorm(s.width), nn.Linear(s.width, SYMBOLS))

    def forward(self, symbols: Tensor, attend: Attend) -> Tensor:
        x = self.symbols(symbols) + self.places
        for layer in self.layers:
            x = layer(x, attend)
        return self.last(x)  # type: ignore[no-any-return]


def drawn_mask(s: Sizes, place: torch.device) -> BlockMaskTensor:
    """Causal masks, one for each head: the band's blocks, and a share of the others, the nearer the likelier."""
    shape, block = (s.tokens, s.tokens), (s.block, s.block)
    causal = masks.window_blocks(shape, block, causal=True, device=place)
    band = masks.window_blocks(shape, block, causal=True, window=min(BAND, s.tokens // 2), device=place)
    rows, columns = causal.layout.rows, causal.layout.columns
    generator = torch.Generator(place).manual_seed(0)
    far = causal.blocks() & ~band.blocks()
    distance = (torch.arange(rows, device=place)[:, None] - torch.arange(columns, device=place)).abs()
    likely = torch.where(far, 1 / distance.clamp(min=1), 0)
    likely *= s.share * far.sum() / likely.sum()
    chosen = torch.rand(s.heads, rows, columns, device=place, generator=generator) < likely
    live = chosen | band.blocks()
    return BlockMaskTensor.from_blocks(live, block, shape, density=float(live.float().mean()))


def implementations_of(mask: BlockMaskTensor, has_flex: bool) -> dict[str, Attend]:
    """Returns the implementations of attention, by name."""
    implementations: dict[str, Attend] = {
        "block_attention": lambda q, k, v: block_attention(q, k, v, mask, causal=True),
        "dense_causal": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
    }
    if has_flex:
        implementations["flex_attention"] = flex_implementation(mask, causal=True)
    return implementations


def checked(
    implementations: dict[str, Attend], mask: BlockMaskTensor, s: Sizes, place: torch.device
) -> dict[str, float]:
    """The largest error of each masked implementation's O and gradients, over the largest element.

    Raises:
        WrongResultError: it is too large.
    """
    torch.manual_seed(1)
    shape = (1, s.heads, s.tokens, s.head_dim)
    given = [torch.randn(shape, device=place, dtype=DTYPE) for _ in range(4)]
    found = {
        name: attended(attend, given) for name, attend in implementations.items() if name != "dense_causal"
    }
    triangle = torch.ones(mask.shape, dtype=torch.bool, device=place).tril()
    return largest_errors(
        found, given, lambda head: mask[head].expand() & triangle, range(s.heads), TOLERANCE
    )


class Study:
    """One model and its data, trained and asked by each implementation."""

    def __init__(self, s: Sizes, place: torch.device) -> None:
        torch.manual_seed(0)
        self.sizes, self.place = s, place
        self.model = Transformer(s).to(place)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        drawn = torch.randint(SYMBOLS, (s.batch, s.tokens + 1), device=place)
        self.inputs, self.targets = drawn[:, :-1], drawn[:, 1:]

    def step(self, attend: Attend) -> None:
        """Forward, backward and the optimizer."""
        with torch.enable_grad():
            loss = cross_entropy(self.ask(attend).float().flatten(0, 1), self.targets.flatten())
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def ask(self, attend: Attend) -> Tensor:
        """The forward pass."""
        with torch.autocast(self.place.type, DTYPE):
            return self.model(self.inputs, attend)  # type: ignore[no-any-return]

    def infer(self, attend: Attend) -> None:
        """The forward pass without gradients."""
        with torch.no_grad():
            self.ask(attend)

    def rows(self, implementations: dict[str, Attend]) -> list[dict[str, Any]]:
        """Measures training and inference; returns a row of each for each implementation."""
        rows = []
        for what, run in (("training", self.step), ("inference", self.infer)):
            memory = {name: self.peak_gib(run, attend) for name, attend in implementations.items()}
            us: list[float | None] = [None] * len(implementations)
            if self.place.type == "cuda":
                calls = [partial(run, attend) for attend in implementations.values()]
                us = [*times_in_turn(calls, rounds=ROUNDS)]
            tokens = self.sizes.batch * self.sizes.tokens
            for name, taken in zip(implementations, us, strict=True):
                speed = None if taken is None else round(tokens / taken * 1e6)
                ms = None if taken is None else round(taken / 1e3, 3)
                rows.append(
                    {
                        "what": what,
                        "attention": name,
                        "ms": ms,
                        "tokens_per_s": speed,
                        "peak_gib": memory[name],
                    }
                )
        return rows

    def peak_gib(self, run: Callable[[Attend], None], attend: Attend) -> float | None:
        """Memory of a call above what lies there before; the call before it has prepared all."""
        run(attend)
        if self.place.type != "cuda":
            return None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run(attend)
        torch.cuda.synchronize()
        return round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--tokens", type=int, help=f"default {Sizes.tokens}")
@click.option("--batch", type=int, help=f"default {Sizes.batch}")
@click.option("--block", type=int, help=f"side of a block; default {Sizes.block}")
@click.option("--share", type=float, help=f"of the blocks behind the band that live; default {Sizes.share}")
@click.option("--tiny", is_flag=True, help="a small model, for a test")
def main(name: str, tiny: bool, **given: Any) -> None:
    began, device = time.monotonic(), find_device(name)
    place = torch_place(device)
    sizes = replace(TINY if tiny else Sizes(), **{k: v for k, v in given.items() if v is not None})
    mask = drawn_mask(sizes, place)
    implementations = implementations_of(mask, has_flex=place.type == "cuda")
    errors = checked(implementations, mask, sizes, place)
    facts = asdict(sizes) | {"live_share": round(mask.density, 4), "errors": errors}
    rows = [row | facts for row in Study(sizes, place).rows(implementations)]
    seconds = round(time.monotonic() - began, 1)
    write_results(device, "attention_transformer", rows, dtype=str(DTYPE), l2="not flushed", seconds=seconds)
    click.echo(f"{mask}, {mask.density:.1%} of the blocks live; errors {errors}; {seconds} s")
    for row in rows:
        told = ", ".join(
            f"{key} {row[key]}" for key in ("ms", "tokens_per_s", "peak_gib") if row[key] is not None
        )
        click.echo(f"{row['what']:>10} {row['attention']:>16} {told or 'no figures without a GPU'}")


if __name__ == "__main__":
    main()
