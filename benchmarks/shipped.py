"""A shipped model beside the process's own: equal bits, time in turn, and the first call where sparsegen is not.

    python -m benchmarks.shipped                             # some five minutes
    python -m benchmarks.shipped --device emulator --tiny

A product of every family of linear layers is held against its operator object. A model of sparse layers is shipped
twice: as `torch.export` wrote it, and compiled by AOTInductor. The model itself and each program are called in turn,
from Python and as CUDA graphs. A process that has PyTorch alone on its path loads each folder, calls it once and holds
the result against the model's own, bit by bit. In the end a model of pruned dense layers is compiled with
`inductor.enable` and without. Given again, the command goes on where time ended it. Raw output: ``shipped.json.xz``.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch._inductor import config

from benchmarks.graph_capture import captured
from benchmarks.study import known_rows, times_in_turn, torch_place, write_results
from sparsegen import kernels, prepare
from sparsegen.backends import find_device
from sparsegen.errors import SparsegenError
from sparsegen.integrations.torch import SparseLinear, inductor, ship
from sparsegen.integrations.torch.shipping.libraries import loaded_library
from sparsegen.kernels.base import Device
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import DType, Epilogue, Layout, SpmmProblem
from sparsegen.plan.shipping.launches import shipped_launch
from sparsegen.plan.variant_launcher import variant_launcher
from sparsegen.tuning_db.records import Called

SPARSITY = 0.9
READER = Path(__file__).with_name("shipped_reader.py")  # imports PyTorch alone


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the models: square layers."""

    layers: int = 32
    width: int = 2048
    tokens: tuple[int, ...] = (64, 1, 512)

    def facts(self, dtype: torch.dtype, tokens: int, program: str) -> dict[str, Any]:
        """Fields of a row that say what was asked."""
        return {
            "layers": self.layers,
            "width": self.width,
            "tokens": tokens,
            "dtype": str(dtype).removeprefix("torch."),
            "sparsity": SPARSITY,
            "program": program,
        }


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="a small model, for a test")
@click.option("--dtype", "names", multiple=True, default=("float16",), show_default=True)
@click.option("--only", multiple=True, help="some rows, by their names' beginnings")
@click.option("--limit", default=270.0, show_default=True, help="begin no row later, seconds")
def main(name: str, tiny: bool, names: tuple[str, ...], only: tuple[str, ...], limit: float) -> None:
    began, device = time.monotonic(), find_device(name)
    tasks = tasks_of(Sizes(3, 64, (2,)) if tiny else Sizes(), names, device)
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
        except (SparsegenError, RuntimeError, subprocess.TimeoutExpired):  # the other rows do without it
            found = {"failed": traceback.format_exc()[-4000:]}
        rows[key] = {"row": key, **found, "seconds": round(time.monotonic() - now, 1)}
        write_results(device, "shipped", list(rows.values()))
        click.echo(json.dumps(rows[key]))


def tasks_of(sizes: Sizes, dtypes: Sequence[str], device: Device) -> dict[str, partial[dict[str, Any]]]:
    """Returns the function that makes each row, by its name, in order."""
    place = torch_place(device)
    tasks = {"families": partial(families_row, device, place)}
    for tokens in sizes.tokens:
        for dtype in dtypes:
            asked = sizes, getattr(torch, dtype), tokens, place
            for program in ("exported", "compiled"):
                tasks[f"{program} {sizes.width} {dtype} {tokens}"] = partial(shipped_row, program, *asked)
            tasks[f"inductor {sizes.width} {dtype} {tokens}"] = partial(inductor_row, *asked)
    return tasks


def families_row(device: Device, place: torch.device) -> dict[str, Any]:
    """Holds a shipped product of every family of linear layers against its operator object."""
    m, k, n = 96, 128, 24
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


