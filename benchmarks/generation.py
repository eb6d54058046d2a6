"""Generation of tokens, end to end: a decoder of LLaMA-3-8B's sizes with pruned weights of 16, 8 and 4 bits.

    python -m benchmarks.generation                             # a minute
    python -m benchmarks.generation --device emulator --tiny    # a check without times

A step of all layers is one CUDA graph: RMS norms, rotary positions, attention of grouped queries over a paged cache
that holds a context already (`paged_attention`, in all models), gated networks, the dense projection onto the
vocabulary, and the token that is chosen. What lies between products is fused by `torch.compile`, in all
models alike. Linear layers are dense float16, sparse float16, and sparse codes; where the library humming is installed,
dense codes of 4 bits too. All have the same random weights, pruned at random places, or for 2:4 and 64:2:8 sparsity.
``--distinct`` packed copies of one block's weights take turns, larger than the L2 together; memory is that of all
layers, were none repeated. Models are made at once, before one is timed. Then a model's layers are held against
products in float32 with the weights that it stores, as far as it tells them, and the first logits are compared with the
dense model's of the same weights. Raw output: ``generation.json.xz``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from benchmarks.humming_layers import humming_layer, is_installed
from benchmarks.study import Rows, WrongResultError, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.integrations.torch import QuantizedLinear, SparseLinear, paged_attention
from sparsegen.operators import Quantization
from sparsegen.system.integers import ceil_div

PAGE = 64  # tokens
SPARE = 3  # steps that are not timed
TOLERANCE = 4e-3  # of a layer's result, of its largest element
THETA = 500000.0  # of rotary positions
CODES = ("e4m3", "int8")
GROUP = {"int4": 128}  # columns of a scale; a row has one scale else


@dataclass(frozen=True)
class Sizes:
    """A decoder: features, heads, heads of keys, features of the gated network, words, layers."""

    width: int = 4096
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 14336
    words: int = 128256
    layers: int = 32

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def linear(self) -> dict[str, tuple[int, int]]:
        """Sizes of a block's layers: out × in features."""
        keys = self.kv_heads * self.head_dim
        return {
            "qkv": (self.width + 2 * keys, self.width),
            "out": (self.width, self.width),
            "gate_up": (2 * self.hidden, self.width),
            "down": (self.width, self.hidden),
        }


TINY = Sizes(width=128, heads=2, kv_heads=1, hidden=192, words=256, layers=2)
Layers = dict[str, Callable[[Tensor], Tensor]]


class Cache:
    """Keys and values of all layers in pages, with a context of random ones."""

    def __init__(self, sizes: Sizes, batch: int, context: int, steps: int, place: torch.device) -> None:
        slots = ceil_div(context + steps + SPARE, PAGE)
        pool = (sizes.layers, batch * slots, PAGE, sizes.kv_heads, sizes.head_dim)
        self.k, self.v = (torch.randn(pool, device=place).half() for _ in range(2))
        self.table = torch.randperm(batch * slots, device=place).view(batch, slots).int()
        self.lengths = torch.full((batch,), context, dtype=torch.int32, device=place)


