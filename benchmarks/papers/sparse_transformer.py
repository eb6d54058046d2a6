"""A sparse Transformer end to end: tokens a second, memory, and bits per byte, beside dense causal attention.

    python -m benchmarks.papers.sparse_transformer --data DATA

The model is that of Gale et al. (Sparse GPU Kernels for Deep Learning, SC 2020, section VII-C): three layers, 8 heads
of 128, a hidden layer of 4096, sequences of 12,288 bytes; the mask has a dense band of 256 and 95 % zeros outside of
it, the nearer the likelier, and is the same for all heads and layers. ``sparse`` is that (`SparseAttention`).
``blocks`` and ``flex`` have a mask of blocks with the same band, one for each head (`block_attention` and
FlexAttention). ``dense`` is causal (`scaled_dot_product_attention`), and computes another function. Before anything is
timed, the attention of each masked way and its gradients are held against dense attention in float32 with the same
mask.

All ways share one model, by autocast in 16 bits. Inference is timed called from Python, ways in turn; so is a training
step (forward, backward, Adam). Memory is the peak above what lies there before. Then the model trains with each way,
from the same weights and on the same excerpts, and bits per byte of unseen text are told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from benchmarks.attention_checks import Attend, attended, flex_implementation, largest_errors
from benchmarks.markdown import NONE, figure, table, times
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import Claim, Document, Point, Setting, Study, outcome, result
from benchmarks.study import times_in_turn
from sparsegen.integrations.torch import BlockMaskTensor, SparseAttention, block_attention, masks
from sparsegen.masks import band
from sparsegen.matrix.csr import CsrMatrix

BAND = 256
SYMBOLS = 256
TOLERANCE = {torch.float32: 2e-3, torch.float16: 5e-3, torch.bfloat16: 2e-2}  # of the largest element
ROUNDS = 5
TRAINED = ("dense", "sparse", "blocks")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and its masks; the defaults are the paper's, but for the batch."""

    tokens: int = 12288
    layers: int = 3
    heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    batch: int = 1
    block: int = 128
    sparsity: float = 0.95
    steps: int = 400
    tested: int = 8

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def band(self) -> int:
        return min(BAND, self.tokens // 4)


TINY = Sizes(96, 2, 2, 16, 64, 1, 16, 0.7, 2, 1)


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


def drawn_blocks(s: Sizes, place: torch.device) -> BlockMaskTensor:
    """Causal masks, one for each head: the band's blocks, and a share of the others, the nearer the likelier."""
    shape, block = (s.tokens, s.tokens), (s.block, s.block)
    causal = masks.window_blocks(shape, block, causal=True, device=place)
    near = masks.window_blocks(shape, block, causal=True, window=s.band, device=place)
    rows, columns = causal.layout.rows, causal.layout.columns
    generator = torch.Generator(place).manual_seed(0)
    far = causal.blocks() & ~near.blocks()
    distance = (torch.arange(rows, device=place)[:, None] - torch.arange(columns, device=place)).abs()
    likely = torch.where(far, 1 / distance.clamp(min=1), 0)
    likely *= (1 - s.sparsity) * far.sum() / likely.sum()
    chosen = torch.rand(s.heads, rows, columns, device=place, generator=generator) < likely
    live = chosen | near.blocks()
    return BlockMaskTensor.from_blocks(live, block, shape, density=float(live.float().mean()))


class Ways:
    """Implementations of attention by name, on masks of its own kind."""

    def __init__(self, s: Sizes, place: torch.device) -> None:
        self.sizes, self.place = s, place
        self.mask: CsrMatrix = band(s.tokens, s.band, s.sparsity)
        self.blocks = drawn_blocks(s, place)
        sparse = SparseAttention(self.mask, s.heads, s.head_dim, device=place)
        self.by_name: dict[str, Attend] = {
            "dense": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
            "sparse": lambda q, k, v: sparse(q, k, v),
            "blocks": lambda q, k, v: block_attention(q, k, v, self.blocks, causal=True),
        }
        if place.type == "cuda":
            self.by_name["flex"] = flex_implementation(self.blocks, causal=True)

    def of(self, dtype: torch.dtype) -> dict[str, Attend]:
        """The implementations for a dtype: masks of blocks are for 16 bits."""
        return {
            name: way
            for name, way in self.by_name.items()
            if dtype.itemsize == 2 or name in ("dense", "sparse")
        }

    def checked(self, dtype: torch.dtype) -> dict[str, float]:
        """The largest error of each masked way's O and gradients, over the largest element.

        Raises:
            WrongResultError: it is too large.
        """
        s = self.sizes
        torch.manual_seed(1)
        given = [
            torch.randn(1, s.heads, s.tokens, s.head_dim, device=self.place, dtype=dtype) for _ in range(4)
        ]
        triangle = torch.ones(s.tokens, s.tokens, dtype=torch.bool, device=self.place).tril()
        places = torch.from_numpy(self.mask.to_scipy().toarray() != 0).to(self.place)
        errors: dict[str, float] = {}
        for name, way in self.of(dtype).items():
            if name != "dense":
                seen: Callable[[int], Tensor] = (
                    (lambda _: places)
                    if name == "sparse"
                    else (lambda head: self.blocks[head].expand() & triangle)
                )
                found = {name: attended(way, given)}
                errors |= largest_errors(found, given, seen, range(s.heads), TOLERANCE[dtype])
        return errors


class Model:
    """One model and its text, timed, measured and trained with each way."""

    def __init__(self, s: Sizes, setting: Setting, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.sizes, self.place, self.dtype = s, setting.place, dtype
        self.is_timed = setting.is_timed
        self.model = Transformer(s).to(self.place)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4)
        learnt, unseen, self.data = setting.data.text()
        self.learnt, self.unseen = (
            torch.from_numpy(part.astype(np.int64)).to(self.place) for part in (learnt, unseen)
        )

    def excerpts(self, text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        found = text[starts[:, None].to(self.place) + torch.arange(self.sizes.tokens + 1, device=self.place)]
        return found[:, :-1], found[:, 1:]

    def drawn(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        last = len(self.learnt) - self.sizes.tokens - 1
        return self.excerpts(self.learnt, torch.randint(last, (self.sizes.batch,), generator=generator))

    def ask(self, inputs: Tensor, attend: Attend) -> Tensor:
        """The forward pass."""
        casts = self.dtype is not torch.float32
        with torch.autocast(self.place.type, self.dtype) if casts else nullcontext():
            return self.model(inputs, attend)  # type: ignore[no-any-return]

    def loss(self, batch: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        return cross_entropy(self.ask(batch[0], attend).float().flatten(0, 1), batch[1].flatten())

    def step(self, batch: tuple[Tensor, Tensor], attend: Attend) -> None:
        """Forward, backward and the optimizer."""
        with torch.enable_grad():
            self.loss(batch, attend).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def infer(self, batch: tuple[Tensor, Tensor], attend: Attend) -> None:
        with torch.no_grad():
            self.ask(batch[0], attend)

    def timed(self, ways: dict[str, Attend], run: Callable[..., None]) -> dict[str, Any]:
        """Milliseconds, tokens a second and peak memory of each way; none without a GPU, where each is called once."""
        batch = self.drawn(torch.Generator().manual_seed(0))
        memory = {name: self.peak_gib(partial(run, batch, way)) for name, way in ways.items()}
        if not self.is_timed:
            return {name: {"ms": None, "tokens_per_s": None, "peak_gib": None} for name in ways}
        us = times_in_turn([partial(run, batch, way) for way in ways.values()], rounds=ROUNDS)
        tokens = self.sizes.batch * self.sizes.tokens
        return {
            name: {
                "ms": round(one / 1e3, 3),
                "tokens_per_s": round(tokens / one * 1e6),
                "peak_gib": memory[name],
            }
            for name, one in zip(ways, us, strict=True)
        }

    def peak_gib(self, run: Callable[[], None]) -> float | None:
        """Memory of a call above what lies there before; the call before it has prepared all."""
        run()
        if not self.is_timed:
            return None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)

    def trained(self, attend: Attend) -> float:
        """Bits per byte of unseen text after training."""
        generator = torch.Generator().manual_seed(2)
        for _ in range(self.sizes.steps):
            self.step(self.drawn(generator), attend)
        last = len(self.unseen) - self.sizes.tokens - 1
        starts = torch.linspace(0, last, self.sizes.tested).long()
        with torch.no_grad():
            losses = [float(self.loss(self.excerpts(self.unseen, one[None]), attend)) for one in starts]
        return sum(losses) / len(losses) / math.log(2)


def step_seconds(s: Sizes, dtype: torch.dtype) -> float:
    """Seconds of a training step with dense attention: three times the products of a forward pass."""
    linear = 2 * s.batch * s.tokens * s.layers * (4 * s.width**2 + 2 * s.width * s.hidden)
    attention = 2 * s.batch * s.layers * s.tokens**2 * s.width  # half of both products, which is causal
    work = 3 * (linear + 2 * attention)  # fused attention reaches half of the rate
    return seconds(float32=work, launches=500) if dtype is torch.float32 else seconds(half=work, launches=500)


def check_seconds(s: Sizes, dtype: torch.dtype) -> float:
    """Seconds of the masks, of kernels (FlexAttention's in 16 bits take longest), and of float32 references."""
    masked = 1 if dtype is torch.float32 else 3
    references = masked * seconds(float32=3 * 4 * s.heads * s.tokens**2 * s.head_dim)
    return 8 + references + seconds(compiled=3 * masked) + (25 if masked > 1 else 0)


class SparseTransformer(Study):
    name = "sparse_transformer"
    title = "Sputnik: sparse Transformer"
    paper = "T. Gale, M. Zaharia, C. Young, E. Elsen: Sparse GPU Kernels for Deep Learning, SC 2020, section VII-C"
    gpu = "V100, fp32"
    claims = (
        Claim("tokens a second, inference, dense and sparse", "32,477 and 67,857 (2.09 ×)", "Table III"),
        Claim("memory, dense and sparse", "9.88 and 0.77 GB (12.8 ×)", "Table III"),
        Claim("bits per dimension, dense and sparse", "3.76 and 3.77", "Table III"),
    )
    differs = (
        "The text is Shakespeare by bytes, not ImageNet 64 × 64 by bytes, and training is short.",
        "Dense is PyTorch's fused attention, which skips the upper triangle and stores no scores; the paper's dense "
        "model stores them.",
        "The batch is 1, not 8. Linear layers are dense in both, as in the paper.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        sizes = TINY if setting.tiny else Sizes()
        torch.backends.cuda.matmul.allow_tf32 = False
        ways = cache(lambda: Ways(sizes, setting.place))
        points = [*self._timed(sizes, setting, ways)]
        yield from points[:2]  # inference in float32, as in the paper, and in float16
        for name in TRAINED:

            def trained(name: str = name) -> dict[str, Any]:
                model = Model(sizes, setting, torch.bfloat16)
                bits = round(model.trained(ways().by_name[name]), 4)
                return {"trained": name, "data": model.data, "bits_per_byte": bits, "sizes": asdict(sizes)}

            expected = 10 + sizes.steps * step_seconds(sizes, torch.bfloat16)
            yield Point(f"trained {name}", trained, expected, is_timed=False)
        yield from points[2:]

    def _timed(self, sizes: Sizes, setting: Setting, ways: Callable[[], Ways]) -> Iterator[Point]:
        for what in ("inference", "training"):
            for dtype in (torch.float32, torch.float16, torch.bfloat16):

                def timed(dtype: torch.dtype = dtype, what: str = what) -> dict[str, Any]:
                    errors = ways().checked(dtype)
                    model = Model(sizes, setting, dtype)
                    run = model.infer if what == "inference" else model.step
                    told = {"what": what, "dtype": str(dtype).removeprefix("torch."), "errors": errors}
                    live = {"sparse": ways().mask.nnz / sizes.tokens**2, "blocks": ways().blocks.density}
                    return told | {
                        "live": live,
                        "ways": model.timed(ways().of(dtype), run),
                        "sizes": asdict(sizes),
                    }

                calls = (2 + 2 * ROUNDS) * len(TRAINED)
                expected = check_seconds(sizes, dtype) + calls * step_seconds(sizes, dtype)
                yield Point(f"{what}, {str(dtype).removeprefix('torch.')}", timed, expected)

    def table(self, document: Document) -> str:
        lines = []
        for row in document["rows"]:
            for name, way in row.get("ways", {}).items():
                dense = row["ways"]["dense"]["tokens_per_s"]
                speed = way["tokens_per_s"]
                over = speed / dense if speed and dense else None
                beside = NONE if name == "dense" else outcome(over)
                lines.append(
                    [
                        *(f"{row['what']}, {row['dtype']}, {name}", speed or NONE, times(over), beside),
                        figure(way["peak_gib"]),
                    ]
                )
        trained = [
            [row["trained"], f"{row['bits_per_byte']:.4f}"] for row in document["rows"] if "trained" in row
        ]
        first = table(["12,288 tokens", "tokens/s", "over dense", "beside it", "peak GiB"], lines)
        return f"{first}\n\n{table(['trained with', 'bits per byte'], trained)}" if trained else first

    def results(self, document: Document) -> Sequence[str]:
        found = []
        for row in document["rows"]:
            ways = row.get("ways", {})
            dense = ways.get("dense", {}).get("tokens_per_s")
            for name in ("sparse", "blocks"):
                speed = ways.get(name, {}).get("tokens_per_s")
                if speed and dense:
                    told = f"{row['what']}, {row['dtype']}"
                    found.append(result(f"{name} over dense, {told}", speed / dense))
                    memory = ways["dense"]["peak_gib"], ways[name]["peak_gib"]
                    if all(memory):
                        found.append(
                            result(f"memory of dense over that of {name}, {told}", memory[0] / memory[1])
                        )
        return found

    def why(self, document: Document, name: str) -> str:
        if name.startswith("memory"):
            return "dense is fused attention, which stores no scores either"
        row = next(r for r in document["rows"] if f"{r.get('what')}, {r.get('dtype')}" in name)
        live = {way: row.get("live", {}).get(way) for way in ("sparse", "blocks")}
        if "sparse" in name and row["dtype"] != "float32" and live["sparse"] is not None:
            return (
                "dense attention is fused on tensor cores, and ours visits every causal tile of 64 × 64, as each holds "
                f"some of the {live['sparse']:.1%} that live: only empty ones are skipped"
            )
        return "dense attention is fused, and what ours skips takes less time than what it does beside"


STUDY = SparseTransformer()
main = STUDY.command()

if __name__ == "__main__":
    main()
