"""A perceptron trains on made-up digits: structured dropout that skips what it drops, against dropout and dense layers.

python examples/dropout_mlp.py --hidden 4096 --batch 4096 --p 0.5

Both train in bfloat16 under autocast, from the same initial weights, on the same batches; on a GPU a step is one CUDA
graph, and each replay drops other blocks. Needs PyTorch. Without a GPU it runs on the CPU, where nothing is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy, interpolate
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch. examples/quickstart.py does not.")

from sparsegen.integrations.torch import DropoutLinear

CLASSES, SIDE, STYLES, LARGEST_SHIFT = 10, 28, 8, 3
WARM_UP = 3  # steps before a graph is captured


def made_digits(count: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """Images of 28 × 28 and their classes: smooth random shapes, of several styles each, shifted, with noise."""
    shapes = torch.randn(CLASSES * STYLES, 1, 7, 7, generator=torch.Generator().manual_seed(0))
    shapes = interpolate(shapes, SIDE, mode="bicubic")[:, 0]
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    styles = torch.randint(STYLES, (count,), generator=generator)
    images = shapes[labels * STYLES + styles]
    shifts = torch.randint(-LARGEST_SHIFT, LARGEST_SHIFT + 1, (count, 2), generator=generator)
    places = torch.arange(SIDE)
    rows, columns = ((places + shift[:, None]) % SIDE for shift in shifts.unbind(1))
    images = images[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    images = images + 1.5 * torch.randn(images.shape, generator=generator)
    return images.flatten(1).to(device), labels.to(device)


def perceptron(hidden: int, second: Callable[[int, int], nn.Module], device: str) -> nn.Sequential:
    """Two hidden layers, dropout before the second and before the result."""
    first = nn.Sequential(nn.Linear(SIDE * SIDE, hidden), nn.ReLU())
    return nn.Sequential(first, second(hidden, hidden), nn.ReLU(), second(hidden, CLASSES)).to(device)


def train(model: nn.Module, data: tuple[Tensor, Tensor], batch: int, steps: int) -> tuple[float, float]:
    """The mean loss of the last tenth of the steps, and the milliseconds of one of them."""
    images, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    is_cuda = images.is_cuda

    def step() -> Tensor:
        chosen = torch.randint(len(labels), (batch,), device=images.device)
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            loss = cross_entropy(model(images[chosen]).float(), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = step
    if is_cuda:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()

        def run() -> Tensor:
            graph.replay()
            return loss.clone()

    losses = [run() for _ in range(steps // 2)]
    if is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    losses += [run() for _ in range(steps - steps // 2)]
    last = torch.stack(losses[-max(1, steps // 10) :]).mean().item()  # waits for the device
    return last, (time.perf_counter() - start) * 1e3 / (steps - steps // 2)


@torch.no_grad()
def accuracy(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """The share of images whose class the model finds."""
    images, labels = data
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=2048, help="width of the hidden layers")
    parser.add_argument("--batch", type=int, default=1024, help="images in a step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--p", type=float, default=0.5, help="probability to drop")
    parser.add_argument("--block", default="64", help='side of a block, or "rowsxcolumns"')
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known, unknown = (made_digits(count, seed, device) for count, seed in ((20_000, 1), (4_000, 2)))

    kinds: dict[str, Callable[[int, int], nn.Module]] = {
        "dropout and dense": lambda k, n: nn.Sequential(nn.Dropout(given.p), nn.Linear(k, n)),
        "structured dropout": lambda k, n: DropoutLinear(k, n, given.p, given.block),
    }
    for name, layer in kinds.items():
        found = []
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            model = perceptron(given.hidden, layer, device)
            loss, ms = train(model, known, given.batch, given.steps)
            found.append((loss, accuracy(model, unknown), ms))
        losses, right, times = zip(*found, strict=True)
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        print(
            f"{name:>18}: loss {statistics.mean(losses):.4f} ± {spread:.4f}, "
            f"{statistics.mean(right):.1%} of new images right, {statistics.median(times):.3f} ms a step"
        )


if __name__ == "__main__":
    main()
