"""Does structured dropout train as dropout does, and how fast? Three networks, four ways to drop, each p, some seeds.

    python -m benchmarks.papers.sparsedrop_training --data DATA

Lo, Efficient Sparse Training with Structured Dropout, table 1 and figure 4: a perceptron and a vision transformer on
digits and a character model, each dense, with dropout before dense layers, with dropout of blocks before dense layers,
and with structured dropout that skips what it drops (`DropoutLinear`). A network trains in bfloat16 under autocast, on
a GPU as a CUDA graph, until its loss on unseen data has not fallen for some checks. Told are the best loss and accuracy
on unseen data and the steps until then; these trainings may run side by side (``--together``), with masked products
throughout. A step of each is timed apart, alone on the GPU, and the time to the best loss is steps times that. There
`DropoutLinear` runs dense products where these are faster; ``masked`` says of how many problems masked products ran.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.markdown import NONE, figure, table
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import (
    EQUAL,
    Claim,
    Document,
    Point,
    Row,
    Setting,
    Study,
    ahead_from,
    result,
    svg,
)
from benchmarks.study import times_in_turn
from examples import structured_dropout as example
from sparsegen.dispatch.options import Dense
from sparsegen.integrations.torch import DropoutLinear, block_dropout
from sparsegen.measure.decision import decisions
from sparsegen.system.quantities import counted

METHODS = ("dense", "dropout", "block dropout, dense", "structured dropout")
COLOURS = {"dense": "black", "dropout": "C0", "block dropout, dense": "C1"}
NETWORKS = {"mlp": "MLP", "vit": "ViT", "gpt": "GPT"}
WARM_UP = 3  # steps before a graph is captured
LOOKED = 1024  # images or excerpts, at least, that are looked at together
TIMED = 0.5  # the p at which dense products are timed: it changes nothing of theirs


@dataclass(frozen=True)
class Sizes:
    """Sizes of the networks and their training; the paper's, where it says.

    Attributes:
        check: steps between looks at unseen data; `patience` of them in a row may bring nothing.
        least_steps: of each network; the character model's loss stands still from step 100 to 500.
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
    least_steps: tuple[int, int, int] = (0, 0, 1000)
    most_steps: int = 2000
    images: int = 16384
    tested: int = 8192
    learnt_bytes: int = 524288


TINY = Sizes(64, (1, 1, 1), (32, 4, 1), 16, (0.5,), 2, 1, 1, (0, 0, 0), 2, 64, 8, 8192)


class BlockDropout(nn.Module):
    """`block_dropout` as a layer of its own, behind which a dense layer reads zeros."""

    def __init__(self, p: float, block: int) -> None:
        super().__init__()
        self.p, self.block = p, block

    def forward(self, x: Tensor) -> Tensor:
        return block_dropout(x, self.p, self.block, self.training)