class Decoder:
    """Replaces the batch's last tokens in ``token`` by the next ones; all memory stays put, for a graph."""

    def __init__(self, sizes: Sizes, blocks: list[Layers], embedding: Tensor, cache: Cache) -> None:
        self.sizes, self.blocks, self.embedding, self.cache = sizes, blocks, embedding, cache
        self.token = torch.arange(len(cache.lengths), device=embedding.device)
        half = torch.arange(0, sizes.head_dim, 2, device=embedding.device) / sizes.head_dim
        self.frequencies = THETA**-half

    @torch.no_grad()
    def __call__(self) -> Tensor:
        cache, sizes = self.cache, self.sizes
        normed, placed, gated = fused(self.embedding.device)
        x, place = self.embedding[self.token], cache.lengths.long()
        slot = cache.table.gather(1, (place // PAGE)[:, None])[:, 0] * PAGE + place % PAGE
        angles = place[:, None, None] * self.frequencies
        sine = angles.sin().half()
        turns = angles.cos().half().repeat(1, 1, 2), torch.cat((-sine, sine), dim=-1)
        cache.lengths += 1
        added = torch.zeros_like(x)
        for number in range(sizes.layers):
            layers, k, v = self.blocks[number % len(self.blocks)], cache.k[number], cache.v[number]
            x, inputs = normed(x, added)
            qkv = layers["qkv"](inputs).view(len(x), -1, sizes.head_dim)
            q = placed(qkv, *turns, slot, k.view(-1, *k.shape[2:]), v.view(-1, *v.shape[2:]))
            seen = paged_attention(q[:, None], k, v, cache.table, cache.lengths)
            x, inputs = normed(x, layers["out"](seen.view(x.shape)))
            added = layers["down"](gated(layers["gate_up"](inputs)))
        logits = linear(normed(x, added)[1], self.embedding)
        self.token.copy_(logits.argmax(dim=1))
        return logits


def normed(x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and its RMS norm."""
    total = x + added
    return total, rms_norm(total, total.shape[1:])


def placed(qkv: Tensor, cosine: Tensor, sine: Tensor, slot: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Queries with rotary positions; keys with theirs, and values, go to their slots of the cache."""
    queries, keys, values = qkv.split((qkv.shape[1] - 2 * k.shape[1], k.shape[1], k.shape[1]), dim=1)
    k.index_put_((slot,), rotated(keys, cosine, sine))
    v.index_put_((slot,), values)
    return rotated(queries, cosine, sine)


def rotated(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The halves of each head turned by the angles of their place; the left one's sines are negative."""
    exchanged = heads.unflatten(-1, (2, -1)).flip(-2).flatten(-2)
    return heads * cosine + exchanged * sine


def gated(gate_up: Tensor) -> Tensor:
    """The gated network's hidden features."""
    gate, up = gate_up.chunk(2, dim=1)
    return silu(gate) * up


@lru_cache
def fused(place: torch.device) -> tuple[Callable[..., Any], ...]:
    """Returns what lies between products, compiled on a GPU."""
    functions = normed, placed, gated
    if place.type != "cuda":
        return functions
    return tuple(torch.compile(function, dynamic=False, fullgraph=True) for function in functions)


def drawn(rows: int, columns: int, place: torch.device) -> Tensor:
    """Random weights; rows are of different size, so that they keep different numbers when they are pruned."""
    scales = torch.exp(0.3 * torch.randn(rows, 1, device=place))
    return torch.randn(rows, columns, device=place) * scales * columns**-0.5


def pruned(weight: Tensor, sparsity: float) -> Tensor:
    """The weights without the smallest ones."""
    sample = weight.abs().flatten()[:: max(1, weight.numel() >> 22)]
    return torch.where(weight.abs() > sample.quantile(sparsity), weight, 0).half()


def of_chosen(weight: Tensor, alike: int, of: int) -> Tensor:
    """The two largest weights in four chosen of some columns, those that are the largest in rows that choose alike."""
    m, k = weight.shape
    groups = weight.view(m, k // of, of)
    sizes = weight.abs().view(m // alike, alike, k // of, of).sum(1)
    chosen = sizes.topk(4, dim=-1).indices.repeat_interleave(alike, 0)
    among = torch.zeros_like(groups).scatter_(-1, chosen, groups.gather(-1, chosen))
    kept = among.abs().topk(2, dim=-1).indices
    return torch.zeros_like(groups).scatter_(-1, kept, groups.gather(-1, kept)).view(m, k).half()


@dataclass(frozen=True)
class Made:
    """A layer: what computes it, bytes of its weight, and what tells the weight that it stores, if it is known."""

    call: Callable[[Tensor], Tensor]
    nbytes: int
    weight: Callable[[], Tensor] | None


Make = Callable[[int], Made]  # another copy of a layer, for so many tokens


@dataclass(frozen=True)
class Model:
    """Recipe of a model's layers.

    Attributes:
        make: from a pruned weight and the most tokens of a call; reads and rounds.
        pattern: rows that choose alike, and the columns that they choose from; None for random zeros.
    """

    make: Callable[[Tensor, int], Make]
    pattern: tuple[int, int] | None = None

    def from_full(self, weight: Tensor, sparsity: float, most: int) -> Make:
        """Prunes a weight and makes the layer."""
        kept = of_chosen(weight, *self.pattern) if self.pattern else pruned(weight, sparsity)
        return self.make(kept, most)

    def zeros(self, sparsity: float) -> float:
        return 1 - 2 / self.pattern[1] if self.pattern else sparsity


def dense(weight: Tensor, most: int) -> Make:
    def copied(tokens: int) -> Made:
        own = weight.clone()
        return Made(lambda x: linear(x, own), own.nbytes, lambda: weight)

    return copied


def sparse(weight: Tensor, most: int) -> Make:
    layer = sparse_layer(weight)
    return lambda tokens: _prepared(layer, tokens, lambda: weight)


def coded(value_type: str) -> Callable[[Tensor, int], Make]:
    """Sparse codes of this type."""
    rounding = Quantization.parse(value_type, GROUP.get(value_type, "row"))
    assert rounding is not None

    def make(weight: Tensor, most: int) -> Make:
        layer = QuantizedLinear.from_sparse(sparse_layer(weight), rounding)
        return lambda tokens: _prepared(layer, tokens, lambda: layer.to_dense().weight.detach())

    return make


def _prepared(layer: SparseLinear, tokens: int, stored: Callable[[], Tensor]) -> Made:
    prepared = layer.prepared(tokens)
    return Made(prepared, prepared.nbytes, stored)


def sparse_layer(weight: Tensor) -> SparseLinear:
    layer = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return SparseLinear.from_dense(layer)


def dense_codes(weight: Tensor, most: int) -> Make:
    """Dense weights of 4 bits in groups of 128, by humming, for as many tokens or fewer."""

    def made(tokens: int) -> Made:
        call, nbytes = humming_layer(weight, "humming_w4", most)
        return Made(call, nbytes, None)

    made(most)  # compiled
    return made


def models() -> dict[str, Model]:
    found = {"dense float16": Model(dense)}
    found |= {"dense int4 (humming)": Model(dense_codes)} if is_installed() else {}
    found |= {"sparse int4": Model(coded("int4"))}
    found |= {"64:2:8 int4": Model(coded("int4"), (64, 8)), "2:4 int4": Model(coded("int4"), (1, 4))}
    return (
        found | {"sparse float16": Model(sparse)} | {f"sparse {name}": Model(coded(name)) for name in CODES}
    )


def error_of(made: Made, tokens: int) -> float:
    """Largest error of a layer's result over its largest element; NaN if its weight is not known."""
    if made.weight is None:
        return float("nan")
    weight = made.weight()
    x = torch.randn(tokens, weight.shape[1], device=weight.device).half()
    exact = linear(x.float(), weight.float())
    return float((made.call(x) - exact).abs().max() / exact.abs().max())


def microseconds(step: Callable[[], Tensor], steps: int) -> float:
    """Time of one step, each by one graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    graph.replay()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1e6


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--sparsity", type=float, multiple=True, default=(0.6, 0.7), show_default=True)
@click.option("--batch", "batches", type=int, multiple=True, default=(1, 8), show_default=True)
@click.option("--context", default=4096, show_default=True, help="tokens in the cache before the first step")
@click.option("--steps", default=64, show_default=True, help="timed")
@click.option("--distinct", default=2, show_default=True, help="copies of a layer's weights that take turns")
@click.option("--model", "wanted", multiple=True, help="by default all: 'dense float16', 'sparse int4', …")
@click.option("--limit", default=500.0, show_default=True, help="begin no model later, seconds")
@click.option("--tiny", is_flag=True, help="a small model, for a test")
def main(name: str, wanted: tuple[str, ...], limit: float, tiny: bool, **given: Any) -> None:
    device, began = find_device(name), time.monotonic()
    place, sizes = torch_place(device), TINY if tiny else Sizes()
    if tiny:
        given |= {"sparsity": (0.6,), "batches": (2,), "context": 70, "steps": 1}
    chosen = {model: how for model, how in models().items() if not wanted or model in wanted}
    rows: Rows = []
    with ThreadPoolExecutor() as pool:
        for sparsity in given["sparsity"]:
            torch.manual_seed(0)
            weights = {key: drawn(*shape, place) for key, shape in sizes.linear.items()}
            embedding = torch.randn(sizes.words, sizes.width, device=place).half() * 0.02
            most = max(given["batches"])
            exact: dict[int, Tensor] = {}
            begun = {
                model: {key: pool.submit(how.from_full, w, sparsity, most) for key, w in weights.items()}
                for model, how in chosen.items()
                if how.pattern is None or sparsity == given["sparsity"][0]
            }
            for batch in given["batches"]:  # what lies between products is compiled while layers are made
                layers: Layers = {key: partial(linear, weight=w.half()) for key, w in weights.items()}
                cache = Cache(sizes, batch, given["context"], given["steps"], place)
                Decoder(sizes, [layers], embedding, cache)()
            makes = {
                model: {key: layer.result() for key, layer in one.items()} for model, one in begun.items()
            }
            click.echo(f"weights of {sparsity:.0%} zeros are there after {time.monotonic() - began:.1f} s")
            for model, one in makes.items():
                for batch in given["batches"]:
                    if time.monotonic() - began > limit:
                        click.echo(f"{limit:g} s are over")
                        return
                    copies = [
                        {key: pool.submit(make, batch) for key, make in one.items()}
                        for _ in range(given["distinct"])
                    ]
                    made = [{key: layer.result() for key, layer in block.items()} for block in copies]
                    row = {"model": model, "sparsity": chosen[model].zeros(sparsity), "batch": batch}
                    rows.append({**asdict(sizes), **row, "context": given["context"]})
                    same = exact if chosen[model].pattern is None else None
                    rows[-1] |= measured(
                        made, sizes, batch, embedding, same, given["context"], given["steps"]
                    )
                    speed = f"{batch / rows[-1]['us'] * 1e6:7.0f} tokens/s, " if "us" in rows[-1] else ""
                    nbytes, zeros = rows[-1]["linear_bytes"] / 2**30, rows[-1]["sparsity"]
                    told = f"{zeros:.0%} zeros, batch {batch}: {model:20} {speed}{nbytes:5.2f} GiB"
                    click.echo(f"{told}, after {time.monotonic() - began:.1f} s")
                    write_results(device, "generation", rows, dtype="float16", l2="as the steps leave it")


def measured(
    made: list[dict[str, Made]],
    sizes: Sizes,
    batch: int,
    embedding: Tensor,
    exact: dict[int, Tensor] | None,
    context: int,
    steps: int,
) -> dict[str, Any]:
    """A model's errors, bytes and, on a GPU, time; the first logits of a batch become the exact ones, if such are kept.

    Raises:
        WrongResultError: a layer's result is off.
    """
    errors = {key: error_of(layer, batch) for key, layer in made[0].items()}
    if any(error > TOLERANCE for error in errors.values()):
        raise WrongResultError(str(errors))
    torch.manual_seed(1)
    cache = Cache(sizes, batch, context, steps, embedding.device)
    blocks: list[Layers] = [{key: layer.call for key, layer in one.items()} for one in made]
    decoder = Decoder(sizes, blocks, embedding, cache)
    first = decoder().float()
    of_dense = None if exact is None else exact.setdefault(batch, first)
    nbytes = sum(layer.nbytes for one in made for layer in one.values())
    found = {
        "errors": errors,
        "linear_bytes": nbytes * sizes.layers // len(made),
        "cache_bytes": 2 * cache.k.nbytes,
        "embedding_bytes": embedding.nbytes,
        "logits_error": None if of_dense is None else float((first - of_dense).norm() / of_dense.norm()),
    }
    return found | ({"us": microseconds(decoder, steps)} if embedding.device.type == "cuda" else {})


if __name__ == "__main__":
    main()
