"""Masked convolutions beside cuDNN's dense ones: shapes, sparsities, masks of the output and of the input.

    python -m benchmarks.masked_conv2d                  # a minute, of which half is compiling
    python -m benchmarks.masked_conv2d --group report   # one group of rows

Every row times `torch.nn.functional.conv2d` (float16, channels last, benchmark mode) and some configs of `halo_conv`,
those that the tuner tries first, in turn: one call between two events, the L2 overwritten before each, the median of
many. Ours finds the units in the mask within the call. Each config's result is held against cuDNN's first.
Raw output: lines of text, on standard output and in ``masked_conv2d.txt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

import sparsegen
from benchmarks.common import result_folder
from sparsegen import backends, masks
from sparsegen.kernels.halo_conv import FAMILY, HaloConvConfig
from sparsegen.operators import (
    ConvEpilogue,
    DType,
    FilterSize,
    MaskBlock,
    MaskedConv2dProblem,
    MaskOf,
    Padding,
    Rest,
    Stride,
)
from sparsegen.plan.variants import compile_variant

SPARSITIES = (0.0, 0.5, 0.7, 0.9, 0.95)
FLUSHED_BYTES = 200 << 20
LEAD_CYCLES = 30_000_000  # that the device spins while calls are queued
LARGEST_ERROR = 0.02  # absolute, where results are of variance 1
EXACT_ELEMENTS = 1 << 24  # of images: larger ones are held against cuDNN in float16


@dataclass(frozen=True)
class Row:
    """A shape, with the sparsities and kinds of masks to measure."""

    group: str
    problem: MaskedConv2dProblem
    sparsities: tuple[float, ...] = SPARSITIES
    kinds: tuple[str, ...] = ("random",)

    def configs(self) -> list[HaloConvConfig]:
        """What the tuner would try first."""
        p, device = self.problem, backends.find_device("cuda")
        features = p.features(p.without_pattern)
        some = (FAMILY.guess(p, features, device), *FAMILY.alternatives(p, features, device))
        return list(dict.fromkeys(some))


def shape(channels: int, images: int, side: int, **others: Any) -> MaskedConv2dProblem:
    """A square problem of the issue's kind."""
    found = MaskedConv2dProblem(
        side,
        side,
        channels,
        channels,
        DType.FLOAT16,
        batch=images,
        rest=Rest.KEPT,
        mask_block=MaskBlock(16, 16),
    )
    return replace(found, **others)


def rows() -> Iterator[Row]:
    """All groups."""
    for channels in (64, 128, 256):
        for images in (1, 8):
            for side in (128, 256, 512):
                yield Row("output", shape(channels, images, side))
    dilated = shape(128, 8, 256, mask_of=MaskOf.INPUT)
    yield Row("input", dilated, (0.5, 0.9, 0.95), ("blobs", "random"))
    ones = {"filter_size": FilterSize(1, 1), "padding": Padding(0, 0)}
    yield Row("others", shape(256, 8, 256, **ones), (0.0, 0.9))
    yield Row("others", shape(128, 1, 256, filter_size=FilterSize(5, 5), padding=Padding(2, 2)), (0.0, 0.9))
    yield Row("others", shape(128, 8, 256, stride=Stride(2, 2)), (0.0, 0.9))
    yield Row("others", shape(32, 8, 512), (0.0, 0.9))
    yield Row("filled", shape(128, 8, 256, rest=Rest.FILLED), (0.5, 0.9))
    yield Row("filled", shape(128, 8, 256, rest=Rest.FILLED, epilogue=ConvEpilogue.BIAS_RESIDUAL), (0.9,))


