"""A shipped model beside the process's own: equal bits, time in turn, and the first call where sparsegen is not.

    python -m benchmarks.shipped                             # a minute
    python -m benchmarks.shipped --device emulator --tiny

A model of sparse layers is shipped twice: compiled by AOTInductor, and as `torch.export` wrote it. The model itself
and both programs are called in turn, from Python and as CUDA graphs. A process that has PyTorch alone on its path loads
each folder, calls it once and holds the result against the model's own, bit by bit. Raw output: ``shipped.json.xz``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from benchmarks.graph_capture import captured
from benchmarks.study import times_in_turn, torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.errors import CompileError
from sparsegen.integrations.torch import SparseLinear, ship
from sparsegen.tuning_db.records import Called

LAYERS, WIDTH, TOKENS, SPARSITY = 32, 2048, (1, 64, 512), 0.9
READER = Path(__file__).with_name("shipped_reader.py")  # imports PyTorch alone


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="a small model, for a test")
@click.option("--dtype", "names", multiple=True, default=("float16", "float32"), show_default=True)
@click.option("--limit", default=100.0, show_default=True, help="begin no row later, seconds")
def main(name: str, tiny: bool, names: tuple[str, ...], limit: float) -> None:
    began, device = time.monotonic(), find_device(name)
    place = torch_place(device)
    rows: list[dict[str, Any]] = []
    for tokens in (2,) if tiny else TOKENS:
        for dtype in names:
            for program in ("exported", "compiled"):
                if time.monotonic() - began > limit:
                    click.echo(f"time is up: {tokens} tokens of {dtype} and what follows is left out")
                    return
                rows.append(row(getattr(torch, dtype), tokens, program, place, tiny=tiny))
                write_results(device, "shipped", rows)
                click.echo(json.dumps(rows[-1]))


def row(dtype: torch.dtype, tokens: int, program: str, place: torch.device, *, tiny: bool) -> dict[str, Any]:
    """Ships a model in one form, and returns facts of it."""
    layers, width = (3, 64) if tiny else (LAYERS, WIDTH)
    model = perceptron(layers, width).to(place, dtype)
    x = torch.randn(tokens, width, device=place, dtype=dtype)
    found: dict[str, Any] = {
        "layers": layers,
        "width": width,
        "tokens": tokens,
        "dtype": str(dtype).removeprefix("torch."),
        "sparsity": SPARSITY,
        "program": program,
    }
    with torch.no_grad(), tempfile.TemporaryDirectory() as place_of_folders:
        wanted, folder = model(x), Path(place_of_folders, "shipped")
        began = time.perf_counter()
        try:
            shipped = ship(model, x, folder, program=program)
        except CompileError as error:
            return found | {"failed": str(error)[:4000]}
        found["ship_s"] = round(time.perf_counter() - began, 2)
        found["families"] = sorted({launch.family for launch in shipped.launches})
        if program == "compiled":
            loaded: Any = torch._inductor.aoti_load_package(str(folder / "model.pt2"))
        else:
            loaded = torch.export.load(folder / "model.pt2").module()
        found["equal_bits_here"] = torch.equal(loaded(x), wanted)
        torch.save({"x": x.cpu(), "y": wanted.cpu(), "place": str(place)}, folder / "example.pt")
        found |= elsewhere(folder, program)
        if place.type == "cuda":
            found |= times(lambda: model(x), lambda: loaded(x), place)
    return found


def perceptron(layers: int, width: int) -> nn.Module:
    """Square layers with bias and ReLU, all of them sparse."""
    torch.manual_seed(0)
    made = []
    for _ in range(layers):
        layer = SparseLinear.from_dense(nn.Linear(width, width), sparsity=SPARSITY, run_dense="never")
        layer.activation = layer.activation.parse("relu")
        made.append(layer)
    return nn.Sequential(*made).requires_grad_(False).eval()


def elsewhere(folder: Path, program: str) -> dict[str, Any]:
    """Seconds and bits of a process that has PyTorch on its path, and not sparsegen."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARSEGEN_")}
    environment |= {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p and not _has_sparsegen(Path(p)))}
    command = [sys.executable, str(READER), str(folder), program]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=100
    )
    if done.returncode:
        return {"elsewhere_failed": done.stderr[-2000:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _has_sparsegen(folder: Path) -> bool:
    return (folder / "sparsegen").is_dir()


def times(own: Callable[[], Tensor], shipped: Callable[[], Tensor], place: torch.device) -> dict[str, float]:
    """Microseconds in turn: called from Python, behind a busy queue, and as CUDA graphs."""
    found: dict[str, float] = {}
    for words, called in (("host", Called.HOST), ("device", Called.DEVICE)):
        found[f"own_{words}_us"], found[f"shipped_{words}_us"] = times_in_turn((own, shipped), called=called)
    replays = [captured(call, place)[0] for call in (own, shipped)]
    found["own_graph_us"], found["shipped_graph_us"] = times_in_turn(replays)
    return found


if __name__ == "__main__":
    main()
