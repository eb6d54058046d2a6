"""A small decoder-only transformer with random, pruned weights generates tokens: sparse layers against dense ones.

python examples/decode.py --sparsity 0.6 --batch 8

Both models have the same pruned weights, the dense one with their zeros, and run as one CUDA graph for each token.
Embedding, attention and the last projection are dense in both. Needs PyTorch and an NVIDIA GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch. examples/quickstart.py does not.")

from sparsegen.integrations.torch import SparseLinear

WIDTH, HEADS, HIDDEN, VOCABULARY = 4096, 32, 11008, 32000


class Block(nn.Module):
    """Attention over all tokens so far and a gated network, for one new token of each sequence."""

    def __init__(self, layers: dict[str, nn.Module], kept: Tensor) -> None:
        super().__init__()
        self.layers, self.kept = nn.ModuleDict(layers), kept

    def forward(self, x: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        qkv = self.layers["qkv"](rms_norm(x, x.shape[1:]))
        query, *new = qkv.view(len(x), 3, HEADS, 1, -1).unbind(1)
        self.kept.index_copy_(3, position, torch.stack(new))
        seen = scaled_dot_product_attention(query, *self.kept, attn_mask=mask)
        x = x + self.layers["out"](seen.reshape(x.shape))
        gate, up = self.layers["gate_up"](rms_norm(x, x.shape[1:])).chunk(2, dim=1)
        return x + self.layers["down"](silu(gate) * up)


class Decoder(nn.Module):
    """Reads the batch's last tokens from ``token`` and puts the next ones there: memory stays put, for a graph."""

    def __init__(self, blocks: list[Block], embedding: Tensor, batch: int, length: int) -> None:
        super().__init__()
        self.blocks, self.embedding = nn.ModuleList(blocks), embedding
        self.token = torch.arange(batch, device=embedding.device)
        self.position = torch.zeros(1, dtype=torch.long, device=embedding.device)
        self.places = torch.arange(length, device=embedding.device)

    @torch.no_grad()
    def forward(self) -> Tensor:
        x, mask = self.embedding[self.token], (self.places <= self.position)[None, :]
        for block in self.blocks:
            x = block(x, self.position, mask)
        logits = linear(rms_norm(x, x.shape[1:]), self.embedding)
        self.token.copy_(logits.argmax(dim=1))
        self.position += 1
        return logits


def pruned(rows: int, columns: int, sparsity: float, device: str) -> Tensor:
    """Random weights without the smallest ones; rows are of different size, so that they keep different numbers."""
    scales = torch.exp(0.3 * torch.randn(rows, 1, device=device))
    weight = torch.randn(rows, columns, device=device) * scales * columns**-0.5
    sample = weight.abs().flatten()[:: max(1, weight.numel() >> 22)]
    return torch.where(weight.abs() > sample.quantile(sparsity), weight, 0).half()


def dense_layer(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def nbytes_of(layer: nn.Module) -> int:
    """Bytes of its weight."""
    return layer.weight.nbytes if isinstance(layer, nn.Linear) else layer.nbytes


def seconds_per_step(model: Decoder, steps: int) -> tuple[float, Tensor]:
    """Times a step, with one graph for each; also returns the logits of the first one."""
    first = model().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps, first


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens per second and memory, sparse against dense.")
    parser.add_argument("--sparsity", type=float, default=0.6)
    for name, default in (("--batch", 8), ("--tokens", 200), ("--layers", 4)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--on-miss", default="nearest", help="nearest, default or tune")
    parser.add_argument("--dense", default="auto", help="auto, never or always")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This example needs an NVIDIA GPU that PyTorch can use; quickstart.py needs none.")
    torch.manual_seed(0)
    attention = {"qkv": (3 * WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
    sizes = attention | {"gate_up": (2 * HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}
    kept_shape = (2, given.batch, HEADS, given.tokens + 2, WIDTH // HEADS)  # keys and values
    weights = [{n: pruned(*s, given.sparsity, "cuda") for n, s in sizes.items()} for _ in range(given.layers)]
    embedding = torch.randn(VOCABULARY, WIDTH, device="cuda").half() * 0.02
    ways: dict[str, Callable[[Tensor], nn.Module]] = {"dense": dense_layer}
    ways["sparse"] = lambda weight: SparseLinear.from_dense(dense_layer(weight)).prepared(
        given.batch, on_miss=given.on_miss, dense=given.dense
    )
    seconds, first = {}, {}
    for name, way in ways.items():
        began = time.perf_counter()
        layers = [{key: way(weight) for key, weight in one.items()} for one in weights]
        prepared = time.perf_counter() - began
        gib = sum(nbytes_of(layer) for one in layers for layer in one.values()) / 2**30
        blocks = [Block(one, torch.zeros(kept_shape, device="cuda").half()) for one in layers]
        decoder = Decoder(blocks, embedding, given.batch, given.tokens + 2)
        seconds[name], first[name] = seconds_per_step(decoder, given.tokens)
        speed = given.batch / seconds[name]
        print(f"{name:6} {speed:6.0f} tokens/s, pruned layers {gib:.2f} GiB, prepared in {prepared:.1f} s")
    difference = (first["sparse"] - first["dense"]).abs().max() / first["dense"].abs().max()
    speedup = seconds["dense"] / seconds["sparse"]
    print(f"{speedup:.2f} × as fast; first logits within {difference:.1e} of the largest")


if __name__ == "__main__":
    main()