def mask_of(row: Row, sparsity: float, kind: str, torch: Any) -> Any:
    """bools for the blocks: so many of random ones, or of those where smooth noise is largest."""
    p, generator = row.problem, torch.Generator("cuda").manual_seed(0)
    dimensions = (p.batch, *p.mask_shape)
    count = int(np.prod(dimensions))
    if kind == "random":
        scores = torch.rand(count, device="cuda", generator=generator)
    else:
        coarse = [max(2, side // 8 + 1) for side in dimensions[1:]]
        noise = torch.randn(p.batch, 1, *coarse, device="cuda", generator=generator)
        up = torch.nn.functional.interpolate(noise, dimensions[1:], mode="bicubic", align_corners=True)
        scores = up.flatten()
    found = torch.zeros(count, dtype=torch.bool, device="cuda")
    found[scores.topk(max(1, round(count * (1 - sparsity)))).indices] = True
    return found.view(dimensions)


def medians(torch: Any, calls: list[Callable[[], Any]], repetitions: int) -> list[float]:
    """Microseconds of each call, taken in turn."""
    buffer = torch.empty(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
    for call in calls:
        call()
        call()
    events: list[list[tuple[Any, Any]]] = [[] for _ in calls]
    torch.cuda.synchronize()
    torch.cuda._sleep(LEAD_CYCLES)
    for _ in range(repetitions):
        for call, found in zip(calls, events, strict=True):
            buffer.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            found.append((start, end))
    torch.cuda.synchronize()
    return [float(np.median([a.elapsed_time(b) * 1e3 for a, b in found])) for found in events]


class Measured:
    """Operands of a row on the device, and its configs as operators."""

    def __init__(self, row: Row, torch: Any) -> None:
        p = row.problem
        self.row, self.torch = row, torch
        scale = (p.taps * p.channels) ** -0.5
        self.x = torch.randn(p.batch, p.height, p.width, p.channels, device="cuda").half()
        size = p.filter_size
        self.w = (torch.randn(p.filters, size.rows, size.columns, p.channels, device="cuda") * scale).half()
        self.out = torch.zeros(p.batch, p.out_height, p.out_width, p.filters, dtype=torch.half, device="cuda")
        self.more = {}
        if p.epilogue.has_bias:
            self.more["bias"] = torch.randn(p.filters, device="cuda").half()
        if p.epilogue.has_residual:
            self.more["residual"] = torch.randn_like(self.out)
        self.configs = row.configs()
        self.operators = [
            sparsegen.prepare(problem=p, family=FAMILY.name, config=c.to_dict()) for c in self.configs
        ]

    def dense(self, x: Any) -> Any:
        p = self.row.problem
        strides, padding = (p.stride.rows, p.stride.columns), (p.padding.rows, p.padding.columns)
        found = self.torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2), self.w.to(x.dtype).permute(0, 3, 1, 2), stride=strides, padding=padding
        )
        return found.permute(0, 2, 3, 1)

    def ours(self, operator: Any, x: Any, words: Any) -> Any:
        p = self.row.problem
        squeeze = (lambda t: t[0]) if p.batch == 1 else (lambda t: t)
        more = {k: squeeze(v) if k == "residual" else v for k, v in self.more.items()}
        return operator(squeeze(x), self.w, words, out=squeeze(self.out), **more)

    def lines(self, repetitions: int) -> Iterator[str]:
        """One for each sparsity and kind of mask."""
        p, torch = self.row.problem, self.torch
        for kind in self.row.kinds:
            for sparsity in self.row.sparsities:
                mask = mask_of(self.row, sparsity, kind, torch)
                words = masks.words_of(mask).view(torch.uint64).reshape(p.batch, -1)
                words = words[0] if p.batch == 1 else words
                x = self.x
                if p.mask_of is MaskOf.INPUT:
                    live = mask.repeat_interleave(p.mask_block.rows, 1).repeat_interleave(
                        p.mask_block.columns, 2
                    )
                    x = x * live[:, : p.height, : p.width, None]
                self._check(x, words, mask)
                calls = [lambda x=x: self.dense(x)]
                calls += [lambda o=o, x=x, words=words: self.ours(o, x, words) for o in self.operators]
                dense, *times = medians(torch, calls, repetitions)
                best = int(np.argmin(times))
                config = " ".join(f"{k}={v}" for k, v in self.configs[best].to_dict().items())
                yield (
                    f"{self.row.group:7s} C{p.channels:<4d}N{p.batch} {p.height:3d} {p.filter_size} "
                    f"s{p.stride.rows} {p.rest} {kind:6s} {sparsity:.2f}  cuDNN {dense:8.1f} us  ours "
                    f"{times[best]:8.1f} us  x{dense / times[best]:6.2f}  {config}"
                )

    def _check(self, x: Any, words: Any, mask: Any) -> None:
        """Raises SystemExit where a config is wrong."""
        p = self.row.problem
        exact = self.dense(x.float()) if x.numel() < EXACT_ELEMENTS else self.dense(x).float()
        if p.epilogue.has_bias:
            exact = exact + self.more["bias"].float()
        live = mask.repeat_interleave(p.mask_block.rows, 1).repeat_interleave(p.mask_block.columns, 2)
        live = live[:, : p.out_height, : p.out_width, None]
        if p.mask_of is MaskOf.OUTPUT:
            exact = exact * live
        if p.epilogue.has_residual:
            exact = exact + self.more["residual"].float()
        for operator in self.operators:
            self.out.zero_()
            self.ours(operator, x, words)
            error = float((self.out.float() - exact).abs().max())
            if not error <= LARGEST_ERROR:
                raise SystemExit(f"{p}: {operator} is off by {error}")


@click.command()
@click.option("--group", "groups", multiple=True, help="default: all")
@click.option("--repetitions", default=20, show_default=True)
def main(groups: tuple[str, ...], repetitions: int) -> None:
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    chosen = [row for row in rows() if not groups or row.group in groups]
    device = backends.find_device("cuda")
    toolchain = backends.toolchain(device)
    with ThreadPoolExecutor(12) as pool:  # ahead, so that nothing compiles between two rows
        pairs = {(c, row.problem) for row in chosen for c in row.configs()}
        for job in [pool.submit(compile_variant, c, p, toolchain) for c, p in pairs]:
            job.result()
    path = result_folder(device) / "masked_conv2d.txt"
    with path.open("w") as file:
        for row in chosen:
            for line in Measured(row, torch).lines(repetitions):
                print(line, flush=True)
                file.write(line + "\n")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
