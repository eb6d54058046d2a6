"""Do sparse models train like masked-dense ones? Loss curves of both, and how far apart two dense runs are anyway.

    python -m benchmarks.training                               # about 2 minutes
    python -m benchmarks.training --part mlp-float32 --steps 500
    python -m benchmarks.training --device emulator --tiny --steps 4

A two-layer perceptron and a two-layer transformer (`SparseLinear`, `SparseAttention`), in float32 and in float16 with
autocast and a gradient scaler, by Adam. The masked-dense twin has the same initial weights. All runs see the same
batches; the noise is the difference between two masked-dense runs of other seeds: other initial weights and masks.
Raw output: ``training.json.xz``, written anew after every part; what it holds is not run again without ``--again``.
"""

from __future__ import annotations

import time
from typing import Any

import click
import torch
from torch import Tensor, nn

from benchmarks.study import known_rows, torch_place, write_results
from benchmarks.training_models import TASKS, TINY, Sizes, Task, parameters_of, twins
from sparsegen.backends import find_device

NAME = "training"
PARTS = {f"{task}-{dtype}": (task, dtype) for dtype in ("float32", "float16") for task in TASKS}
OTHER_SEEDS = (1, 2)
DATA_SEED = 100
LAST = 0.1  # share of the steps over which a final loss is averaged


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="default: all")
@click.option("--steps", default=300, show_default=True)
@click.option("--tiny", is_flag=True, help="small models, for a test")
@click.option("--again", is_flag=True, help="also parts that the result file holds")
@click.option("--limit", default=240.0, help="begin no part later, seconds")
def main(name: str, parts: tuple[str, ...], steps: int, tiny: bool, again: bool, limit: float) -> None:
    began, device = time.monotonic(), find_device(name)
    place = torch_place(device)
    sizes = TINY if tiny else Sizes()
    rows = known_rows(device, NAME, "part")
    for part in parts or PARTS:
        if part in rows and not again:
            continue
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {part} and what follows is left out; run again to go on")
            break
        task, dtype = PARTS[part]
        rows[part] = {"part": part, **compared(TASKS[task], sizes, steps, dtype, place)}
        write_results(device, NAME, list(rows.values()))
        row = rows[part]
        click.echo(
            f"{part:22} last loss sparse {row['last_loss']['sparse']:.5f} dense {row['last_loss']['dense']:.5f}; "
            f"curves differ by at most {row['difference']:.2e}, those of other seeds by {row['noise']:.2e} "
            f"({row['to_noise']:.1e} of it); {row['ms_per_step']} ms a step, {row['seconds']:.0f} s"
        )


def compared(task: Task, sizes: Sizes, steps: int, dtype: str, place: torch.device) -> dict[str, Any]:
    """One part: the sparse and the dense curve of seed 0, and dense ones of other seeds."""
    began = time.monotonic()
    curves: dict[str, Tensor] = {}
    speeds: dict[str, float] = {}
    for seed in (0, *OTHER_SEEDS):
        torch.manual_seed(seed)
        sparse, dense = twins(task.make(sizes), sizes)
        models = {"sparse": sparse, "dense": dense} if seed == 0 else {f"dense of seed {seed}": dense}
        for name, model in models.items():
            curves[name], speeds[name] = trained(model.to(place), task, sizes, steps, dtype, place)
    one, other = (curves[f"dense of seed {seed}"] for seed in OTHER_SEEDS)
    difference = float((curves["sparse"] - curves["dense"]).abs().max())
    noise = float((one - other).abs().max())
    last = max(1, round(LAST * steps))
    return {
        "data": task.data,
        "dtype": dtype,
        "steps": steps,
        "sizes": {name: getattr(sizes, name) for name in sizes.__dataclass_fields__},
        "seeds": [0, *OTHER_SEEDS],
        "data_seed": DATA_SEED,
        "difference": difference,
        "noise": noise,
        "to_noise": float(f"{difference / noise:.3g}"),
        "last_loss": {name: round(float(curve[-last:].mean()), 6) for name, curve in curves.items()},
        "first_loss": {name: round(float(curve[0]), 6) for name, curve in curves.items()},
        "ms_per_step": {name: round(ms, 2) for name, ms in speeds.items() if name in ("sparse", "dense")},
        "seconds": round(time.monotonic() - began, 1),
        "curves": {
            name: " ".join(f"{loss:.6g}" for loss in curve.tolist()) for name, curve in curves.items()
        },
    }


def trained(
    model: nn.Module, task: Task, sizes: Sizes, steps: int, dtype: str, place: torch.device
) -> tuple[Tensor, float]:
    """The loss at each step, and milliseconds of a step without the first, which compiles."""
    optimizer = torch.optim.Adam(parameters_of(model), lr=1e-3)
    casts = dtype != "float32"
    scaler = torch.amp.GradScaler(place.type, enabled=casts)
    losses = torch.zeros(steps, device=place)
    batches = task.batches(sizes, DATA_SEED, place)
    prepared = [next(batches) for _ in range(steps)]
    began = time.perf_counter()
    for step, (inputs, targets) in enumerate(prepared):
        with torch.autocast(place.type, getattr(torch, dtype), enabled=casts):
            loss = task.loss(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses[step] = loss.detach()
        if step == 0:
            _wait(place)
            began = time.perf_counter()
    _wait(place)
    per_step = (time.perf_counter() - began) / max(1, steps - 1) * 1e3
    return losses.cpu(), per_step


def _wait(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
