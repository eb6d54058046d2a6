"""A small UNet computes the parts of its images that matter: LiDAR scenes from above, and an edited image.

python examples/masked_cnn.py --size 512 --channels 64 --picture masked_cnn.png

Both networks have the same random weights; the dense one computes every pixel, by cuDNN in channels last. The scenes
are drawn by a seeded generator: rings of a scanner, walls and cars. Of the edited image the rest is known from the
image before the edit. Times are those of CUDA graphs, on a GPU. Needs PyTorch, and matplotlib for the picture.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import interpolate
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch. examples/quickstart.py does not.")

from sparsegen.integrations.torch import MaskSource, convert_convolutions
from sparsegen.masks import from_difference, reduce_mask, resize

FEATURES = 16  # of a cell of a scene, and channels of an image
BLOCK = 16  # pixels of a block of the mask
REACH = 32  # pixels that the network looks at most to each side, rounded up to whole blocks
REPEATS = 30


class UNet(nn.Module):
    """Two halvings, two doublings and sums of what has the same size; every convolution is 3 × 3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        conv = nn.Conv2d
        self.first = conv(FEATURES, channels, 3, padding=1)
        self.downs = nn.ModuleList([conv(channels, channels, 3, stride=2, padding=1) for _ in range(2)])
        self.middle = conv(channels, channels, 3, padding=1)
        self.ups = nn.ModuleList([conv(channels, channels, 3, padding=1) for _ in range(2)])
        self.last = conv(channels, FEATURES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        seen = [torch.relu(self.first(x))]
        for down in self.downs:
            seen.append(torch.relu(down(seen[-1])))
        x = torch.relu(self.middle(seen.pop()))
        for up in self.ups:
            x = torch.relu(up(interpolate(x, scale_factor=2.0))) + seen.pop()
        return self.last(x)


def scenes(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Cells from above, count × features × size × size: rings of a scanner that walls and cars cut off."""
    beams, points = 12, 2048
    angles = torch.linspace(0, 2 * torch.pi, points)
    found = torch.zeros(count, FEATURES, size, size)
    for scene in found:
        walls = size * (0.1 + 0.3 * interpolate(torch.rand(1, 1, 12, generator=generator), points)[0, 0])
        for ring in torch.linspace(0.04, 0.45, beams) * size:
            distance = torch.minimum(ring.expand(points), walls) + torch.randn(points, generator=generator)
            is_seen = torch.rand(points, generator=generator) < 0.3
            rows, columns = (size / 2 + distance * turn for turn in (angles.sin(), angles.cos()))
            rows, columns = rows[is_seen].long(), columns[is_seen].long()
            is_inside = (rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)
            shape = FEATURES, int(is_inside.sum())
            scene[:, rows[is_inside], columns[is_inside]] = torch.randn(shape, generator=generator)
        for _ in range(12):  # cars
            row, column = torch.randint(size - 12, (2,), generator=generator).tolist()
            scene[:, row : row + 5, column : column + 11] = torch.randn(FEATURES, 5, 11, generator=generator)
    return found


def edited(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """An image of smooth noise, before and after a part was painted over."""
    before = interpolate(torch.randn(1, FEATURES, 16, 16, generator=generator), size, mode="bicubic")
    after, side, at = before.clone(), size // 10, int(size * 0.6)
    after[..., at : at + side, at // 2 : at // 2 + side] = torch.randn(1, FEATURES, 1, 1, generator=generator)
    return before, after


def microseconds(run: Callable[[], object]) -> float:
    """Median time of a replay of a call's graph, in microseconds."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1e3 * start.elapsed_time(end))
    return sorted(found)[REPEATS // 2]


def pixels(mask: Tensor, size: int) -> Tensor:
    """bool for each pixel: images × 1 × size × size."""
    wide = mask[:, None].repeat_interleave(BLOCK, 2).repeat_interleave(BLOCK, 3)
    return wide[:, :, :size, :size]


def report(
    title: str,
    x: Tensor,
    live: Tensor,
    exact: Tensor,
    found: Tensor,
    where: Tensor,
    dense: object,
    ours: object,
) -> tuple[str, Tensor, Tensor, Tensor]:
    """Print how far results lie apart where they count, and the times; returns what the picture shows."""
    assert callable(dense) and callable(ours)
    error = ((found - exact).float() * where).norm() / (exact.float() * where).norm()
    shares = live.float().mean(), where.float().mean()
    print(f"{title}: {shares[0]:.1%} of the blocks live")
    print(f"  relative error {error:.2g} at the {shares[1]:.1%} of the pixels that count")
    if x.is_cuda:
        times = microseconds(dense), microseconds(ours)
        print(
            f"  dense {times[0]:,.0f} µs, masked {times[1]:,.0f} µs: {times[0] / times[1]:.2f} times as fast"
        )
    computed = pixels(live, x.shape[2])
    shown = (
        x[0].abs().amax(0),
        computed[0, 0],
        ((found - exact).abs().amax(1, keepdim=True) * computed)[0, 0],
    )
    return (title, *(one.float().cpu() for one in shown))


def draw(rows: list[tuple[str, Tensor, Tensor, Tensor]], path: str) -> None:
    """Images, masks and errors side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        sys.exit("The picture needs matplotlib: pip install matplotlib")
    figure = Figure(figsize=(11, 3.7 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 3, squeeze=False)
    for line, (title, *shown) in zip(axes, rows, strict=True):
        for ax, image, name in zip(line, shown, ("input", "live blocks", "error"), strict=True):
            most = max(float(image.max()), 1e-6)
            drawn = ax.imshow(image.numpy(), cmap="magma" if name == "error" else "gray", vmin=0, vmax=most)
            ax.set_title(f"{title}: {name}")
            ax.set_axis_off()
            if name == "error":
                figure.colorbar(drawn, ax=ax, shrink=0.8)
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="pixels along a side, a multiple of 4")
    parser.add_argument("--channels", type=int, default=64, help="of the network's layers")
    parser.add_argument("--scenes", type=int, default=2, help="images of the LiDAR batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", metavar="FILE", help="draw masks and errors, such as masked_cnn.png")
    given = parser.parse_args()
    if given.size % 4 or given.size < 64:
        parser.error("--size: expected a multiple of 4 from 64 on")

    generator = torch.Generator().manual_seed(given.seed)
    torch.manual_seed(given.seed)
    device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)
    torch.backends.cudnn.benchmark = True
    dense = UNet(given.channels).to(device, dtype, memory_format=torch.channels_last).eval()
    masked, source = copy.deepcopy(dense), MaskSource(BLOCK)
    print(convert_convolutions(masked, source, density=0.3))

    def ready(x: Tensor) -> Tensor:
        return x.to(device, dtype, memory_format=torch.channels_last)

    size, rows = (given.size, given.size), []
    x = ready(scenes(given.scenes, given.size, generator))

    def on_scenes() -> Tensor:
        source.set(reduce_mask(x.abs().amax(1), BLOCK, 0.0), size)
        return masked(x)

    mask = reduce_mask(x.abs().amax(1), BLOCK, 0.0)
    occupied = x.abs().amax(1, keepdim=True) > 0
    rows.append(report("LiDAR scenes", x, mask, dense(x), on_scenes(), occupied, lambda: dense(x), on_scenes))

    before, after = map(ready, edited(given.size, generator))
    known = dense(before)

    def on_edit() -> Tensor:
        """Computes what the edit reaches, from twice as far, and takes the rest from the known result."""
        change = from_difference(after.permute(0, 2, 3, 1), before.permute(0, 2, 3, 1), BLOCK, 0.0)
        source.set(resize(change, size, BLOCK, size, margin=2 * REACH), size)
        reached = resize(change, size, BLOCK, size, margin=REACH)
        return torch.where(pixels(reached, given.size), masked(after), known)

    change = from_difference(after.permute(0, 2, 3, 1), before.permute(0, 2, 3, 1), BLOCK, 0.0)
    live = resize(change, size, BLOCK, size, margin=2 * REACH)
    everywhere = torch.ones_like(after[:, :1], dtype=torch.bool)
    rows.append(
        report(
            "edited image", after, live, dense(after), on_edit(), everywhere, lambda: dense(after), on_edit
        )
    )
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
