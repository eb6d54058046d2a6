"""Host time of one operator call over a bare launch of the same kernel, and of a sparse layer over a dense one.

    python -m benchmarks.host_cost

A tiny problem, so that the GPU never makes the host wait; medians of many batches. What is compared is called in turn,
a batch of each, so that other work on the host meets all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import sparsegen
from benchmarks.study import write_results
from sparsegen.backends import find_device
from sparsegen.integrations.torch import BlockMaskTensor, DropoutLinear, SparseLinear, dsd, masked_conv2d
from sparsegen.integrations.torch.convolution.packed_masks import PackedMask
from sparsegen.matrix.generators import random_uniform

BATCHES = 15  # of calls that are timed
IN_TURN = 36  # layers, as of a small encoder
# Tokens, features in and out, and a block's side of steps behind structured dropout.
STEPS = (128, 128, 128, 64), (1024, 1024, 1024, 128), (8192, 768, 3072, 128)


def microseconds_per_call(calls: Mapping[str, Callable[[], object]], batch: int = 100) -> dict[str, float]:
    """Median over batches of the host time of one call of each, under its name with ``_us`` behind it."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(BATCHES):
        for name, call in calls.items():
            call()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(batch):
                call()
            taken[name].append((time.perf_counter() - began) / batch * 1e6)
    return {f"{name}_us": float(np.median(times)) for name, times in taken.items()}


def layer_costs() -> dict[str, float]:
    """`SparseLinear`, by kernels and by dense products, and `torch.nn.Linear`.

    In inference, of values that could train; with autograd; and forwards and backwards.

    In turn are calls of many layers one after another: a loop over one finds all in the caches. In a model other layers
    run in between, which are part of these times: what tells is the difference between sparse and dense.
    """
    dense = nn.Linear(64, 64, device="cuda")
    sparse = SparseLinear.from_dense(dense, sparsity=0.9, run_dense="never")
    by_dense = SparseLinear.from_dense(dense, sparsity=0.9, run_dense="always")
    x = torch.randn(32, 64, device="cuda")
    layers = {"dense_layer": dense, "layer": sparse, "layer_by_dense_products": by_dense}
    for layer in layers.values():
        for _ in range(2):
            layer(x).backward(x.new_ones(32, 64))
    costs = microseconds_per_call({f"training_{name}": partial(layer, x) for name, layer in layers.items()})
    steps = {
        f"training_step_{name}": lambda layer=layer: layer(x).backward(x) for name, layer in layers.items()
    }
    costs |= microseconds_per_call(steps)
    many = {"dense_layer": [nn.Linear(64, 64, device="cuda") for _ in range(IN_TURN)]}
    many["layer"] = [
        SparseLinear.from_dense(layer, sparsity=0.9, run_dense="never") for layer in many["dense_layer"]
    ]
    others = nn.LayerNorm(64, device="cuda"), nn.GELU(), nn.Softmax(-1)
    turns = {name: nn.Sequential(*same).requires_grad_(False) for name, same in many.items()}
    models = {
        name: nn.Sequential(*(m for layer in same for m in (layer, *others))).requires_grad_(False)
        for name, same in many.items()
    }
    with torch.inference_mode():
        costs |= microseconds_per_call({name: partial(layer, x) for name, layer in layers.items()})
        for kind, of_kind in (("turn", turns), ("model", models)):
            calls = {f"{name}_in_{kind}": partial(all_of, x) for name, all_of in of_kind.items()}
            costs |= {name: us / IN_TURN for name, us in microseconds_per_call(calls, batch=5).items()}
    return costs


def mask_costs() -> dict[str, float]:
    """Operators whose mask comes with every call, beside PyTorch's own: host time of calls.

    A masked convolution with its mask packed and as bools; and a product behind structured dropout.
    """
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    last = torch.channels_last
    images = torch.randn(1, 32, 32, 32, **half).to(memory_format=last)
    filters = torch.randn(32, 32, 3, 3, **half).to(memory_format=last)
    bools = torch.ones(1, 2, 2, dtype=torch.bool, device="cuda")
    packed = PackedMask.of(bools)
    x, weight = torch.randn(128, 128, **half), torch.randn(128, 128, **half)
    mask = BlockMaskTensor.from_blocks(torch.ones(2, 2, dtype=torch.bool, device="cuda"), 64)
    masked = partial(masked_conv2d, images, filters, padding=1, dense="never")
    calls = {
        "conv2d": partial(functional.conv2d, images, filters, padding=1),
        "masked_conv2d_packed": partial(masked, packed),
        "masked_conv2d": partial(masked, bools),
        "pack_mask": partial(PackedMask.of, bools),
        "linear": partial(functional.linear, x, weight),
        "dsd": partial(dsd, x, weight, mask, dense="never"),
        "dsd_by_dense_products": partial(dsd, x, weight, mask, dense="always"),
    }
    with torch.inference_mode():
        costs = microseconds_per_call(calls)
    return costs


