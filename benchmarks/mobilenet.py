"""The 1 × 1 convolutions of a pruned MobileNetV1, fused with bias and ReLU, against cuBLAS with bias and ReLU.

    python -m benchmarks.mobilenet --db tuned.db                # about 3 minutes
    python -m benchmarks.mobilenet --device emulator --shrink 16 --width 1.5 --seconds 0 --db tuned.db

Weights of C_out × C_in, 90 % zeros, times an image of C_in × pixels: batch 1, 224 × 224 images, float32, networks 1.3
to 1.8 times as wide (Gale et al., SC 2020, section VII), channels rounded to multiples of 8 as MobileNets round them.
Dense contenders: PyTorch's matrix product (cuBLAS, exact float32) with its own kernels for bias and ReLU, cuBLASLt
with both fused, which wants pixels × channels, and its convolution (cuDNN). Raw output: ``mobilenet.json``, written
anew after every width; what it holds is not run again without ``--again``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click

import sparsegen
from benchmarks.common import geometric_mean, known_rows, times_in_turn, write_results
from benchmarks.prepared import checked_call, torch_place, tune_all, waiting_lead
from sparsegen.backends import find_device
from sparsegen.kernels.base import Device
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.matrix.generators import random_uniform
from sparsegen.operators import Epilogue, SpmmProblem

NAME = "mobilenet"
SPARSITY = 0.9
# Input and output channels, height of the square image, how often: Howard et al., MobileNets, 2017, table 1.
LAYERS = (
    (32, 64, 112, 1),
    (64, 128, 56, 1),
    (128, 128, 56, 1),
    (128, 256, 28, 1),
    (256, 256, 28, 1),
    (256, 512, 14, 1),
    (512, 512, 14, 5),
    (512, 1024, 7, 1),
    (1024, 1024, 7, 1),
)


@dataclass(frozen=True)
class Layer:
    """A 1 × 1 convolution of the network: C_out × C_in weights, ``height`` × ``height`` pixels."""

    out_channels: int
    in_channels: int
    height: int
    count: int

    def __str__(self) -> str:
        return f"{self.out_channels}x{self.in_channels}x{self.pixels}"

    @property
    def pixels(self) -> int:
        return self.height * self.height

    @property
    def problem(self) -> SpmmProblem:
        return SpmmProblem(self.out_channels, self.in_channels, self.pixels, epilogue=Epilogue.BIAS_RELU)

    def matrix(self) -> CsrMatrix:
        return random_uniform(self.out_channels, self.in_channels, 1 - SPARSITY, seed=self.height)


def layers(width: float, shrink: int = 1) -> Iterator[Layer]:
    """Those of a network this many times as wide; ``shrink`` divides channels and height."""
    for inner, outer, height, count in LAYERS:
        yield Layer(
            _channels(outer * width / shrink),
            _channels(inner * width / shrink),
            max(1, height // shrink),
            count,
        )


def _channels(wanted: float) -> int:
    """The nearest multiple of 8 that is not below nine tenths of it."""
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8


@click.command()
@click.option("--db", required=True, type=click.Path())
@click.option("--device", "name", default="cuda", show_default=True)
@click.option("--width", "widths", multiple=True, type=float, default=(1.3, 1.5, 1.8), show_default=True)
@click.option("--seconds", default=8.0, help="for the search of each layer; 0: none")
@click.option("--jobs", default=4, help="searches side by side")
@click.option("--shrink", default=1, help="divides channels and heights, for a test")
@click.option("--again", is_flag=True, help="also widths that the result file holds")
@click.option("--limit", default=300.0, help="begin no width later, seconds")
def main(
    db: str,
    name: str,
    widths: tuple[float, ...],
    seconds: float,
    jobs: int,
    shrink: int,
    again: bool,
    limit: float,
) -> None:
    began, device = time.monotonic(), find_device(name)
    torch_place(device)
    rows = {} if again else known_rows(device, NAME, "case")
    for width in widths:
        found = list(layers(width, shrink))
        if all(case_of(width, layer) in rows for layer in found):
            continue
        if time.monotonic() - began > limit:
            click.echo(f"time is up: width {width} and what follows is left out; run again to go on")
            break
        tune_all([(layer.matrix(), layer.problem) for layer in found], device, db, seconds, jobs)
        for layer in found:
            row: dict[str, Any] = {"case": case_of(width, layer), "width": width} | measured(
                layer, device, db
            )
            rows[row["case"]] = row
            click.echo(f"{row['case']:24} {row['us']} to dense {row['to_dense']} {row['family']}")
        write_results(device, NAME, list(rows.values()), summary=summary(list(rows.values())))
    for one in summary(list(rows.values())):
        click.echo(str(one))


def case_of(width: float, layer: Layer) -> str:
    return f"{width} {layer}"


def measured(layer: Layer, device: Device, db: str) -> dict[str, Any]:
    """A layer: medians of all contenders, what ran of ours, and how many times faster than the best dense one."""
    matrix, problem = layer.matrix(), layer.problem
    options: dict[str, Any] = {"n": problem.n, "dtype": problem.dtype, "epilogue": problem.epilogue}
    operator = sparsegen.prepare(matrix, **options, device=device, db=db)
    assert isinstance(operator, sparsegen.SparseOperator)
    ours = checked_call(operator, matrix)
    executor = operator.launcher.prepared.executor
    calls: dict[str, Callable[[], Any]] = {"ours": ours, **dense_calls(matrix, layer, device)}
    us = times_in_turn(executor, calls, rounds=4, samples=15, lead=waiting_lead(executor))
    dense = min(time_us for contender, time_us in us.items() if contender != "ours")
    return {
        "m": problem.m,
        "k": problem.k,
        "n": problem.n,
        "count": layer.count,
        "nonzeros": matrix.nnz,
        "family": operator.choice.family.name,
        "config": operator.choice.config.to_dict(),
        "how": str(operator.choice.how),
        "worst_error": round(ours.worst, 3),
        "us": {contender: round(time_us, 2) for contender, time_us in us.items()},
        "dense_us": round(dense, 2),
        "to_dense": float(f"{dense / us['ours']:.4g}"),
    }


def dense_calls(matrix: CsrMatrix, layer: Layer, device: Device) -> dict[str, Callable[[], Any]]:
    """PyTorch's ways, each checked against the others' formula."""
    import torch  # here, so that searches need not wait for it
    from torch.nn.functional import conv2d

    place = torch_place(device)
    torch.backends.cudnn.allow_tf32 = False  # which is on by default, for convolutions alone
    torch.backends.cudnn.benchmark = True
    weight = torch.from_numpy(matrix.to_scipy().toarray()).to(place)
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(layer.in_channels, layer.pixels, generator=generator).to(place)
    bias = torch.randn(layer.out_channels, generator=generator).to(place)
    as_column, as_kernel = bias[:, None], weight[:, :, None, None]
    as_image = image.view(1, layer.in_channels, layer.height, layer.height)
    calls: dict[str, Callable[[], Any]] = {
        "cublas": lambda: torch.addmm(as_column, weight, image).relu_(),
        "cublaslt fused": lambda: torch._addmm_activation(bias, image.t(), weight.t()),
        "cudnn": lambda: conv2d(as_image, as_kernel, bias).relu_(),
    }
    exact = (weight.double() @ image.double() + as_column.double()).relu()
    for name, call in calls.items():
        found = call()
        found = found.t() if name == "cublaslt fused" else found.view(exact.shape)
        torch.testing.assert_close(
            found.double(), exact, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )
    return calls


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each width: all 1 × 1 convolutions of the network one after the other, and the layers' geometric mean."""
    found = []
    for width in sorted({row["width"] for row in rows}):
        own = [row for row in rows if row["width"] == width]
        ours, dense = (sum(row["count"] * us(row) for row in own) for us in (_ours_us, _dense_us))
        found.append(
            {
                "width": width,
                "ours_us": round(ours, 1),
                "dense_us": round(dense, 1),
                "to_dense": float(f"{dense / ours:.4g}"),
                "geometric_mean": float(f"{geometric_mean(row['to_dense'] for row in own):.4g}"),
            }
        )
    return found


def _ours_us(row: dict[str, Any]) -> float:
    return float(row["us"]["ours"])


def _dense_us(row: dict[str, Any]) -> float:
    return float(row["dense_us"])


if __name__ == "__main__":
    main()
