"""Forty architectures of `timm` and `transformers`, pruned and converted: none may be slower than its dense self.

    python -m benchmarks.zoo                       # a GPU; pip install timm transformers
    python -m benchmarks.zoo --small --device cpu  # a rehearsal: each is built, pruned, converted, called

Weights are random, and are pruned in turn to single zeros (50 to 95 %), to 2:4 and to blocks of 32. Each model is
converted with ``example_inputs`` for the way in which it is then called: from Python, as a CUDA graph, and compiled by
`torch.compile`; dense and converted take turns. Results of both are compared, as are those of a rehearsal. A row says
what is slower by more than a hundredth, and the last line how many are. Raw output: ``zoo.json.xz``.
"""

from __future__ import annotations

import copy
import json
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import click
import torch
from torch import Tensor, nn

from benchmarks.graph_capture import captured
from benchmarks.study import times_in_turn, torch_place, write_results
from benchmarks.zoo_models import ZOO, Images, Text
from sparsegen.backends import find_device
from sparsegen.errors import PruningError
from sparsegen.integrations.torch import convert
from sparsegen.pruning.pruner import prune
from sparsegen.tuning_db.records import Called


class Mode(StrEnum):
    """Ways in which a model is called."""

    EAGER = "eager"
    GRAPH = "graph"
    COMPILED = "compiled"


@dataclass(frozen=True, slots=True)
class Cut:
    """A pruning."""

    pattern: str
    sparsity: float
    block: tuple[int, int] | None = None


CUTS = (
    *(Cut("unstructured", sparsity) for sparsity in (0.5, 0.8, 0.9, 0.95)),
    Cut("nm", 0.5),
    Cut("block", 0.8, (32, 32)),
)
SLOWER = 1.01  # than dense
FAR = 0.02  # of the largest number of a dense result: of 16 bits, behind many layers


@click.command()
@click.option("--device", "name", default="cuda", show_default=True, help="cpu: PyTorch's products alone")
@click.option("--small", is_flag=True, help="small models, called once")
@click.option("--only", multiple=True, help="names of some architectures")
@click.option("--limit", default=3600.0, show_default=True, help="begin no model later, seconds")
def main(name: str, small: bool, only: tuple[str, ...], limit: float) -> None:
    began = time.monotonic()
    device = None if name == "cpu" else find_device(name)
    place = torch.device("cpu") if device is None else torch_place(device)
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(ZOO):
        if (only and one.name not in only) or (rows and time.monotonic() - began > limit):
            continue
        try:
            rows.append(row(one, CUTS[number % len(CUTS)], place, small=small))
        except Exception:  # other models do without it
            rows.append({"model": one.name, "failed": traceback.format_exc()[-2000:]})
        click.echo(json.dumps(rows[-1]))
        if device is not None:
            write_results(device, "zoo", rows)
    slower = [one["model"] for one in rows if one.get("slower")]
    failed = [one["model"] for one in rows if "failed" in one]
    click.echo(f"{len(rows)} models, {len(slower)} slower than dense {slower}, {len(failed)} failed {failed}")


def row(one: Images | Text, cut: Cut, place: torch.device, *, small: bool) -> dict[str, Any]:
    """Facts of a model: how many layers became sparse, how far results differ, and times of each mode."""
    torch.manual_seed(0)
    model, inputs = one.made(small=small)
    dtype = torch.float32 if place.type == "cpu" else torch.float16
    inputs = {
        key: tensor.to(place, dtype if tensor.is_floating_point() else None) for key, tensor in inputs.items()
    }
    dense = pruned(model.to(place, dtype).requires_grad_(False), cut)
    found: dict[str, Any] = {"model": one.name, "pattern": cut.pattern, "sparsity": cut.sparsity}
    with torch.no_grad():
        for mode in (Mode.EAGER,) if place.type == "cpu" else Mode:
            sparse = copy.deepcopy(dense)
            if place.type == "cpu":  # a rehearsal is of sparse layers, and has no times to decide by
                report = convert(sparse, dense="never")
            else:
                report = convert(sparse, example_inputs=inputs, capture=mode is Mode.GRAPH)
            found[f"{mode}_sparse_layers"] = len(report.converted)
            calls = [called(one, inputs, mode) for one in (dense, sparse)]
            wanted, result = (call() for call in calls)
            difference = float((wanted - result).abs().max() / wanted.abs().max().clamp(min=1e-6))
            if not difference <= FAR:
                raise ValueError(f"{mode}: results differ by {difference:.3g} of the largest")
            found[f"{mode}_difference"] = difference
            if place.type == "cuda":
                found |= times(calls, mode, place)
    found["slower"] = [mode for mode in Mode if found.get(f"{mode}_ratio", 0.0) > SLOWER]
    return found


def pruned(model: nn.Module, cut: Cut) -> nn.Module:
    """The model with zeros in the weights of those linear layers and 1 × 1 convolutions that can have them."""
    for layer in model.modules():
        is_pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
        if not is_pointwise and not isinstance(layer, nn.Linear):
            continue
        weight = layer.weight.detach()
        try:
            found = prune(
                weight.float().flatten(1).cpu().numpy(),
                pattern=cut.pattern,
                sparsity=cut.sparsity,
                block=cut.block,
            )
        except PruningError:  # sizes that blocks do not divide
            continue
        layer.weight.copy_(torch.as_tensor(found.weights).reshape(weight.shape))
    return model


def called(model: nn.Module, inputs: Mapping[str, Tensor], mode: Mode) -> Callable[[], Tensor]:
    """A call whose first result is a tensor."""
    compute = torch.compile(model) if mode is Mode.COMPILED else model

    def call() -> Tensor:
        found = compute(**inputs)
        result: Tensor = found if isinstance(found, Tensor) else found[0]
        return result

    return call


def times(calls: list[Callable[[], Tensor]], mode: Mode, place: torch.device) -> dict[str, float]:
    """Microseconds of dense and converted in turn, and the one over the other."""
    runs: list[Callable[[], Any]] = list(calls)
    if mode is Mode.GRAPH:
        runs = [captured(call, place)[0] for call in calls]
    dense, ours = times_in_turn(runs, called=Called.DEVICE if mode is Mode.GRAPH else Called.HOST)
    return {
        f"{mode}_dense_us": round(dense, 1),
        f"{mode}_us": round(ours, 1),
        f"{mode}_ratio": round(ours / dense, 4),
    }


if __name__ == "__main__":
    main()
