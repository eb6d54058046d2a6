"""Check of decisions between ours and dense: the default beside both, from Python and in graphs.

    python -m benchmarks.races [--again] [--only products]

Needs a GPU. Products with masks of blocks (float16, blocks of 128 × 128, half of them live), masked convolutions
(float16, channels last, 3 × 3 filters, blocks of 16 × 16) with the mask as bools, and layers behind structured dropout,
forward and backward, beside `torch.nn.Dropout` and `torch.nn.Linear`. Decisions are recorded in the database that
``SPARSEGEN_DB`` names: given again, the command races nothing, as ``--again`` requires. Times are medians by the one
clock, with a cold L2: from Python of calls behind each other, in a graph of its replay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil
from typing import Any

import click
import torch
from torch import nn

from benchmarks.study import times_in_turn, write_results
from sparsegen.backends import find_device
from sparsegen.integrations.torch import (
    DropoutLinear,
    draw_block_mask,
    dsd,
    dsd_transposed,
    masked_conv2d,
    sdd,
)
from sparsegen.measure import race
from sparsegen.measure.decision import decisions
from sparsegen.measure.l2 import L2
from sparsegen.tuning_db.records import Called

CONVOLUTIONS = ((16, 64, 64, 160, 1), (2, 64, 128, 384, 2), (8, 256, 256, 96, 1))  # images ... stride
DROPOUTS = ((8192, 768, 3072), (4096, 1024, 4096), (2048, 512, 512))  # tokens, in and out features
PRODUCTS = (
    (6144, 3072, 5120),
    (3000, 2504, 1720),
    (1536, 1536, 6144),
    (512, 512, 512),
)  # tokens, in, out features
BLOCK, CALLS = 16, 8
WAYS = "auto", "never", "always"  # of dense

Run = Callable[[], Any]


def graph_of(run: Run) -> Run:
    """The replay of a graph of a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay


def compared(runs: dict[str, Run]) -> dict[str, Any]:
    """Microseconds of each, and those of the default over those of the fastest other one."""
    row: dict[str, Any] = {}
    for _ in range(3):
        for run in runs.values():
            run()
    from_host = times_in_turn(list(runs.values()), called=Called.HOST, l2=L2.COLD, calls=CALLS)
    in_graph = times_in_turn([graph_of(run) for run in runs.values()], l2=L2.COLD)
    for way, times in (("host", from_host), ("graph", in_graph)):
        row |= {f"{name}_{way}_us": round(us, 1) for name, us in zip(runs, times, strict=True)}
        own, *others = times
        row[f"over_fastest_{way}"] = round(own / min(others), 3)
    return row


def product(case: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row of each of the three products of a linear layer."""
    tokens, ins, outs = case
    shared: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    x, weight, d = (torch.randn(shape, **shared) for shape in ((tokens, ins), (outs, ins), (tokens, outs)))
    mask = draw_block_mask((tokens, ins), 128, 0.5, device="cuda")
    for name, call in (
        ("dsd", partial(dsd, x, weight, mask)),
        ("dsd_transposed", partial(dsd_transposed, x, d, mask)),
        ("sdd", partial(sdd, d, weight, mask)),
    ):
        found = compared({dense: partial(call, dense=dense) for dense in WAYS})
        yield {"product": name, "sizes": "x".join(map(str, case)), **found}


def convolution(case: Sequence[int], density: float) -> dict[str, Any]:
    """A row of a masked convolution."""
    images, channels, filters, side, stride = case
    last, half = torch.channels_last, torch.float16
    x = torch.randn(images, channels, side, side, device="cuda", dtype=half).to(memory_format=last)
    weight = torch.randn(filters, channels, 3, 3, device="cuda", dtype=half).to(memory_format=last)
    blocks = ceil(ceil(side / stride) / BLOCK)
    mask = torch.rand(images, blocks, blocks, device="cuda") < density
    call = partial(masked_conv2d, x, weight, mask, block=BLOCK, stride=stride, padding=1, density=density)
    with torch.no_grad():
        found = compared({dense: partial(call, dense=dense) for dense in WAYS})
    return {"convolution": "x".join(map(str, case)), "density": density, **found}


def dropout(case: Sequence[int], p: float) -> dict[str, Any]:
    """A row of a training step of a layer behind structured dropout."""
    tokens, ins, outs = case
    shared: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    x, dy = torch.randn(tokens, ins, **shared).requires_grad_(), torch.randn(tokens, outs, **shared)
    layers = {
        "layer": DropoutLinear(ins, outs, p, 128, **shared),
        "dropout_linear": nn.Sequential(nn.Dropout(p), nn.Linear(ins, outs, **shared)),
    }

    def step(layer: nn.Module) -> Any:
        return torch.autograd.grad(layer(x), (x, *layer.parameters()), dy)

    return {"dropout": "x".join(map(str, case)), "p": p} | compared(
        {name: partial(step, layer) for name, layer in layers.items()}
    )


ROWS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "products": lambda: (row for case in PRODUCTS for row in product(case)),
    "convolutions": lambda: (convolution(case, density) for case in CONVOLUTIONS for density in (0.2, 0.5)),
    "dropouts": lambda: (dropout(case, p) for case in DROPOUTS for p in (0.1, 0.3, 0.5)),
}


@click.command()
@click.option("--again", is_flag=True, help="Fail if anything is raced: all is in the database.")
@click.option(
    "--only", type=click.Choice(list(ROWS)), multiple=True, help="These rows alone; may be repeated."
)
def main(again: bool, only: tuple[str, ...]) -> None:
    raced, run = [], race.Race.run

    def counted(self: race.Race, *given: Any, **named: Any) -> Any:
        raced.append(self)
        return run(self, *given, **named)

    race.Race.run = counted  # type: ignore[method-assign]
    rows = []
    for kind in only or ROWS:
        for row in ROWS[kind]():
            rows.append(row)
            click.echo(row)
    for task, problem, decision in decisions():
        click.echo(f"{task} {problem}: {decision.why}")
    click.echo(f"{len(raced)} races")
    write_results(find_device("cuda"), "races", rows, races=len(raced))
    if again and raced:
        sys.exit("what was raced before is raced again")


if __name__ == "__main__":
    main()
