"""Gradients of masked convolutions in PyTorch beside those of dense ones: `masked_conv2d` and cuDNN, each alone.

    python -m benchmarks.masked_gradients

A gradient by x, by the weights and by the bias, each of its own call of autograd in a CUDA graph: float16, channels
last, filters of 3 × 3, blocks of 16 × 16. What is timed is what a user's backward pass runs, with the zeros that it
writes. Each masked gradient is compared with the dense one of the incoming gradient's live pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
import torch
from torch.nn import functional

from benchmarks.study import times_in_turn, write_results
from sparsegen.backends import find_device
from sparsegen.bench.patterns import generators
from sparsegen.integrations.torch import masked_conv2d
from sparsegen.system.integers import ceil_div

BLOCK = 16
ROUGH = 2e-2  # of the largest element: sums of 16-bit factors in another order, rounded to 16 bits


def captured(call: Callable[[], Any]) -> tuple[Any, Any]:
    """A CUDA graph of a call on the current stream, and what it writes.

    Autograd launches a gradient on the stream of its forward call, so that both must have run on this one.
    """
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        found = call()
    return graph, found


def gradient(y: Any, by: Any, incoming: Any) -> Any:
    """What autograd runs."""
    return torch.autograd.grad(y, by, incoming, retain_graph=True)[0]


def measured(channels: int, images: int, side: int, sparsity: float, blobs: bool) -> dict[str, Any]:
    """Microseconds of each gradient."""
    generator = torch.Generator("cuda").manual_seed(0)
    last = torch.channels_last

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=generator).half()

    x, w = drawn(images, channels, side, side).to(memory_format=last), drawn(channels, channels, 3, 3)
    w, bias = (w / (9 * channels) ** 0.5).to(memory_format=last), drawn(channels)
    dy = drawn(images, channels, side, side).to(memory_format=last) / 64
    blocks = ceil_div(side, BLOCK)
    mask = torch.rand(images, blocks, blocks, device="cuda", generator=generator) >= sparsity
    if blobs:
        shape = (images, blocks, blocks)
        mask = torch.from_numpy(generators.blobs(shape, 8, 1 - sparsity, 0)).cuda()
    live = mask[:, None].repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)[:, :, :side, :side]
    zeroed = torch.where(live, dy, 0).contiguous(memory_format=last)
    row: dict[str, Any] = {"channels": channels, "images": images, "side": side}
    row |= {"sparsity": sparsity, "blobs": blobs}
    for name, place in (("x", 0), ("weights", 1), ("bias", 2)):
        given = [x, w, bias]
        given[place] = given[place].detach().requires_grad_()
        masked = masked_conv2d(
            *given[:2], mask, given[2], block=BLOCK, padding=1, density=1 - sparsity, dense="never"
        )
        dense = functional.conv2d(*given, padding=1)
        found = {}
        for way, y, incoming in (("masked", masked, dy), ("cudnn", dense, zeroed)):
            graph, of_graph = captured(partial(gradient, y, given[place], incoming))
            row[f"{name}_{way}_us"] = times_in_turn([graph.replay])[0]
            found[way] = of_graph.float()
        off = (found["masked"] - found["cudnn"]).abs().max() / found["cudnn"].abs().max()
        row[f"{name}_off"] = float(off)
        if not off <= ROUGH:
            raise click.ClickException(
                f"the gradient by {name} is off by {float(off):.3g} of the largest element"
            )
    return row


@click.command()
@click.option("--channels", default=128, show_default=True)
@click.option("--images", default=8, show_default=True)
@click.option("--side", default=512, show_default=True, help="Rows and columns of an image.")
@click.option("--sparsity", "sparsities", multiple=True, type=float, default=(0.9, 0.5), show_default=True)
def main(channels: int, images: int, side: int, sparsities: Sequence[float]) -> None:
    torch.backends.cudnn.benchmark = True
    rows = []
    with torch.cuda.stream(torch.cuda.Stream()):  # the default one cannot be captured
        for sparsity in sparsities:
            for blobs in (False, True):
                rows.append(measured(channels, images, side, sparsity, blobs))
                click.echo("  ".join(f"{k} {v:.4g}" for k, v in rows[-1].items()))
    write_results(find_device("cuda"), "masked_gradients", rows)


if __name__ == "__main__":
    main()
