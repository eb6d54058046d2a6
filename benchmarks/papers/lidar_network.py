"""A bird's-eye view of a LiDAR sweep through a convolutional network, dense and where the sweep has points.

    python -m benchmarks.papers.lidar_network --data DATA

What Shah and Nair planned and SBNet (Ren et al., CVPR 2018) does: points are counted in cells of the ground plane, and
a network of 20 layers of 3 × 3 runs over the view; blocks of pixels without a point are skipped. ``masked`` is
`masked_sequential` with the view's mask of blocks in every layer, SBNet's way: layers that see beyond a live block's
edge see zeros there, where the dense network sees its own results. ``grown`` is the same with masks that grow by what
each layer reads. ``dense`` are the layers by cuDNN, whose result counts in the view's live blocks alone; a difference
says what masking makes of the last layer there. Each is a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.graph_capture import captured
from benchmarks.markdown import figure, quotient, table
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import Claim, Document, Point, Setting, Study, outcome, result
from benchmarks.study import times_in_turn
from sparsegen.integrations.torch import masked_sequential

CELL = 0.1  # metres of a pixel
LAYERS, CHANNELS = 20, (32, 64, 128)
BLOCKS = (8, 16, 32)
HEIGHTS = 3  # slices of height, a channel each


def view(points: np.ndarray, side: int) -> Tensor:
    """Points in the cells of side × side metres / `CELL` before the sensor: 1 × HEIGHTS × side × side, logarithms."""
    x = np.floor(points[:, 0] / CELL).astype(int)
    y = np.floor(points[:, 1] / CELL).astype(int) + side // 2
    z = np.clip(np.floor((points[:, 2] + 2) / 2 * HEIGHTS), 0, HEIGHTS - 1).astype(int)
    inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
    counted = np.zeros((HEIGHTS, side, side), np.float32)
    np.add.at(counted, (z[inside], x[inside], y[inside]), 1)
    return torch.from_numpy(np.log1p(counted))[None]


def live_blocks(image: Tensor, block: int) -> Tensor:
    """Bools, 1 × rows × columns of blocks: those that have a point."""
    any_point = image.amax(1, keepdim=True)
    return nn.functional.max_pool2d(any_point, block)[:, 0] > 0


def layers(channels: int, count: int) -> nn.Sequential:
    """3 × 3 convolutions with a bias, each behind a ReLU."""
    made: list[nn.Module] = []
    for number in range(count):
        made += [nn.Conv2d(channels if number else HEIGHTS, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*made)


class LidarNetwork(Study):
    name = "lidar_network"
    title = "LiDAR bird's-eye view"
    paper = "A. Shah, A. Nair: Block Sparse Convolution, 2018, future work; M. Ren et al.: SBNet, CVPR 2018"
    gpu = "GTX 1080 Ti (SBNet)"
    claims = (
        Claim("the report's own kernels on real data", "future work: no data", "Future Work, 3"),
        Claim("in a network", "future work", "Future Work, 5"),
        Claim("SBNet over dense convolutions", "up to an order of magnitude", "Existing Work"),
    )
    differs = (
        "The network has random weights: times and differences count, not detections.",
        "The sweep is KITTI's, of the front of the car; the mask is made of its points.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        side, count = (64, 2) if setting.tiny else (512, LAYERS)
        for channels in (16,) if setting.tiny else CHANNELS:
            for block in (8,) if setting.tiny else BLOCKS:
                yield Point(
                    f"{side}², {channels} channels, blocks of {block}",
                    lambda c=channels, b=block: self.measured(side, count, c, b, setting),
                    expected=3
                    + seconds(compiled=6),  # kernels of the first, a middle and the last layer, raced
                )

    def measured(self, side: int, count: int, channels: int, block: int, setting: Setting) -> dict[str, Any]:
        """Milliseconds of both, the share of live blocks, and what masking changes."""
        torch.manual_seed(self.seed)
        points, what = setting.data.sweep()
        place, dtype = setting.place, torch.float16 if setting.is_timed else torch.float32
        dense = layers(channels, count).to(place, dtype).eval()
        image = view(points, side).to(place, dtype).contiguous(memory_format=torch.channels_last)
        dense = dense.to(memory_format=torch.channels_last)
        mask = live_blocks(image.float(), block)
        nets = [masked_sequential(dense, mask_block=block, grows=grows) for grows in (False, True)]
        with torch.no_grad():
            wanted = dense(image)
            wide = mask.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, None]
            size = (wanted * wide).float().norm().clamp(min=1e-12)
            found = [net(image, mask)[0] for net in nets]
            differences = [float(((one - wanted) * wide).float().norm() / size) for one in found]
            runs = [partial(net, image, mask) for net in nets] + [partial(dense, image)]
            us: Sequence[float | None] = [None] * len(runs)
            if setting.is_timed:
                us = times_in_turn([captured(run, place)[0] for run in runs])
        ms = [None if one is None else round(one / 1e3, 4) for one in us]
        return {
            "data": what,
            "side": side,
            "layers": count,
            "channels": channels,
            "block": block,
            "live": round(float(mask.float().mean()), 4),
            **dict(zip(("masked_ms", "grown_ms", "dense_ms"), ms, strict=True)),
            "difference": round(differences[0], 5),
            "grown_difference": round(differences[1], 5),
        }

    def table(self, document: Document) -> str:
        lines = [
            [
                r["point"],
                f"{r['live']:.1%}",
                *(figure(r[way]) for way in ("masked_ms", "grown_ms", "dense_ms")),
                *(outcome(quotient(r["dense_ms"], r[way])) for way in ("masked_ms", "grown_ms")),
                *(f"{r[way]:.2%}" for way in ("difference", "grown_difference")),
            ]
            for r in document["rows"]
        ]
        heads = ["20 layers", "live", "one mask, ms", "grown masks, ms", "cuDNN, ms"]
        heads += ["one mask beside cuDNN", "grown masks"]
        return table([*heads, "one mask: difference in live blocks", "grown masks"], lines)

    def results(self, document: Document) -> Sequence[str]:
        return [
            result(f"{row['point']}, {row['live']:.0%} live, {what}, over cuDNN", row["dense_ms"] / row[way])
            for row in document["rows"]
            if row["masked_ms"]
            for what, way in (("one mask", "masked_ms"), ("grown masks", "grown_ms"))
        ]


STUDY = LidarNetwork()
main = STUDY.command()

if __name__ == "__main__":
    main()
