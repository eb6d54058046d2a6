"""Does structured dropout train as dropout does? The three networks of examples/structured_dropout.py, seed by seed.

    python -m benchmarks.dropout_training                       # begins no network after two minutes (--limit)
    python -m benchmarks.dropout_training --network gpt --p 0.5 --always-masked
    python -m benchmarks.dropout_training --plot                # draws what the result file holds (matplotlib)
    python -m benchmarks.dropout_training --device emulator --tiny

Each network trains with dropout before dense layers and with structured dropout, from the same initial weights for each
seed, in bfloat16 under autocast; on a GPU a step is a CUDA graph. Told are the loss on unseen data with its spread over
the seeds, the difference in units of that spread, and the time of a step. The layers run dense products where these are
faster, unless ``--always-masked``; ``choices`` says for how many problems masked products ran in graphs.
Raw output: ``dropout_training.json.xz``, with the losses of all steps; the plot is ``dropout_training.svg`` beside it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import torch

from benchmarks import pictures
from benchmarks.study import known_rows, result_file, torch_place, write_results
from examples import structured_dropout as example
from sparsegen.backends import find_device
from sparsegen.integrations.torch.blocks import dropout
from sparsegen.measure.decision import decisions

NAME = "dropout_training"
NETWORKS = ("mlp", "vit", "gpt")
BATCHES = {"mlp": 4096, "vit": 128, "gpt": 16}  # images or excerpts of a step; 4,000 to 6,000 tokens
TINY_BATCHES = {"mlp": 64, "vit": 4, "gpt": 1}
SMOOTHED = 10  # steps over which the plot averages
DRAWN = 4  # of so many steps the plot has one


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--network", "networks", multiple=True, type=click.Choice(NETWORKS), help="default: all")
@click.option("--width", default=1024, show_default=True)
@click.option("--depth", default=2, show_default=True)
@click.option("--steps", default=200, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--p", default=0.2, show_default=True, help="probability to drop")
@click.option("--block", default="128", show_default=True)
@click.option("--always-masked", is_flag=True, help="masked products also where dense ones are faster")
@click.option("--tiny", is_flag=True, help="small networks, for a test")
@click.option("--plot", "draws", is_flag=True, help="draw what the result file holds, and train nothing")
@click.option("--limit", default=120.0, help="begin no network later, seconds")
def main(
    name: str,
    networks: tuple[str, ...],
    width: int,
    depth: int,
    steps: int,
    seeds: int,
    p: float,
    block: str,
    always_masked: bool,
    tiny: bool,
    draws: bool,
    limit: float,
) -> None:
    began, device = time.monotonic(), find_device(name)
    rows = known_rows(device, NAME, "network")
    if draws:
        path = result_file(device, NAME).with_name(f"{NAME}.svg")
        plot(list(rows.values()), path)
        click.echo(f"wrote {path}")
        return
    place = torch_place(device)
    if tiny:
        width, depth, steps, seeds, block = 64, 1, 3, 2, "16"
    for network in networks or NETWORKS:
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {network} and what follows is left out")
            break
        batch = (TINY_BATCHES if tiny else BATCHES)[network]
        with masked_products(always_masked):
            found = compared(network, width, depth, batch, steps, seeds, p, block, place)
        rows[network] = {"network": network, "always_masked": always_masked, **found}
        write_results(device, NAME, list(rows.values()))
        click.echo(told(rows[network]))


@contextlib.contextmanager
def masked_products(always: bool) -> Iterator[None]:
    """Layers that always run masked products, or that choose."""
    if not always:
        yield
        return
    with mock.patch.object(dropout, "masked_products_pay", lambda *_: True):
        yield


def compared(
    network: str,
    width: int,
    depth: int,
    batch: int,
    steps: int,
    seeds: int,
    p: float,
    block: str,
    place: torch.device,
) -> dict[str, Any]:
    """Both ways of a network, over all seeds."""
    began, where = time.monotonic(), place.type
    known, unknown = example.data_of(network, where)
    row: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "batch": batch,
        "steps": steps,
        "p": p,
        "block": block,
    }
    before = len(decisions())
    for name, layer in example.layers_of(p, block).items():
        ms, losses, curves = [], [], []
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = example.made(network, width, depth, layer).to(place)
            taken, curve = example.train(model, known, batch, steps, where == "cuda")
            ms.append(taken)
            losses.append(example.unseen_loss(model, unknown))
            curves.append([round(float(loss), 4) for loss in curve])
        row[name] = {
            "ms_per_step": round(statistics.median(ms), 4),
            "unseen_loss": round(statistics.mean(losses), 5),
            "spread": round(statistics.stdev(losses), 5) if seeds > 1 else None,
            "curves": curves,
        }
    ours = [found.on_device for *_, found in decisions()[before:]]
    plain, structured = (row[name] for name in example.layers_of(p, block))
    noise = max(plain["spread"] or 0.0, structured["spread"] or 0.0)
    difference = structured["unseen_loss"] - plain["unseen_loss"]
    return row | {
        "choices": {"tried": len(ours), "masked": sum(ours)},
        "difference": round(difference, 5),
        "to_noise": round(difference / noise, 2) if noise else None,
        "time_ratio": round(structured["ms_per_step"] / plain["ms_per_step"], 3),
        "seconds": round(time.monotonic() - began, 1),
    }


def told(row: dict[str, Any]) -> str:
    """A network in lines."""
    lines = [
        f"{row['network']}, width {row['width']}, p = {row['p']}, block {row['block']}: structured dropout takes "
        f"{row['time_ratio']} of the time; losses differ by {row['difference']:+.4f}, {row['to_noise']} of the spread; "
        f"masked products in {row['choices']['masked']} of {row['choices']['tried']} problems; {row['seconds']} s"
    ]
    for name in ("dropout, dense", "structured dropout"):
        of = row[name]
        lines.append(f"  {name:20} {of['ms_per_step']:9.3f} ms  {of['unseen_loss']:.4f} ± {of['spread']}")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """The losses while training: the mean over the seeds, and the band of all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(rows), 3.2), layout="constrained")
    for axes, row in zip(np.atleast_1d(figure.subplots(1, len(rows))), rows, strict=True):
        for name in ("dropout, dense", "structured dropout"):
            curves = np.array(row[name]["curves"])
            width = min(SMOOTHED, curves.shape[1])
            means = np.array([np.convolve(curve, np.full(width, 1 / width), "valid") for curve in curves])
            smooth, steps = means[:, ::DRAWN], np.arange(width, curves.shape[1] + 1)[::DRAWN]
            axes.fill_between(steps, smooth.min(0), smooth.max(0), alpha=0.3)
            axes.plot(steps, smooth.mean(0), label=name)
        axes.set(title=f"{row['network']}, p = {row['p']}", xlabel="step", ylabel="loss")
    axes.legend()
    pictures.save(figure, path)


if __name__ == "__main__":
    main()
