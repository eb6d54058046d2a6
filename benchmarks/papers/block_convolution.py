"""The block-sparse convolution of a report, on its own configuration: over sparsity, size and block.

    python -m benchmarks.papers.block_convolution

Shah and Nair, Block Sparse Convolution (CS6023 report), figures 4 to 6: 256 images of 512 × 512 pixels with 3
channels, one 3 × 3 filter, blocks of 8 × 8, 70 % of them dead, float32, from the host's memory and back. Dead blocks of
the input are zero. Images and results lie in pinned memory: ``in_place`` reads live blocks where they lie, ``copied``
moves chunks of images on several streams, as in the report. ``kernel`` is the kernel alone, on the device, beside cuDNN
(``dense``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import sparsegen
from benchmarks.markdown import figure, quotient, table
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import Claim, Document, Point, Row, Setting, Study, outcome, result, svg
from benchmarks.study import WrongResultError
from sparsegen import masks
from sparsegen.operators import Density, MaskedConv2dProblem

SPARSITIES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # figure 5: 50 to 90 %
TOLD = (0.5, 0.9, 0.7, 0.0)  # told first
SIDES = (64, 128, 256, 512)  # figure 4
BLOCKS = (2, 4, 8, 16, 32, 64, 128)  # figure 6
PIPELINES = ((8, 4), (16, 4), (8, 8), (32, 4))  # images of a chunk, streams
REPETITIONS, TOLERANCE = 7, 1e-4
WAYS = {
    "in place, ms": "in_place_ms",
    "copied, ms": "copied_8_images_4_streams_ms",
    "cuDNN copied, ms": "cudnn_copied_ms",
    "upload alone, ms": "upload_alone_ms",
    "kernel, ms": "kernel_ms",
    "cuDNN, ms": "dense_ms",
}

BESIDE = {
    "in place beside copies and cuDNN": ("in_place_ms", "cudnn_copied_ms"),
    "kernel beside cuDNN": ("kernel_ms", "dense_ms"),
}


class Images:
    """Images of one sparsity, on a GPU's host in pinned memory, and the ways to convolve them."""

    def __init__(self, problem: MaskedConv2dProblem, place: torch.device, seed: int) -> None:
        p = self.problem = problem
        self.place, self.is_timed = place, place.type == "cuda"
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
        generator = torch.Generator(place).manual_seed(seed)
        shape = p.batch, p.height, p.width, p.channels
        self.live = torch.rand(p.batch, *p.mask_shape, device=place, generator=generator) < p.density.share
        self.w = torch.randn(p.filters, 3, 3, p.channels, device=place, generator=generator)
        self.images = torch.randn(shape, device=place, generator=generator) * self._wide()
        self.words = masks.words_of(self.live).view(torch.uint64).reshape(p.operands(0)[2].shape)
        self.expected = self.dense(self.images)
        self.x = torch.empty(shape, pin_memory=self.is_timed)
        self.x.copy_(self.images)
        self.y = torch.zeros(p.batch, p.out_height, p.out_width, p.filters, pin_memory=self.is_timed)
        self.operators: dict[int, Any] = {}

    def _wide(self) -> Any:
        p = self.problem
        wide = self.live.repeat_interleave(p.mask_block.rows, 1).repeat_interleave(p.mask_block.columns, 2)
        return wide[:, : p.height, : p.width, None].float()

    def operator(self, images: int) -> Any:
        """The convolution of a number of images."""
        if images not in self.operators:
            problem = replace(self.problem, batch=images)
            self.operators[images] = sparsegen.prepare(problem=problem, dense="never")
        return self.operators[images]

    def dense(self, images: Any) -> Any:
        """PyTorch's convolution of images on the device."""
        found = functional.conv2d(images.permute(0, 3, 1, 2), self.w.permute(0, 3, 1, 2), padding=1)
        return found.permute(0, 2, 3, 1).contiguous()

    def in_place(self) -> None:
        """One launch reads the live blocks from the host's memory, and writes the results there."""
        self.operator(self.problem.batch)(self.x, self.w, self.words, out=self.y)

    def on_device(self, out: Any) -> None:
        """The kernel alone; the emulator takes NumPy's arrays."""
        given = (self.images, self.w, self.words)
        if self.is_timed:
            self.operator(self.problem.batch)(*given, out=out)
        else:
            self.operator(self.problem.batch)(*(one.numpy() for one in given), out=out.numpy())

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
        operator = self.operator(len(images))
        operator(images, self.w, words.reshape(operator.problem.operands(0)[2].shape), out=results)

    def all_pixels(self, images: Any, words: Any, results: Any) -> None:
        """A chunk on the device, densely."""
        results.copy_(self.dense(images))

    def require_right(self, what: str, found: Any) -> None:
        """Hold a result against the dense one.

        Raises:
            WrongResultError: it is not the same.
        """
        error = float((found.to(self.place) - self.expected).abs().max())
        if not error <= TOLERANCE:
            raise WrongResultError(f"{what}, {self.problem}: off by {error:.3g}")