def dropout_costs(tokens: int, ins: int, outs: int, block: int) -> dict[str, float]:
    """Training steps of structured dropout and a linear layer, by masked and by dense products, and of PyTorch's own.

    Few calls follow each other, so that the host does not wait for the device's queue where products are large.
    """
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    x, dy = torch.randn(tokens, ins, requires_grad=True, **half), torch.randn(tokens, outs, **half)
    layers = {
        "dropout_linear": nn.Sequential(nn.Dropout(0.5), nn.Linear(ins, outs, **half)),
        "masked_dropout_layer": DropoutLinear(ins, outs, 0.5, block, dense="never", **half),
        "dense_dropout_layer": DropoutLinear(ins, outs, 0.5, block, dense="always", **half),
    }

    def step_of(layer: nn.Module) -> Callable[[], object]:
        leaves = x, *layer.parameters()
        return lambda: torch.autograd.grad(layer(x), leaves, dy)

    size = "" if (tokens, ins, outs) == STEPS[0][:3] else f"_{tokens}x{ins}x{outs}"
    steps = {f"step_{name}{size}": step_of(layer) for name, layer in layers.items()}
    return microseconds_per_call(steps, batch=24)


@click.command()
def main() -> None:
    device = find_device("cuda")
    matrix = random_uniform(64, 64, 0.1, 0)
    operator = sparsegen.prepare(matrix, n=32, dense="never", device=device)
    b = torch.randn(64, 32, device="cuda")
    out = torch.empty(64, 32, device="cuda")
    bound = operator.launcher.prepared.bound()
    stream, addresses = torch.cuda.current_stream().cuda_stream, (b.data_ptr(), out.data_ptr())
    dense = torch.from_numpy(matrix.to_scipy().toarray()).cuda()
    sparse = dense.to_sparse_csr()
    calls: dict[str, Callable[[], object]] = {
        "bare_launch": lambda: bound(stream, *addresses),
        "torch_with_out": lambda: operator(b, out),
        "torch": lambda: operator(b),
        "torch_sparse_mm": lambda: sparse @ b,
        "torch_dense_mm": lambda: dense @ b,
    }
    try:
        import cupy

        cupy_b, cupy_out = cupy.from_dlpack(b), cupy.from_dlpack(out)
        calls["cupy_with_out"] = lambda: operator(cupy_b, cupy_out)
    except ImportError:
        click.echo("CuPy is not installed: its row is left out")
    row = microseconds_per_call(calls) | layer_costs() | mask_costs()
    for sizes in STEPS:
        row |= dropout_costs(*sizes)
    rounded = {name: round(us, 2) for name, us in row.items()}
    found = summary(row)
    for name, number in (rounded | found).items():
        click.echo(f"{number:9.2f}  {name}")
    write_results(device, "host_cost", [rounded], summary=found)


def summary(us: dict[str, float]) -> dict[str, float]:
    """Costs of calls over PyTorch's own: microseconds more, or how many times as long."""
    over = {
        "over_bare_us": ("torch_with_out_us", "bare_launch_us"),
        "layer_over_dense_us": ("layer_us", "dense_layer_us"),
        "layer_in_model_over_dense_us": ("layer_in_model_us", "dense_layer_in_model_us"),
        "training_layer_over_dense_us": ("training_layer_us", "training_dense_layer_us"),
        "training_layer_by_dense_products_over_dense_us": (
            "training_layer_by_dense_products_us",
            "training_dense_layer_us",
        ),
        "training_step_layer_over_dense_us": ("training_step_layer_us", "training_step_dense_layer_us"),
    }
    times = {
        "masked_conv2d_packed_over_conv2d": ("masked_conv2d_packed_us", "conv2d_us"),
        "dsd_over_linear": ("dsd_us", "linear_us"),
        "dsd_by_dense_products_over_linear": ("dsd_by_dense_products_us", "linear_us"),
    }
    for kind in ("masked", "dense"):
        ours, theirs = f"step_{kind}_dropout_layer", "step_dropout_linear"
        for name in us:
            if name.startswith(ours):
                size = name.removeprefix(ours)
                times[f"step_{kind}_dropout_over_dropout_linear{size.removesuffix('_us')}"] = (
                    name,
                    theirs + size,
                )
    more = {name: round(us[ours] - us[theirs], 2) for name, (ours, theirs) in over.items()}
    return more | {name: round(us[ours] / us[theirs], 2) for name, (ours, theirs) in times.items()}


if __name__ == "__main__":
    main()