def shipped_row(
    program: str, sizes: Sizes, dtype: torch.dtype, tokens: int, place: torch.device
) -> dict[str, Any]:
    """Ships a model in one form, and returns facts of it."""
    model = perceptron(sizes).to(place, dtype)
    x = torch.randn(tokens, sizes.width, device=place, dtype=dtype)
    found = sizes.facts(dtype, tokens, program)
    with torch.no_grad(), tempfile.TemporaryDirectory() as place_of_folders:
        wanted, folder = model(x), Path(place_of_folders, "shipped")
        began = time.perf_counter()
        shipped = ship(model, x, folder, program=program)
        found["ship_s"] = round(time.perf_counter() - began, 2)
        found["families"] = sorted({launch.family for launch in shipped.launches})
        load = runpy.run_path(str(folder / "load.py"))["load"]
        loaded = load(run_single_threaded=True) if program == "compiled" else load()
        found["equal_bits_here"] = torch.equal(loaded(x), wanted)
        torch.save({"x": x.cpu(), "y": wanted.cpu(), "place": str(place)}, folder / "example.pt")
        found |= elsewhere(folder)
        if place.type == "cuda":
            found |= times(lambda: model(x), lambda: loaded(x), place, ("own", "shipped"))
    return found


def inductor_row(sizes: Sizes, dtype: torch.dtype, tokens: int, place: torch.device) -> dict[str, Any]:
    """Compiles a model of pruned dense layers with the kernels as candidates and without; both are frozen."""
    x = torch.randn(tokens, sizes.width, device=place, dtype=dtype)
    found = sizes.facts(dtype, tokens, "inductor")
    compiled, results = [], []
    for words in ("plain", "kernels"):
        torch._dynamo.reset()
        layers = (part for one in perceptron(sizes) for part in (one.to_dense(), nn.ReLU()))
        model = nn.Sequential(*layers).to(place, dtype).requires_grad_(False).eval()
        if words == "kernels":
            inductor.enable()
        try:
            with config.patch(freezing=True), torch.no_grad():
                compiled.append(torch.compile(model))
                began = time.perf_counter()
                results.append(compiled[-1](x))
                found[f"{words}_compile_s"] = round(time.perf_counter() - began, 1)
        finally:
            inductor.disable()
    with torch.no_grad():
        found["relative_difference"] = float((results[0] - results[1]).abs().max() / results[0].abs().max())
        if place.type == "cuda":
            found |= times(lambda: compiled[0](x), lambda: compiled[1](x), place, ("plain", "kernels"))
    return found


def perceptron(sizes: Sizes) -> nn.Sequential:
    """Square layers with bias and ReLU, all of them sparse."""
    torch.manual_seed(0)
    made = []
    for _ in range(sizes.layers):
        dense = nn.Linear(sizes.width, sizes.width)
        layer = SparseLinear.from_dense(dense, sparsity=SPARSITY, run_dense="never")
        layer.activation = layer.activation.parse("relu")
        made.append(layer)
    return nn.Sequential(*made).requires_grad_(False).eval()


def elsewhere(folder: Path) -> dict[str, Any]:
    """Seconds and bits of a process that has PyTorch on its path, and not sparsegen."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARSEGEN_")}
    paths = [path for path in sys.path if path and not Path(path, "sparsegen").is_dir()]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, str(READER), str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=100
    )
    if done.returncode:
        return {"elsewhere_failed": done.stderr[-2000:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def times(
    one: Callable[[], Tensor], other: Callable[[], Tensor], place: torch.device, names: tuple[str, str]
) -> dict[str, float]:
    """Microseconds in turn: called from Python, behind a busy queue, and as CUDA graphs."""
    replays = [captured(call, place)[0] for call in (one, other)]
    found: dict[str, float] = {}
    for words, calls, called in (
        ("host", [one, other], Called.HOST),
        ("device", [one, other], Called.DEVICE),
        ("graph", replays, Called.DEVICE),
    ):
        for name, us in zip(names, times_in_turn(calls, called=called), strict=True):
            found[f"{name}_{words}_us"] = round(us, 2)
    return found


if __name__ == "__main__":
    main()
