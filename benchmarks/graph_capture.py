"""A converted perceptron under `torch.compile` and in a CUDA graph: does it wait for the device, or compile anew?

    python -m benchmarks.graph_capture                          # under a minute
    python -m benchmarks.graph_capture --device emulator --tiny --backend aot_eager

The model is compiled whole (``fullgraph=True``), called and replayed while PyTorch raises an error wherever it would
wait for the device (``torch.cuda.set_sync_debug_mode("error")``); a capture refuses every other wait too.
Then the weights get new values, several times: what replays give is held against PyTorch's dense layers, and the
graphs that were compiled are counted. Raw output: ``graph_capture.json.xz``. The emulator has no CUDA graph: there
calls stand for replays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from benchmarks.study import torch_place, write_results
from sparsegen.backends import find_device
from sparsegen.errors import SparsegenError
from sparsegen.integrations.torch import SparseLinear, convert

CHANGES = 5
SIZES, TINY = (512, 2048, 256), (16, 32, 8)  # width, hidden width, rows of a batch; for a test
SPARSITY = 0.9
Results = TypeVar("Results")
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2}  # of the largest result


@click.command()
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--backend", default="inductor", show_default=True, help="of torch.compile")
@click.option("--tiny", is_flag=True, help="a small model, for a test")
@click.option("--limit", default=120.0, help="begin no dtype later, seconds")
def main(name: str, backend: str, tiny: bool, limit: float) -> None:
    began, device = time.monotonic(), find_device(name)
    place = torch_place(device)
    rows = []
    for dtype in TOLERANCES:
        if time.monotonic() - began > limit:
            click.echo(f"time is up: {dtype} and what follows is left out")
            break
        row = facts(TINY if tiny else SIZES, dtype, backend, place)
        rows.append(row)
        write_results(device, "graph_capture", rows)
        click.echo(", ".join(f"{key} {value}" for key, value in row.items()))


def facts(
    sizes: tuple[int, int, int], dtype: torch.dtype, backend: str, place: torch.device
) -> dict[str, Any]:
    """Captures graphs for one dtype, and returns what happened.

    Args:
        sizes: width and hidden width of a perceptron of two layers, and rows of a batch.

    Raises:
        SparsegenError: a result is wrong.
        RuntimeError: PyTorch's: something waited for the device.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()
    counters.clear()
    width, hidden, tokens = sizes
    model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)).to(place, dtype)
    convert(model, "unstructured", SPARSITY)
    x = torch.randn(tokens, width, device=place, dtype=dtype)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        compiled(x)
        compiled_first = counters["stats"]["unique_graphs"]
        worst = 0.0
        with no_waiting(place):
            compiled(x)
        replay, out = captured(lambda: compiled(x), place)
        for seed in range(CHANGES):
            change_values(model, seed)
            with no_waiting(place):
                written = replay()
            found = written if out is None else out
            worst = max(worst, relative_error(found, exact(model, x)))
            with no_waiting(place):
                found = compiled(x)
            worst = max(worst, relative_error(found, exact(model, x)))
    if not worst <= TOLERANCES[dtype]:
        raise SparsegenError(f"wrong after new values: the error is {worst:.3g} of the largest result")
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "backend": backend,
        "captured_in_cuda_graph": out is not None,
        "host_synchronisations": 0 if place.type == "cuda" else None,  # one is an error
        "value_changes": CHANGES,
        "graphs_compiled_first": compiled_first,
        "graphs_compiled_later": counters["stats"]["unique_graphs"] - compiled_first,
        "graph_breaks": sum(counters["graph_break"].values()),
        "error": worst,
    }


@contextmanager
def no_waiting(place: torch.device) -> Iterator[None]:
    """PyTorch raises an error where it would wait for the GPU."""
    if place.type != "cuda":
        yield
        return
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def captured(call: Callable[[], Results], place: torch.device) -> tuple[Callable[[], Any], Results | None]:
    """A replay, and the results that it writes; without a GPU the call itself, which gives its own."""
    if place.type != "cuda":
        return call, None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return graph.replay, out


def change_values(model: nn.Module, seed: int) -> None:
    """New weights on the same patterns, in place, as an optimizer writes them."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, SparseLinear):
            fresh = torch.randn(layer.values.shape, generator=generator) * layer.in_features**-0.5
            layer.values.copy_(fresh)


def exact(model: nn.Module, x: Tensor) -> Tensor:
    """The model's result by dense layers in float64, and the activations that joined the sparse ones."""
    y = x.double()
    for layer in model.children():
        y = layer.activation.of(layer.to_dense().double()(y)) if isinstance(layer, SparseLinear) else layer(y)
    return y


def relative_error(found: Tensor, wanted: Tensor) -> float:
    worst = float((found.double() - wanted).abs().max() / wanted.abs().max())
    return worst if worst == worst else float("inf")


if __name__ == "__main__":
    main()