def layer_of(method: str, p: float, block: int, products: Dense) -> example.Layer:
    """The layer that drops before a linear layer; ``products`` says when structured dropout runs dense ones."""
    match method:
        case "dense":
            return nn.Linear
        case "dropout":
            return lambda k, n: nn.Sequential(nn.Dropout(p), nn.Linear(k, n))
        case "structured dropout":
            return lambda k, n: DropoutLinear(k, n, p, block, dense=products)
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
        self,
        network: str,
        method: str,
        p: float,
        seed: int,
        sizes: Sizes,
        setting: Setting,
        products: Dense = Dense.NEVER,
    ) -> None:
        torch.manual_seed(seed)
        at = list(NETWORKS).index(network)
        self.sizes, self.batch, self.is_timed = sizes, sizes.batches[at], setting.is_timed
        self.least_looks = sizes.least_steps[at] // sizes.check
        self.known, self.unseen, self.data = data_of(network, sizes, setting)
        self.tried = len(decisions())
        layer = layer_of(method, p, sizes.block, products)
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
        stream.wait_stream(torch.cuda.current_stream())
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
        losses: list[float] = []
        accuracies: list[float] = []
        best_at = 0
        while (
            self.sizes.check * len(losses) < self.sizes.most_steps
            and len(losses) - max(best_at, self.least_looks) <= self.sizes.patience
        ):
            for _ in range(self.sizes.check):
                self.run()
            loss, accuracy = self.looked_at()
            losses.append(loss)
            accuracies.append(accuracy)
            if loss == min(losses):
                best_at = len(losses)
        return {
            "data": self.data,
            "loss": round(min(losses), 5),
            "accuracy": round(max(accuracies), 5),
            "steps": self.sizes.check * len(losses),
            "steps_to_best": self.sizes.check * best_at,
            "curve": [round(loss, 4) for loss in losses],
            "sizes": asdict(self.sizes),
        }

    def looked_at(self) -> tuple[float, float]:
        """Mean loss and accuracy on unseen data."""
        self.model.eval()
        losses, right, count = [], [], 0
        with torch.no_grad():
            for inputs, classes in self.unseen.parts(max(LOOKED, self.batch)):
                with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
                    found = self.model(inputs)
                losses.append(cross_entropy(found.float().flatten(0, -2), classes.flatten(), reduction="sum"))
                right.append((found.argmax(-1) == classes).sum())
                count += classes.numel()
        self.model.train()
        return float(torch.stack(losses).sum()) / count, int(torch.stack(right).sum()) / count

    def timed(self) -> dict[str, Any]:
        """Milliseconds of a step, and of how many problems masked products ran; without a GPU one step is made."""
        self.run()
        ours = [found.on_device for *_, found in decisions()[self.tried :]]
        ms = times_in_turn([self.run], calls=5)[0] / 1e3 if self.is_timed else None
        return {"ms_per_step": ms and round(ms, 4), "tried": len(ours), "masked": sum(ours)}


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
        "sees 256 characters, the paper's 128, and its best losses lie above the paper's; embeddings of other spreads "
        "do not change that.",
        "Further seeds are trained at the p that the first one chose.",
        "Layers have biases. Trainings run masked products; where a step is timed, DropoutLinear runs dense ones where "
        "they are faster: the column masked tells.",
        "Steps are CUDA graphs, and training ends by the loss on unseen data in all networks. Several trainings run at "
        "a time; a step is timed alone on the GPU, of dense products with one p, and the time to the best loss is "
        "steps times that, without looks at unseen data.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        """Every p with one seed; the p that is best of all with further ones, once it is known."""
        sizes = TINY if setting.tiny else Sizes()
        held = self.held(setting)
        for seed in range(sizes.seeds):
            for network, method, p in _cases(sizes):
                if seed and p != chosen_by_one(held, network, method, sizes):
                    continue
                named: dict[str, Any] = {"network": network, "method": method, "p": p, "seed": seed}

                def measured(named: dict[str, Any] = named) -> dict[str, Any]:
                    return named | Training(**named, sizes=sizes, setting=setting).until_it_stops()

                expected = training_seconds(network, method, sizes)
                yield Point(
                    f"{network}, {method}, p = {p}, seed {seed}",
                    measured,
                    expected,
                    is_timed=False,
                    group=network,
                )
            if not seed:
                yield from self._timed(sizes, setting)

    def _timed(self, sizes: Sizes, setting: Setting) -> Iterator[Point]:
        """A step of each way: of masked products with each p, of dense ones with one."""
        once = TIMED if TIMED in sizes.probabilities else sizes.probabilities[0]
        for network, method, p in _cases(sizes):
            if method in (METHODS[0], METHODS[-1]) or p == once:
                named: dict[str, Any] = {"network": network, "method": method, "p": p}

                def timed(named: dict[str, Any] = named) -> dict[str, Any]:
                    return (
                        named
                        | Training(**named, seed=0, sizes=sizes, setting=setting, products=Dense.AUTO).timed()
                    )

                expected = 1.5 + seconds(
                    compiled=4 if method == METHODS[-1] and p == sizes.probabilities[0] else 0
                )
                yield Point(f"{network}, {method}, p = {p}, a step", timed, expected)

    def table(self, document: Document) -> str:
        lines = []
        for network, told in NETWORKS.items():
            for method in METHODS:
                rows = best_of(document, network, method)
                if rows:
                    accuracy = [100 * row["accuracy"] for row in rows]
                    step = step_of(document, network, method, rows[0]["p"]) or {}
                    ms = step.get("ms_per_step")
                    to_best = [row["steps_to_best"] for row in rows]
                    ran = f"{step['masked']} of {step['tried']}" if step and method == METHODS[-1] else NONE
                    lines.append(
                        [
                            f"{told}, {method}", rows[0]["p"] or NONE, len(rows), spread(accuracy, 2),
                            spread([row["loss"] for row in rows], 4), spread(to_best, 0), figure(ms),
                            figure(ms and ms * statistics.mean(to_best) / 1e3), ran,
                        ]
                    )  # fmt: skip
        head = [
            "best p by loss on unseen data",
            "p",
            "seeds",
            "accuracy, %",
            "loss",
            "steps to the best",
            "ms a step, alone",
            "s to the best",
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
                times = [seconds_to_best(document, one) for one in (other, ours)]
                over = times[0] / times[1] if times[0] and times[1] else None
                found.append(result(f"{told}: time to the best loss", over))
            ratios = step_ratios(document, network)
            least = ahead_from(ratios)
            if ratios:
                on = "**from no p on** that was tried" if least is None else f"from p = {least} on"
                found.append(f"{told}: a step is faster than dropout and dense layers {on}.")
        return found

    def why(self, document: Document, name: str) -> str:
        network = next(key for key, told in NETWORKS.items() if name.startswith(told))
        if "loss of" not in name:
            told = []
            for method in ("structured dropout", "dropout"):
                rows = best_of(document, network, method)
                step = step_of(document, network, method, rows[0]["p"]) or {}
                steps_to_best = mean(rows, "steps_to_best") or 0.0
                told.append(f"{steps_to_best:.0f} steps of {figure(step.get('ms_per_step'))} ms")
            return f"structured dropout takes {told[0]}, dropout {told[1]}"
        ours, dense = (
            mean(best_of(document, network, method), "loss")
            for method in ("structured dropout", "block dropout, dense")
        )
        seeds = len(best_of(document, network, "structured dropout"))
        if not ours or not dense:
            return "the same blocks with dense products were not trained"
        return (
            f"{counted(seeds, 'seed')}; the same blocks with dense products come to {dense:.4f} in the place of "
            f"{ours:.4f}: "
            + (
                "it is the dropout of blocks, not the kernels"
                if abs(ours / dense - 1) <= EQUAL
                else "runs of one method differ by as much"
            )
        )

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        made = Figure(figsize=(11, 3.2), layout="constrained")
        for axes, (network, told) in zip(made.subplots(1, 3), NETWORKS.items(), strict=True):
            for method in METHODS:
                ms = {
                    row["p"]: row["ms_per_step"]
                    for row in steps(document, network, method)
                    if row["ms_per_step"]
                }
                if len(ms) == 1:  # of dense products, which take as long with every p
                    axes.axhline(*ms.values(), color=COLOURS[method], linestyle="--", label=method)
                elif ms:
                    axes.plot(
                        [100 * p for p in sorted(ms)], [ms[p] for p in sorted(ms)], marker=".", label=method
                    )
            axes.set(title=told, xlabel="dropped, %", ylabel="ms a step")
            if axes.lines:
                axes.legend()
        return svg(made, path)


def _cases(sizes: Sizes) -> Iterator[tuple[str, str, float]]:
    """Network, way to drop and p: first all networks dense, then each p in all ways."""
    for p in (0.0, *sizes.probabilities):
        for network in NETWORKS:
            for method in METHODS[1:] if p else METHODS[:1]:
                yield network, method, p


def training_seconds(network: str, method: str, sizes: Sizes) -> float:
    """Seconds of all steps, and of kernels, where there are masked products; most trainings end before.

    A step of the paper's sizes took 0.44, 4.6 and 3.7 ms on an H100 (`dropout_training.json.xz`).
    """
    ms = (0.44, 4.6, 3.7)[list(NETWORKS).index(network)]
    return 2 + sizes.most_steps * ms / 1e3 + seconds(compiled=2 if method == METHODS[-1] else 0)


def of(document: Document, network: str, method: str) -> list[Row]:
    """The trainings of a network with a way to drop."""
    rows = [row for row in document["rows"] if "loss" in row]
    return [row for row in rows if (row["network"], row["method"]) == (network, method)]


def steps(document: Document, network: str, method: str) -> list[Row]:
    """The times of its steps."""
    rows = [row for row in document["rows"] if "ms_per_step" in row]
    return [row for row in rows if (row["network"], row["method"]) == (network, method)]


def step_of(document: Document, network: str, method: str, p: float) -> Row | None:
    """The time of a step with a p; of dense products with any."""
    found = steps(document, network, method)
    exact = [row for row in found if row["p"] == p]
    return next(iter(exact if method == METHODS[-1] else exact or found), None)


def seconds_to_best(document: Document, rows: Sequence[Row]) -> float | None:
    """Steps to the best loss times the time of a step."""
    step = step_of(document, rows[0]["network"], rows[0]["method"], rows[0]["p"])
    if step is None or not step["ms_per_step"]:
        return None
    return float(step["ms_per_step"] * statistics.mean(row["steps_to_best"] for row in rows) / 1e3)


def chosen_by_one(document: Document, network: str, method: str, sizes: Sizes) -> float | None:
    """The p with the lowest loss of the first seed; None before each p was tried."""
    losses = {row["p"]: row["loss"] for row in of(document, network, method) if row["seed"] == 0}
    wanted = {p for one, other, p in _cases(sizes) if (one, other) == (network, method)}
    return min(losses, key=losses.__getitem__) if wanted <= {*losses} else None


def best_of(document: Document, network: str, method: str) -> list[Row]:
    """The rows of the p with the lowest mean loss, of those with the most seeds."""
    by_p: dict[float, list[Row]] = {}
    for row in of(document, network, method):
        by_p.setdefault(row["p"], []).append(row)
    most = max(map(len, by_p.values()), default=0)
    tried = [rows for rows in by_p.values() if len(rows) == most]
    return min(tried, key=lambda rows: mean(rows, "loss") or 0.0, default=[])


def step_ratios(document: Document, network: str) -> dict[float, float | None]:
    """Times by p: a step of dropout and dense layers over one of structured dropout."""
    other = step_of(document, network, "dropout", TIMED)
    if other is None or not other["ms_per_step"]:
        return {}
    ours = {row["p"]: row["ms_per_step"] for row in steps(document, network, "structured dropout")}
    return {p: other["ms_per_step"] / ms for p, ms in ours.items() if ms}


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
