"""A shipped model beside the process's own: equal bits, time in turn, and the first call where sparsegen is not.

    python -m benchmarks.shipped                             # some five minutes
    python -m benchmarks.shipped --device emulator --tiny

A product of every family of linear layers is held against its operator object. A model of sparse layers is shipped
twice: as `torch.export` wrote it, and compiled by AOTInductor. A process that has PyTorch alone on its path loads each
folder, calls it once and holds the result against the model's own, bit by bit; another one calls the model itself and
the program in turn, from Python and as CUDA graphs. A process that breaks makes a row that says where. In the end a
model of pruned dense layers is compiled with `inductor.enable` and without. Given again, the command goes on where time
ended it, and does again what failed. Raw output: ``shipped.json.xz``.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn
from torch._inductor import config

from benchmarks.shipped_stages import Asked, stages, times
from benchmarks.study import known_rows, torch_place, write_results
from sparsegen import kernels, prepare
from sparsegen.backends import find_device
from sparsegen.errors import SparsegenError
from sparsegen.integrations.torch import SparseLinear, inductor
from sparsegen.integrations.torch.shipping.libraries import loaded_library
from sparsegen.kernels.base import Device
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.plan.shipping.launches import shipped_launch
from sparsegen.plan.variant_launcher import variant_launcher


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the models: square layers."""

    layers: int = 32
    width: int = 2048
    tokens: tuple[int, ...] = (64, 1, 512)


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="a small model, for a test")
@click.option("--dtype", "names", multiple=True, default=("float16",), show_default=True)
@click.option("--only", multiple=True, help="some rows, by their names' beginnings")
@click.option("--limit", default=270.0, show_default=True, help="begin no row later, seconds")
def main(name: str, tiny: bool, names: tuple[str, ...], only: tuple[str, ...], limit: float) -> None:
    began, device = time.monotonic(), find_device(name)
    tasks = tasks_of(Sizes(3, 64, (2,)) if tiny else Sizes(), names, name)
    rows = known_rows(device, "shipped", "row")
    wanted = [key for key in tasks if key.startswith(only or "")]
    left = [key for key in wanted if "failed" in rows.get(key, {"failed": "never begun"})]
    for number, key in enumerate(left):
        if number and time.monotonic() - began > limit:
            click.echo(f"time is up: {len(left) - number} rows are left out; the same command goes on")
            break
        now = time.monotonic()
        try:
            found = tasks[key]()
        except (SparsegenError, RuntimeError):  # the other rows do without it
            found = {"failed": traceback.format_exc()[-4000:]}
        rows[key] = {"row": key, **found, "seconds": round(time.monotonic() - now, 1)}
        write_results(device, "shipped", list(rows.values()))
        click.echo(json.dumps({k: v for k, v in rows[key].items() if k != "failed"}))
        click.echo(rows[key].get("failed", ""), nl="failed" in rows[key])


def tasks_of(sizes: Sizes, dtypes: Sequence[str], name: str) -> dict[str, partial[dict[str, Any]]]:
    """Returns the function that makes each row, by its name, in order."""
    tasks = {"families": partial(families_row, find_device(name))}
    for tokens in sizes.tokens:
        for dtype in dtypes:
            numbers = sizes.layers, sizes.width, tokens
            for program, row_of in (
                ("exported", shipped_row),
                ("compiled", shipped_row),
                ("inductor", inductor_row),
            ):
                asked = Asked(program, name, dtype, *numbers)
                tasks[f"{program} {sizes.width} {dtype} {tokens}"] = partial(row_of, asked)
    return tasks


def families_row(device: Device) -> dict[str, Any]:
    """Holds a shipped product of every family of linear layers against its operator object."""
    m, k, n, place = 96, 128, 24, torch_place(device)
    problem = SpmmProblem(m, k, n, DType.FLOAT16, Layout.COLUMN, Epilogue.BIAS_RELU)
    matrix, launches, operators = random_uniform(m, k, 0.2, 0), {}, {}
    for name, family in kernels.families().items():
        if family.problem_type is SpmmProblem and family.computes(problem):
            operators[name] = prepare(matrix, problem=problem, family=name, dense="never", device=device)
            launches[name] = shipped_launch(variant_launcher(operators[name]), [device])
    linear = getattr(torch.ops, loaded_library(list(launches.values()))).linear
    x = torch.randn(n, k, dtype=torch.float16)
    bias = torch.linspace(-1, 1, m, dtype=torch.float16)
    unequal = []
    for number, (name, launch) in enumerate(launches.items()):
        weight = torch.from_numpy(launch.packed).to(place)
        wanted = torch.from_numpy(operators[name](x.numpy(), bias=bias.numpy()))
        found = [linear(x.to(place), weight, bias.to(place), number).cpu() for _ in range(3)]
        if not all(torch.equal(one, wanted) for one in found):
            unequal.append(name)
    return {"families": list(launches), "unequal_bits": unequal}


def shipped_row(asked: Asked) -> dict[str, Any]:
    """Ships a model in one form, and returns facts of it."""
    with tempfile.TemporaryDirectory() as folder:
        return asked.facts() | stages(asked, Path(folder))


def inductor_row(asked: Asked) -> dict[str, Any]:
    """Compiles a model of pruned dense layers with the kernels as candidates and without; both are frozen."""
    place, x, found, told = asked.place, asked.inputs(), asked.facts(), _Told()
    compiled, results = [], []
    for words in ("plain", "kernels"):
        torch._dynamo.reset()
        sparse = (one for one in asked.model() if isinstance(one, SparseLinear))
        layers = (part for one in sparse for part in (one.to_dense(), nn.ReLU()))
        model = nn.Sequential(*layers).requires_grad_(False).eval()
        if words == "kernels":
            inductor.enable()
            inductor.log.addHandler(told)
            inductor.log.setLevel(logging.INFO)
        try:
            with config.patch(freezing=True), torch.no_grad():
                compiled.append(torch.compile(model))
                began = time.perf_counter()
                results.append(compiled[-1](x))
                found[f"{words}_compile_s"] = round(time.perf_counter() - began, 1)
        finally:
            inductor.disable()
            inductor.log.removeHandler(told)
    found["said"] = told.said
    with torch.no_grad():
        found["relative_difference"] = float((results[0] - results[1]).abs().max() / results[0].abs().max())
        if place.type == "cuda":
            for facts in times(lambda: compiled[0](x), lambda: compiled[1](x), place, ("plain", "kernels")):
                found |= facts
    return found


class _Told(logging.Handler):
    """Messages about candidates: their times from Python, and how many run the kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


if __name__ == "__main__":
    main()
