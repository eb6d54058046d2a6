"""Three small networks train with structured dropout that skips what it drops, against dropout and dense layers.

python examples/structured_dropout.py gpt --width 1024 --batch 32 --p 0.2

A perceptron (mlp) and a vision transformer (vit) on made-up digits, and a character model (gpt) on the source of
Python's own library. Each trains in bfloat16 under autocast, both ways from the same initial weights; on a GPU a step
is one CUDA graph, and each replay drops other blocks. Needs PyTorch. Without a GPU it runs on the CPU, where nothing is
faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

try:
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy, interpolate, scaled_dot_product_attention
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch. examples/quickstart.py does not.")

from sparsegen.integrations.torch import DropoutLinear

CLASSES, SIDE, STYLES, LARGEST_SHIFT = 10, 28, 8, 3
PATCH = 4  # pixels along each side
CONTEXT, CHARACTERS, HEAD = 256, 128, 64
WARM_UP = 3  # steps before a graph is captured

Layer = Callable[[int, int], nn.Module]  # dropout and a linear layer, from inputs to outputs
Batch = tuple[Tensor, Tensor]  # inputs and the classes to find


class Digits:
    """Images of 28 × 28: smooth random shapes, of several styles for each class, shifted, with noise."""

    def __init__(self, count: int, seed: int, device: str) -> None:
        shapes = torch.randn(CLASSES * STYLES, 1, 7, 7, generator=torch.Generator().manual_seed(0))
        shapes = interpolate(shapes, SIDE, mode="bicubic")[:, 0]
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(CLASSES, (count,), generator=generator)
        images = shapes[labels * STYLES + torch.randint(STYLES, (count,), generator=generator)]
        shifts = torch.randint(-LARGEST_SHIFT, LARGEST_SHIFT + 1, (count, 2), generator=generator)
        rows, columns = ((torch.arange(SIDE) + shift[:, None]) % SIDE for shift in shifts.unbind(1))
        images = images[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
        images = images + 1.5 * torch.randn(images.shape, generator=generator)
        self.images, self.labels = images.to(device), labels.to(device)

    def draw(self, count: int) -> Batch:
        """Images and their classes, at random."""
        chosen = torch.randint(len(self.labels), (count,), device=self.labels.device)
        return self.images[chosen], self.labels[chosen]


class Text:
    """The characters of modules of Python's library, even ones to learn from and odd ones to be tested on."""

    def __init__(self, which: int, device: str) -> None:
        files = sorted(Path(argparse.__file__).parent.glob("*.py"))[which::2]
        data = b"".join(file.read_bytes() for file in files)
        self.characters = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)

    def draw(self, count: int) -> Batch:
        """Excerpts and the characters that follow, one place further."""
        starts = torch.randint(len(self.characters) - CONTEXT, (count, 1), device=self.characters.device)
        excerpts = self.characters[starts + torch.arange(CONTEXT + 1, device=starts.device)].long()
        excerpts = excerpts.clamp(max=CHARACTERS - 1)
        return excerpts[:, :-1], excerpts[:, 1:]


class Perceptron(nn.Sequential):
    """Two hidden layers, dropout before the second and before the result."""

    def __init__(self, width: int, layer: Layer) -> None:
        first = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, width), nn.ReLU())
        super().__init__(first, layer(width, width), nn.ReLU(), layer(width, CLASSES))


