"""A masked convolution of images in the host's memory, to results there: copied in chunks, or read where they lie.

    python -m benchmarks.host_convolution

The configuration is that of Shah and Nair, Block Sparse Convolution (CS6023 report): 256 images of 512 × 512 pixels
with 3 channels, one 3 × 3 filter, blocks of 8 × 8, 70 % of them dead, float32; and other sparsities, as their times did
not fall with it. Dead blocks of the input are zero. Images and results lie in pinned memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np
import torch
from torch.nn import functional

import sparsegen
from benchmarks.study import write_results
from sparsegen import masks
from sparsegen.backends import find_device
from sparsegen.operators import Density, MaskedConv2dProblem

SPARSITIES = (0.0, 0.5, 0.7, 0.9, 0.95)
PIPELINES = ((8, 4), (16, 4), (8, 8), (32, 4))  # images of a chunk, streams


def milliseconds(call: Callable[[], object], repetitions: int) -> float:
    """The median of some calls, each until the device has ended."""
    taken = []
    for number in range(repetitions + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number > 0:
            taken.append((time.perf_counter() - began) * 1e3)
    return float(np.median(taken))


class Study:
    """Images of one sparsity in pinned memory, and the ways to convolve them."""

    def __init__(self, problem: MaskedConv2dProblem, seed: int) -> None:
        p = self.problem = problem
        generator = torch.Generator("cuda").manual_seed(seed)
        shape = p.batch, p.height, p.width, p.channels
        self.live = torch.rand(p.batch, *p.mask_shape, device="cuda", generator=generator) < p.density.share
        self.w = torch.randn(p.filters, 3, 3, p.channels, device="cuda", generator=generator)
        images = torch.randn(shape, device="cuda", generator=generator) * self._wide()
        self.words = masks.words_of(self.live).view(torch.uint64)
        self.expected = self.dense(images)
        self.x = torch.empty(shape, pin_memory=True)
        self.x.copy_(images)
        self.y = torch.zeros(p.batch, p.out_height, p.out_width, p.filters, pin_memory=True)
        self.operators: dict[int, Any] = {}

    def _wide(self) -> Any:
        wide = self.live.repeat_interleave(self.problem.mask_block.rows, 1)
        return wide.repeat_interleave(self.problem.mask_block.columns, 2)[..., None].float()

    def operator(self, images: int) -> Any:
        """Returns the convolution of ``images`` images."""
        if images not in self.operators:
            problem = replace(self.problem, batch=images)
            self.operators[images] = sparsegen.prepare(problem=problem, family="strip_conv", dense="never")
        return self.operators[images]

    def dense(self, images: Any) -> Any:
        """Computes the convolution by cuDNN, of images on the device."""
        found = functional.conv2d(images.permute(0, 3, 1, 2), self.w.permute(0, 3, 1, 2), padding=1)
        return found.permute(0, 2, 3, 1).contiguous()

    def in_place(self) -> None:
        """One launch reads the live blocks from the host's memory, and writes the results there."""
        words = self.words.reshape(self.problem.operands(0)[2].shape)
        self.operator(self.problem.batch)(self.x, self.w, words, out=self.y)

    def copied(
        self, chunk: int, streams: int, convolve: Callable[[Any, Any, Any], None]
    ) -> Callable[[], None]:
        """Chunks of images go up, are convolved and come down, each on one of some streams."""
        queues = [torch.cuda.Stream() for _ in range(streams)]
        places = [
            (torch.empty_like(self.x[:chunk], device="cuda"), torch.zeros_like(self.y[:chunk], device="cuda"))
            for _ in queues
        ]
        words = self.words.reshape(self.problem.batch, -1)

        def run() -> None:
            for number, first in enumerate(range(0, self.problem.batch, chunk)):
                images, results = places[number % streams]
                with torch.cuda.stream(queues[number % streams]):
                    images.copy_(self.x[first : first + chunk], non_blocking=True)
                    convolve(images, words[first : first + chunk], results)
                    self.y[first : first + chunk].copy_(results, non_blocking=True)

        return run

    def masked(self, images: Any, words: Any, results: Any) -> None:
        """A chunk on the device, by its mask; what is left out is zero already, or of an earlier chunk's blocks."""
        results.zero_()
        self.operator(len(images))(images, self.w, words, out=results)

    def all_pixels(self, images: Any, words: Any, results: Any) -> None:
        """A chunk on the device, densely."""
        results.copy_(self.dense(images))

    def error(self) -> float:
        """The largest difference of what the last way wrote from the dense result."""
        return float((self.y.cuda() - self.expected).abs().max())


def measured(study: Study, repetitions: int) -> dict[str, Any]:
    """Milliseconds of each way at one sparsity, and the largest error of any."""
    ways: dict[str, Callable[[], object]] = {"in_place": study.in_place}
    for chunk, streams in PIPELINES:
        if study.problem.batch % chunk == 0:
            ways[f"copied_{chunk}_images_{streams}_streams"] = study.copied(chunk, streams, study.masked)
    chunk, streams = PIPELINES[0]
    ways["cudnn_copied"] = study.copied(chunk, streams, study.all_pixels)
    on_device = torch.empty_like(study.x, device="cuda")
    ways["upload_alone"] = lambda: on_device.copy_(study.x, non_blocking=True)
    row: dict[str, Any] = {"sparsity": round(1 - study.problem.density.share, 4)}
    for name, call in ways.items():
        study.y.zero_()
        row[f"{name}_ms"] = milliseconds(call, repetitions)
        if name != "upload_alone" and (error := study.error()) > 1e-4:
            raise click.ClickException(f"{name} is off by {error:.3g} at {row['sparsity']:.0%}")
    words = study.words.reshape(study.problem.operands(0)[2].shape)
    operator, out = study.operator(study.problem.batch), torch.zeros_like(study.y, device="cuda")
    row["kernel_on_device_ms"] = milliseconds(
        lambda: operator(on_device, study.w, words, out=out), repetitions
    )
    return row


@click.command()
@click.option("--images", default=256, show_default=True)
@click.option("--side", default=512, show_default=True, help="Rows and columns of an image.")
@click.option("--repetitions", default=7, show_default=True)
@click.option("--sparsity", "sparsities", multiple=True, type=float, default=SPARSITIES, show_default=True)
def main(images: int, side: int, repetitions: int, sparsities: Sequence[float]) -> None:
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    rows = []
    for seed, sparsity in enumerate(sparsities):
        problem = MaskedConv2dProblem.of(
            (side, side),
            **{
                "channels": 3,
                "filters": 1,
                "batch": images,
                "mask_block": 8,
                "mask_of": "input",
                "rest": "kept",
            },
            density=Density.parse(1 - sparsity),
        )
        study = Study(problem, seed)
        rows.append(measured(study, repetitions))
        click.echo("  ".join(f"{name} {value:.2f}" for name, value in rows[-1].items()))
    write_results(find_device("cuda"), "host_convolution", rows, images=images, side=side)


if __name__ == "__main__":
    main()
