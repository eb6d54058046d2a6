"""Does structured dropout train as dropout does, and how fast? Three networks, four ways to drop, each p, some seeds.

    python -m benchmarks.papers.sparsedrop_training --data DATA

Lo, Efficient Sparse Training with Structured Dropout, table 1 and figure 4: a perceptron and a vision transformer on
digits and a character model, each dense, with dropout before dense layers, with dropout of blocks before dense layers,
and with structured dropout that skips what it drops (`DropoutLinear`). A network trains in bfloat16 under autocast, on
a GPU as a CUDA graph, until its loss on unseen data has not fallen for some checks. Told are the best loss and accuracy
on unseen data, the time until then, and of a step. `DropoutLinear` runs dense products where these are faster;
``masked`` says of how many problems masked products ran.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.markdown import NONE, table
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import Claim, Document, Point, Row, Setting, Study, ahead_from, result, svg
from examples import structured_dropout as example
from sparsegen.integrations.torch import DropoutLinear, block_dropout
from sparsegen.measure.decision import decisions

METHODS = ("dense", "dropout", "block dropout, dense", "structured dropout")
NETWORKS = {"mlp": "MLP", "vit": "ViT", "gpt": "GPT"}
WARM_UP = 3  # steps before a graph is captured


@dataclass(frozen=True)
class Sizes:
    """Sizes of the networks and their training; the paper's, where it says.

    Attributes:
        check: steps between looks at unseen data; `patience` of them in a row may bring nothing.
        images, tested: of digits; the paper takes 16,384 to learn from.
    """

    width: int = 1024
    depths: tuple[int, int, int] = (2, 2, 4)
    batches: tuple[int, int, int] = (4096, 128, 16)
    block: int = 128
    probabilities: tuple[float, ...] = (0.2, 0.5, 0.3, 0.4, 0.1, 0.6, 0.7)
    seeds: int = 3
    check: int = 50
    patience: int = 5
    most_steps: int = 2000
    images: int = 16384
    tested: int = 8192
    learnt_bytes: int = 524288


TINY = Sizes(64, (1, 1, 1), (32, 4, 1), 16, (0.5,), 1, 1, 1, 2, 64, 8, 8192)


class BlockDropout(nn.Module):
    """`block_dropout` as a layer of its own, behind which a dense layer reads zeros."""

    def __init__(self, p: float, block: int) -> None:
        super().__init__()
        self.p, self.block = p, block

    def forward(self, x: Tensor) -> Tensor:
        return block_dropout(x, self.p, self.block, self.training)


def layer_of(method: str, p: float, block: int) -> example.Layer:
    """The layer that drops before a linear layer."""
    match method:
        case "dense":
            return nn.Linear
        case "dropout":
            return lambda k, n: nn.Sequential(nn.Dropout(p), nn.Linear(k, n))
        case "structured dropout":
            return lambda k, n: DropoutLinear(k, n, p, block)
        case _:
            return lambda k, n: nn.Sequential(BlockDropout(p, block), nn.Linear(k, n))


class Known:
    """Inputs and classes, drawn at random on their device, or in order."""

    def __init__(self, inputs: Tensor, classes: Tensor) -> None:
        self.inputs, self.classes = inputs, classes

    def draw(self, count: int) -> example.Batch:
        chosen = torch.randint(len(self.classes), (count,), device=self.classes.device)
        return self.inputs[chosen], self.classes[chosen]

    def parts(self, count: int) -> Iterable[example.Batch]:
        return zip(self.inputs.split(count), self.classes.split(count), strict=True)


def data_of(network: str, sizes: Sizes, setting: Setting) -> tuple[Known, Known, str]:
    """Data that a network learns from, data that it has not seen, and a name for both."""
    place = setting.place
    if network != "gpt":
        learnt, unseen, what = setting.data.digits(sizes.images, sizes.tested)
        mean, spread = learnt.images.mean(), learnt.images.std()
        found = [
            Known(
                torch.from_numpy((one.images - mean) / spread).to(place),
                torch.from_numpy(one.labels).to(place),
            )
            for one in (learnt, unseen)
        ]
        return found[0], found[1], what
    texts = setting.data.text()
    found = []
    learnt = texts[0][: sizes.learnt_bytes]
    for text, stride, most in ((learnt, 16, 64 * sizes.tested), (texts[1], example.CONTEXT, sizes.tested)):
        signs = torch.from_numpy(np.minimum(text, example.CHARACTERS - 1).astype(np.int64)).to(place)
        excerpts = signs.unfold(0, example.CONTEXT + 1, stride)[:most]
        found.append(Known(excerpts[:, :-1], excerpts[:, 1:]))
    return found[0], found[1], texts[2]


class Training:
    """A network that trains with one way to drop."""

    def __init__(
        self, network: str, method: str, p: float, seed: int, sizes: Sizes, setting: Setting
    ) -> None:
        torch.manual_seed(seed)
        at = list(NETWORKS).index(network)
        self.sizes, self.batch, self.is_timed = sizes, sizes.batches[at], setting.is_timed
        self.known, self.unseen, self.data = data_of(network, sizes, setting)
        layer = layer_of(method, p, sizes.block)
        self.model = example.made(network, sizes.width, sizes.depths[at], layer).to(setting.place)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, capturable=self.is_timed)
        self.run = self.captured() if self.is_timed else self.step

    def step(self) -> None:
        self.optimizer.zero_grad()
        example.loss_of(self.model, self.known.draw(self.batch)).backward()
        self.optimizer.step()

    def captured(self) -> Callable[[], None]:
        """A replay of a step as a CUDA graph; some steps are made before."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    def until_it_stops(self) -> dict[str, Any]:
        """Train until unseen data bring nothing new."""
        before, losses, accuracies, best_at = len(decisions()), [], [], 0
        in_steps, steps, began = 0.0, 0, time.perf_counter()
        best_s = 0.0
        while steps < self.sizes.most_steps and len(losses) - best_at <= self.sizes.patience:
            start = time.perf_counter()
            for _ in range(self.sizes.check):
                self.run()
            self.wait()
            in_steps += time.perf_counter() - start
            steps += self.sizes.check
            loss, accuracy = self.looked_at()
            losses.append(loss)
            accuracies.append(accuracy)
            if loss == min(losses):
                best_at, best_s = len(losses), time.perf_counter() - began
        ours = [found.on_device for *_, found in decisions()[before:]]
        return {
            "data": self.data,
            "loss": round(min(losses), 5),
            "accuracy": round(max(accuracies), 5),
            "steps": steps,
            "ms_per_step": round(1e3 * in_steps / steps, 4) if self.is_timed else None,
            "seconds_to_best": round(best_s, 2) if self.is_timed else None,
            "tried": len(ours),
            "masked": sum(ours),
            "curve": [round(loss, 4) for loss in losses],
            "sizes": asdict(self.sizes),
        }

    def looked_at(self) -> tuple[float, float]:
        """Mean loss and accuracy on unseen data."""
        self.model.eval()
        losses, right, count = [], 0, 0
        with torch.no_grad():
            for inputs, classes in self.unseen.parts(self.batch):
                losses.append(float(example.loss_of(self.model, (inputs, classes))) * classes.numel())
                right += int((self.model(inputs).argmax(-1) == classes).sum())
                count += classes.numel()
        self.model.train()
        return sum(losses) / count, right / count

    def wait(self) -> None:
        if self.is_timed:
            torch.cuda.synchronize()


