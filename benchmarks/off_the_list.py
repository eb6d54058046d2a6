"""The problems of issue 37 that stood in no list, again: products and convolutions with masks, nothing tuned.

    python -m benchmarks.off_the_list --compile-for nvidia-h200   # no GPU: fills the cache
    python -m benchmarks.off_the_list [--minutes 1] [--into FOLDER]

Products are in float16 with half of the blocks live, weights as PyTorch stores them; convolutions in float16, of blocks
of 16 × 16 outputs, 3 × 3 with as many filters as channels, a stride of 2, 5 × 5 and 1 × 1. Behind them stand
convolutions of images in planes (NCHW); drawn rows of seed 224466 showed two of them to be slow. Each row has our
kernel without a search, the default call from Python and in a graph, and the dense libraries. Every row is written at
once. Given again, it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import click

from benchmarks.drawn_rows import SLOW, compile_ahead
from sparsegen import backends
from sparsegen.bench.baselines import baselines
from sparsegen.bench.patterns.case import Case, variations
from sparsegen.bench.patterns.patterns import Drawn
from sparsegen.bench.results.results import DEFAULT, IN_GRAPH, UNTUNED, Kind, Protocol
from sparsegen.bench.run.request import Request
from sparsegen.bench.run.run import run
from sparsegen.cli.parts.bench_text import row_line
from sparsegen.errors import SparsegenError
from sparsegen.measure.l2 import L2
from sparsegen.operators import (
    Block,
    Density,
    DsdProblem,
    DsdTransposedProblem,
    DType,
    FilterSize,
    Layout,
    MaskedConv2dProblem,
    Padding,
    Problem,
    SddProblem,
    Stride,
)
from sparsegen.tuning.prediction.targets import find_target

NAME = "off_the_list"
OURS = (UNTUNED, DEFAULT, IN_GRAPH)
# Tokens, features in and out.
PRODUCTS = (
    (6144, 3072, 5120),
    (2304, 9216, 2304),
    (16384, 768, 3072),
    (3000, 2504, 1720),
    (1536, 1536, 6144),
)
# Images, channels, rows and columns, with the live shares.
CONVOLUTIONS = (
    ((4, 96, 360, 640), (0.2, 0.05)),
    ((1, 128, 544, 960), (0.2, 0.05)),
    ((1, 32, 1088, 1920), (0.5, 0.2, 0.05)),
    ((16, 64, 160, 160), (0.5,)),
    ((8, 256, 96, 96), (0.5,)),
)
OTHER_CONVOLUTIONS = (
    MaskedConv2dProblem(384, 384, 64, 128, DType.FLOAT16, batch=2, stride=Stride(2, 2)),
    MaskedConv2dProblem(300, 260, 48, 80, DType.FLOAT16, filter_size=FilterSize(5, 5), padding=Padding(2, 2)),
    MaskedConv2dProblem(
        300, 260, 192, 64, DType.FLOAT16, filter_size=FilterSize(1, 1), padding=Padding(0, 0)
    ),
)

# Images in planes: rows and columns, channels, filters, and what is unusual.
PLANES: tuple[tuple[tuple[int, int], int, int, dict[str, object]], ...] = (
    ((54, 49), 176, 24, {"dtype": "bfloat16", "mask_of": "any_input", "mask_block": 128, "density": 0.68}),
    ((144, 218), 255, 12, {"dtype": "bfloat16", "batch": 4, "epilogue": "bias", "density": 1}),
    ((56, 56), 64, 64, {"batch": 4, "mask_block": 8}),
    ((128, 128), 128, 128, {}),
    ((224, 224), 3, 64, {"batch": 8, "filter_size": 7, "stride": 2, "padding": 3}),
    ((40, 40), 256, 256, {"batch": 2, "filter_size": 1, "padding": 0, "mask_block": 8}),
    ((200, 304), 48, 96, {"stride": 2, "mask_block": 8, "density": 0.25}),
    ((320, 320), 32, 32, {"dtype": "float32", "batch": 2}),
)


def problems() -> Iterator[Problem]:
    """The rows' problems, in the issue's order."""
    for block, (m, k, n) in product((128, 64), PRODUCTS):
        shared = {"block": Block(block, block), "density": Density(0.5)}
        for kind in (DsdProblem, SddProblem):
            yield replace(kind(m, k, n, DType.FLOAT16, w_layout=Layout.COLUMN), **shared)
        yield replace(DsdTransposedProblem(m, k, n, DType.FLOAT16, y_layout=Layout.COLUMN), **shared)
    for (images, channels, height, width), shares in CONVOLUTIONS:
        for share in shares:
            yield MaskedConv2dProblem(
                height,
                width,
                channels,
                channels,
                DType.FLOAT16,
                batch=images,
                density=Density(share),
            )
    yield from OTHER_CONVOLUTIONS
    for shape, channels, filters, unusual in PLANES:
        fields = {"dtype": "float16", "layout": "nchw", **unusual}
        yield MaskedConv2dProblem.of(shape, channels=channels, filters=filters, **fields)


def cases() -> list[Case]:
    """The rows."""
    return [
        Case(
            NAME,
            " ".join((p.operator, "x".join(map(str, p.sizes.values())), *variations(p))),
            p,
            (p.dtype,),
            Drawn(*p.without_pattern.shape),
            "issue 37",
        )
        for p in problems()
    ]


@click.command()
@click.option("--minutes", type=float, default=9.0, show_default=True, help="In all.")
@click.option(
    "--into", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder of files."
)
@click.option("--compile-for", "target", help="Only compile, for a described device: nvidia-h200.")
def main(minutes: float, into: Path, target: str | None) -> None:
    ends = time.monotonic() + 60 * minutes
    try:
        if target:
            for line in compile_ahead(cases(), find_target(target).device, 1, 60 * minutes):
                click.echo(line)
            return
        into.mkdir(parents=True, exist_ok=True)
        dense = {name for name, one in baselines().items() if one.kind is Kind.DENSE and name not in SLOW}
        some = [one for name, one in baselines().items() if name in dense.union(OURS)]
        request = Request(
            cases=cases(),
            baselines=some,
            device=backends.find_device(None),
            protocol=Protocol(L2.COLD, rounds=3, samples=15, tune="off"),
            output=into / f"{NAME}.json.xz",
            seconds=max(1e-3, ends - time.monotonic()),
            command=f"python -m benchmarks.{NAME}",
        )
        run(request, lambda step: click.echo(row_line(step.row)) if step.row is not None else None)
    except SparsegenError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