class Block(nn.Module):
    """Attention and a perceptron, with dropout before the last linear layer of each."""

    def __init__(self, width: int, layer: Layer, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), layer(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), layer(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(2, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(*heads, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class VisionTransformer(nn.Module):
    """Patches of 4 × 4 pixels through blocks; the mean of the results tells the class."""

    def __init__(self, width: int, layer: Layer, depth: int) -> None:
        super().__init__()
        self.patches = nn.Linear(PATCH * PATCH, width)
        self.places = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, width) / 10)
        self.blocks = nn.Sequential(*(Block(width, layer, causal=False) for _ in range(depth)))
        self.classes = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = (
            images.unflatten(2, (-1, PATCH))
            .unflatten(1, (-1, PATCH))
            .transpose(2, 3)
            .flatten(3)
            .flatten(1, 2)
        )
        return self.classes(self.blocks(self.patches(patches) + self.places).mean(1))


class CharacterModel(nn.Module):
    """The next character from those before it."""

    def __init__(self, width: int, layer: Layer, depth: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, width)
        self.places = nn.Parameter(torch.randn(CONTEXT, width) / 10)
        self.blocks = nn.Sequential(*(Block(width, layer, causal=True) for _ in range(depth)))
        self.next = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CHARACTERS))

    def forward(self, characters: Tensor) -> Tensor:
        return self.next(self.blocks(self.characters(characters) + self.places))


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    inputs, targets = batch
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
        found = model(inputs)
    return cross_entropy(found.float().flatten(0, -2), targets.flatten())


def train(
    model: nn.Module, data: Digits | Text, batch: int, steps: int, is_cuda: bool
) -> tuple[float, Tensor]:
    """Trains it; the milliseconds of a step, and the loss of each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, capturable=is_cuda)
    losses, latest = torch.zeros(steps), torch.zeros(())
    if is_cuda:
        losses, latest = losses.cuda(), latest.cuda()

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of(model, data.draw(batch))
        loss.backward()
        optimizer.step()
        latest.copy_(loss.detach())

    run: Callable[[], None] = step
    if is_cuda:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    start = time.perf_counter()
    for number in range(steps):
        run()
        losses[number] = latest
    if is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / steps, losses.cpu()


def made(network: str, width: int, depth: int, layer: Layer) -> nn.Module:
    """One of the three networks."""
    match network:
        case "mlp":
            return Perceptron(width, layer)
        case "vit":
            return VisionTransformer(width, layer, depth)
        case _:
            return CharacterModel(width, layer, depth)


def data_of(network: str, device: str) -> tuple[Digits | Text, Digits | Text]:
    """Returns the training data of a network, and data that it has not seen."""
    if network == "gpt":
        return Text(0, device), Text(1, device)
    return Digits(20_000, 1, device), Digits(4_000, 2, device)


def unseen_loss(model: nn.Module, data: Digits | Text) -> float:
    """The mean loss of a network in evaluation."""
    model.eval()
    with torch.no_grad():
        return statistics.mean(loss_of(model, data.draw(64)).item() for _ in range(10))


def layers_of(p: float, block: str) -> dict[str, Layer]:
    """Both ways to drop before a linear layer."""
    return {
        "dropout, dense": lambda k, n: nn.Sequential(nn.Dropout(p), nn.Linear(k, n)),
        "structured dropout": lambda k, n: DropoutLinear(k, n, p, block),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", choices=("mlp", "vit", "gpt"))
    parser.add_argument(
        "--width", type=int, default=1024, help="features of a token (vit, gpt) or hidden layer (mlp)"
    )
    parser.add_argument("--depth", type=int, default=2, help="blocks of a transformer")
    parser.add_argument("--batch", type=int, default=64, help="images or excerpts in a step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--p", type=float, default=0.2, help="probability to drop")
    parser.add_argument("--block", default="64", help='side of a block, or "rowsxcolumns"')
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    known, unknown = data_of(given.network, device)
    for name, layer in layers_of(given.p, given.block).items():
        losses, times = [], []
        for seed in range(given.seeds):
            torch.manual_seed(seed)
            model = made(given.network, given.width, given.depth, layer).to(device)
            times.append(train(model, known, given.batch, given.steps, device == "cuda")[0])
            losses.append(unseen_loss(model, unknown))
        spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        print(
            f"{given.network}, {name:>18}: loss on unseen data {statistics.mean(losses):.4f}{spread}, "
            f"{statistics.median(times):.3f} ms a step"
        )


if __name__ == "__main__":
    main()