class SparseDropTraining(Study):
    name = "sparsedrop_training"
    title = "SparseDrop: training"
    paper = "A. Lo: Efficient Sparse Training with Structured Dropout, 2024, sections 4.2 and 4.3"
    gpu = "RTX 2060 Max-Q"
    claims = (
        Claim("MLP on MNIST: accuracy dense, dropout, SparseDrop", "96.96, 97.82, 97.61 %", "Table 1"),
        Claim("the same: best p of dropout, SparseDrop; minutes", "0.5, 0.3; 1.94, 2.78, 3.18", "Table 1"),
        Claim("ViT on Fashion-MNIST: accuracy", "85.69, 86.84, 87.04 %", "Table 1"),
        Claim("the same: best p; minutes", "0.5, 0.2; 20.2, 38.1, 22.6", "Table 1"),
        Claim("GPT on Shakespeare: loss", "1.643, 1.448, 1.430", "Table 1"),
        Claim("the same: best p; minutes", "0.6, 0.5; 6.5, 46.8, 42.6", "Table 1"),
        Claim("a step is faster than dropout and dense layers", "from 20 % on", "Fig. 4"),
    )
    differs = (
        "The ViT learns MNIST in patches of 4 × 4, the paper's Fashion-MNIST and CIFAR-10 in patches of 2 × 2; the GPT "
        "sees 256 characters, the paper's 128.",
        "Layers have biases, and DropoutLinear runs dense products where they are faster: the column masked tells.",
        "Steps are CUDA graphs, and training ends by the loss on unseen data in all networks.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        sizes = TINY if setting.tiny else Sizes()
        for network, method, p, seed in _cases(sizes):
            named: dict[str, Any] = {"network": network, "method": method, "p": p, "seed": seed}

            def measured(named: dict[str, Any] = named) -> dict[str, Any]:
                return named | Training(**named, sizes=sizes, setting=setting).until_it_stops()

            expected = training_seconds(network, method, sizes)
            yield Point(f"{network}, {method}, p = {p}, seed {seed}", measured, expected)

    def table(self, document: Document) -> str:
        lines = []
        for network, told in NETWORKS.items():
            for method in METHODS:
                rows = best_of(document, network, method)
                if rows:
                    lines.append(
                        [
                            f"{told}, {method}", rows[0]["p"] or NONE, spread([100 * r["accuracy"] for r in rows], 2),
                            spread([r["loss"] for r in rows], 4), spread([r["seconds_to_best"] for r in rows], 1),
                            spread([r["ms_per_step"] for r in rows], 3), f"{rows[0]['masked']} of {rows[0]['tried']}",
                        ]
                    )  # fmt: skip
        head = [
            "best p by loss on unseen data",
            "p",
            "accuracy, %",
            "loss",
            "s to the best",
            "ms a step",
            "masked",
        ]
        return table(head, lines)

    def results(self, document: Document) -> Sequence[str]:
        found = []
        for network, told in NETWORKS.items():
            rows = {method: best_of(document, network, method) for method in METHODS}
            ours, other = rows["structured dropout"], rows["dropout"]
            if ours and other:
                losses = mean(other, "loss") or 0.0, mean(ours, "loss") or 1.0
                found.append(
                    result(f"{told}: loss of dropout over structured dropout", losses[0] / losses[1])
                )
                times = mean(other, "seconds_to_best"), mean(ours, "seconds_to_best")
                found.append(
                    result(f"{told}: time to the best loss", times[0] / times[1] if all(times) else None)
                )
            ratios = step_ratios(document, network)
            least = ahead_from(ratios)
            if ratios:
                on = "**from no p on** that was tried" if least is None else f"from p = {least} on"
                found.append(f"{told}: a step is faster than dropout and dense layers {on}.")
        return found

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        made = Figure(figsize=(11, 3.2), layout="constrained")
        for axes, (network, told) in zip(made.subplots(1, 3), NETWORKS.items(), strict=True):
            for method in METHODS:
                ms: dict[float, list[float]] = {}
                for row in of(document, network, method):
                    if row["ms_per_step"]:
                        ms.setdefault(row["p"], []).append(row["ms_per_step"])
                if ms:
                    ps = sorted(ms)
                    axes.plot(
                        [100 * p for p in ps],
                        [statistics.median(ms[p]) for p in ps],
                        marker=".",
                        label=method,
                    )
            axes.set(title=told, xlabel="dropped, %", ylabel="ms a step")
            if axes.lines:
                axes.legend()
        return svg(made, path)


def _cases(sizes: Sizes) -> Iterator[tuple[str, str, float, int]]:
    """Network, way to drop, p and seed: of a seed first all networks dense, then each p in all ways."""
    for seed in range(sizes.seeds):
        for p in (0.0, *sizes.probabilities):
            for network in NETWORKS:
                for method in METHODS[1:] if p else METHODS[:1]:
                    yield network, method, p, seed


def training_seconds(network: str, method: str, sizes: Sizes) -> float:
    """Seconds of all steps and looks at unseen data, and of kernels, where there are masked products.

    A step of the paper's sizes took 0.44, 4.6 and 3.7 ms on an H100 (`dropout_training.json.xz`); a look runs two
    forward passes of each part of the unseen data, each a third of a step.
    """
    at = list(NETWORKS).index(network)
    steps, ms = sizes.most_steps, (0.44, 4.6, 3.7)[at]
    parts = sizes.tested // sizes.batches[at] if network != "gpt" else 436 // sizes.batches[at]
    looked = steps / sizes.check * 2 * parts * max(ms / 3, 1.0)
    return 1 + (steps * ms + looked) / 1e3 + seconds(compiled=6 if method == METHODS[-1] else 0)


def of(document: Document, network: str, method: str) -> list[Row]:
    return [row for row in document["rows"] if (row["network"], row["method"]) == (network, method)]


def best_of(document: Document, network: str, method: str) -> list[Row]:
    """The rows of the p with the lowest mean loss, of all seeds."""
    by_p: dict[float, list[Row]] = {}
    for row in of(document, network, method):
        by_p.setdefault(row["p"], []).append(row)
    return min(by_p.values(), key=lambda rows: mean(rows, "loss") or 0.0, default=[])


def step_ratios(document: Document, network: str) -> dict[float, float | None]:
    """Times by p: a step of dropout and dense layers over one of structured dropout."""
    ms = {
        method: {row["p"]: row["ms_per_step"] for row in of(document, network, method) if row["ms_per_step"]}
        for method in ("dropout", "structured dropout")
    }
    return {p: ms["dropout"][p] / us for p, us in ms["structured dropout"].items() if p in ms["dropout"]}


def mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return statistics.mean(values) if values else None


def spread(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NONE
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.{digits}f}{deviation}"


STUDY = SparseDropTraining()
main = STUDY.command()

if __name__ == "__main__":
    main()