def milliseconds(call: Callable[[], object]) -> float:
    """The median of some calls, each until the device has ended."""
    taken = []
    for number in range(REPETITIONS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if number > 0:
            taken.append((time.perf_counter() - began) * 1e3)
    return round(float(np.median(taken)), 4)


def measured(
    figure_name: str, side: int, block: int, sparsity: float, images: int, setting: Setting
) -> dict[str, Any]:
    """A row: milliseconds of each way.

    Raises:
        WrongResultError: a way's result is not the dense one.
    """
    problem = MaskedConv2dProblem.of(
        (side, side), channels=3, filters=1, batch=images, mask_block=block, mask_of="input", rest="kept",
        density=Density.parse(1 - sparsity),
    )  # fmt: skip
    given = Images(problem, setting.place, seed=0)
    out = torch.zeros_like(given.expected)
    given.on_device(out)
    given.require_right("the kernel", out)
    row: dict[str, Any] = {
        "figure": figure_name, "side": side, "block": block, "sparsity": sparsity, "images": images,
        "live": round(float(given.live.float().mean()), 4),
    }  # fmt: skip
    if not setting.is_timed:
        return row
    ways: dict[str, Callable[[], object]] = {"in_place": given.in_place}
    for chunk, streams in PIPELINES:
        ways[f"copied_{chunk}_images_{streams}_streams"] = given.copied(chunk, streams, given.masked)
    ways["cudnn_copied"] = given.copied(*PIPELINES[0], given.all_pixels)
    for name, call in ways.items():
        given.y.zero_()
        row[f"{name}_ms"] = milliseconds(call)
        given.require_right(name, given.y)
    row["upload_alone_ms"] = milliseconds(lambda: given.images.copy_(given.x, non_blocking=True))
    row["kernel_ms"] = milliseconds(lambda: given.on_device(out))
    row["dense_ms"] = milliseconds(lambda: given.dense(given.images))
    return row


def row_seconds(side: int, images: int) -> float:
    """Seconds of a row: pinned memory at 1 GB/s, calls that each move the images over the bus, and kernels."""
    moved = 4 * 4 * images * side**2
    calls = (len(PIPELINES) + 4) * (1 + REPETITIONS)
    return 3 + moved / 1e9 + calls * moved / 40e9 + seconds(compiled=2 + len(PIPELINES) // 2)


class BlockConvolution(Study):
    name = "block_convolution"
    title = "Block-sparse convolution: the report's images"
    paper = "A. Shah, A. Nair: Block Sparse Convolution, CS6023 report, IIT Madras, 2018"
    gpu = "a GPU that the report does not name"
    claims = (
        Claim("time over the input's size", "grows", "Fig. 4"),
        Claim("time over sparsity, 50 to 90 %", "no particular order: hardly varies", "Fig. 5"),
        Claim("time over the block", "falls from 2 to 4, then grows", "Fig. 6"),
        Claim("matrix product, im2col, col2im of one image of 512² × 3", "1.71, 0.30, 0.39 ms", "Fig. 7"),
        Claim("upload of one image", "0.30 ms", "Fig. 7"),
    )
    differs = (
        "One kernel skips dead blocks in place of im2col, product and col2im.",
        "The kernel may read the host's memory in place, so that dead blocks are not copied at all.",
        "The report has figures without numbers; figure 7 has the profile.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        if setting.tiny:
            cases = [("5", 32, 8, 0.5, 2), ("6", 32, 4, 0.7, 2)]
        else:
            cases = [("5", 512, 8, p, 256) for p in sorted(SPARSITIES, key=lambda p: (p not in TOLD, p))]
            cases += [("4", side, 8, 0.7, 256) for side in SIDES if side != 512]
            cases += [("6", 512, block, 0.7, 256) for block in BLOCKS if block != 8]
        for name, side, block, sparsity, images in cases:
            yield Point(
                f"{side}², blocks of {block}, {sparsity:.0%}",
                lambda c=(name, side, block, sparsity, images): measured(*c, setting),
                expected=row_seconds(side, images),
            )

    def table(self, document: Document) -> str:
        lines = [
            [
                *(row["point"], *(figure(row.get(key)) for key in WAYS.values())),
                *(outcome(quotient(row.get(dense), row.get(ours))) for ours, dense in BESIDE.values()),
            ]
            for row in sorted(document["rows"], key=_order)
        ]
        return table(["256 images of 3 channels", *WAYS, *BESIDE], lines)

    def results(self, document: Document) -> Sequence[str]:
        rows = {
            r["sparsity"]: r
            for r in document["rows"]
            if (r["side"], r["block"]) == (512, 8) and "kernel_ms" in r
        }
        found = []
        for told, key in (("From host to host", "in_place_ms"), ("The kernel alone", "kernel_ms")):
            if {0.5, 0.9} <= rows.keys():
                share = rows[0.9][key] / rows[0.5][key]
                flat = (
                    "**flat, as in the report**, bound by instructions (docs/notes/masked-convolution.md)"
                    if share > 0.8
                    else "falls with sparsity, unlike the report's"
                )
                found.append(f"{told}: {share:.2f} of the time of 50 % at 90 %: {flat}.")
        if 0.7 in rows:
            found.append(
                result("At 70 %, the kernel over cuDNN", rows[0.7]["dense_ms"] / rows[0.7]["kernel_ms"])
            )
            host = rows[0.7]["cudnn_copied_ms"] / rows[0.7]["in_place_ms"]
            found.append(result("At 70 %, from host to host over copies and cuDNN", host))
        return found

    def why(self, document: Document, name: str) -> str:
        row = next((row for row in document["rows"] if row["point"] == name), {})
        ours, copy = (row.get(key) for key in ("in_place_ms", "upload_alone_ms"))
        if ours and copy and ours > row["cudnn_copied_ms"]:
            return (
                f"{1 - row['sparsity']:.0%} of the images live and pass the bus either way; a kernel's reads in place "
                f"take {ours:.1f} ms, copies of all {copy:.1f}"
            )
        return "little is dead, and cuDNN multiplies on tensor cores"

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        rows = [row for row in document["rows"] if "kernel_ms" in row]
        if not rows:
            return False
        made = Figure(figsize=(11, 3.2), layout="constrained")
        at = {"sparsity": (512, 8, None), "side": (None, 8, 0.7), "block": (512, None, 0.7)}
        for axes, (key, fixed) in zip(made.subplots(1, 3), at.items(), strict=True):
            wanted = dict(zip(("side", "block", "sparsity"), fixed, strict=True))
            some = sorted(
                (r for r in rows if all(r[k] == v for k, v in wanted.items() if v is not None)),
                key=lambda r: r[key],
            )
            for name, field in WAYS.items():
                axes.plot([r[key] for r in some], [r[field] for r in some], marker=".", label=name)
            axes.set(xlabel=key, ylabel="ms", yscale="log")
            if key != "sparsity":
                axes.set_xscale("log", base=2)
        axes.legend()
        return svg(made, path)


def _order(row: Row) -> tuple[float, ...]:
    return row["side"], row["block"], row["sparsity"]


STUDY = BlockConvolution()
main = STUDY.command()

if __name__ == "__main__":
    main()
