"""Accuracy of uniform, blocked uniform and unstructured sparsity: a Transformer on text, a ResNet on digits.

    python -m benchmarks.papers.uniform_accuracy --data DATA
    python -m benchmarks.papers.uniform_accuracy --data DATA --device cpu    # smaller networks, a few sparsities

Muralidharan, MLSys 2023, figures 3 and 4: task error over sparsity, mean of three seeds. A network is trained, pruned
by one global threshold over the l2 norms of sorted columns, and trained once more with the learning rates of all its
epochs and its zeros held (`sparsegen.rewinding_rounds`, `hold_zeros`). At some sparsities there is also a point of each
other score (sum, max, Taylor), of one cut in each layer, and of iterative pruning in three rounds. Training is dense,
and nothing of it is timed. On a GPU a layer is timed apart (`equal_accuracy`): at the highest sparsity that keeps the
error near the dense one's, how fast is it beside cuSPARSE and the dense product?
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import sparsegen
from benchmarks.markdown import NONE, table
from benchmarks.papers import equal_accuracy
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import CPU, Claim, Document, Point, Row, Setting, Study, svg
from sparsegen.system.host_lock import private_lock

PATTERNS: dict[str, dict[str, Any]] = {
    "unstructured": {"pattern": "unstructured"},
    "uniform": {"pattern": "uniform"},
    "blocked uniform 2": {"pattern": "blocked-uniform", "block": (2, 2)},
    "blocked uniform 4": {"pattern": "blocked-uniform", "block": (4, 4)},
}
AGAIN = "dense, trained again"  # what pruned networks are held against: they were trained so long, too
NETWORKS = ("transformer", "resnet")
TOLD = 6  # points of a network that are measured before the others of both: dense twice, and four that are pruned
LOCAL = "uniform, every layer alike"
SCORES = ("sum", "max", "taylor")
ITERATIVE = 3  # rounds
EXCLUDED = {  # small layers at both ends, and embeddings
    "transformer": ("last.*", "symbols.*", "places.*"),
    "resnet": ("first.*", "last.*"),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of both networks and their training.

    Attributes:
        steps: of an epoch.
        batches: excerpts and images of a step.
        scored: sparsities at which other scores and iterative pruning are tried, too.
    """

    sparsities: tuple[float, ...]
    scored: tuple[float, ...]
    seeds: int
    epochs: int
    steps: int
    batches: tuple[int, int]
    channels: int
    width: int
    layers: int
    length: int
    images: int
    tested: int

    def batch_of(self, network: str) -> int:
        """Excerpts or images of a step."""
        return self.batches[NETWORKS.index(network)]


WHOLE = Sizes(
    tuple(round(0.1 * i, 1) for i in range(1, 10)),
    (0.5, 0.8, 0.9),
    3,
    8,
    75,
    (64, 256),
    32,
    256,
    4,
    256,
    60000,
    10000,
)
ON_CPU = Sizes((0.5, 0.9), (0.9,), 3, 3, 60, (16, 16), 8, 32, 2, 32, 8192, 1000)
TINY = Sizes((0.5,), (0.5,), 1, 1, 1, (4, 4), 4, 16, 1, 8, 64, 32)


class UniformAccuracy(Study):
    name = "uniform_accuracy"
    title = "Uniform sparsity: accuracy"
    paper = "S. Muralidharan: Uniform Sparsity in Deep Neural Networks, MLSys 2023, section 4.2"
    gpu = "A100"
    claims = (
        Claim(
            "Transformer-Big: highest uniform (unstructured) sparsity near dense",
            "65 % (60 %)",
            "section 4.2",
        ),
        Claim("ResNet50: the same", "81 % (90 %)", "section 4.2"),
        Claim("Transformer-Big: the same, blocked uniform, blocks of 2 and 4", "46 and 38 %", "Fig. 4"),
        Claim("speed there over cuSPARSE", "1.49 and 1.31 × (mean of layers)", "Table 1"),
        Claim("one global threshold against one for each layer", "global is better", "section 2.2"),
    )
    differs = (
        "The networks are small (a Transformer of text bytes, a ResNet of 9 layers on MNIST); the paper's are "
        "Transformer-Big on WMT14 and ResNet50 on ImageNet. Smaller networks have less to spare.",
        "Loss of the Transformer is in bits per byte, not BLEU.",
        "Pruned networks are held against a dense one that was trained again like them, without which those that were "
        "hardly pruned would look better than dense. The paper's dense errors are of one training.",
        "Norms of whole columns are not normalised, and differ much between layers of so small a network: one global "
        "threshold takes some of them whole.",
        "On a GPU the ResNet trains in TF32 and the Transformer in bfloat16 under autocast, in CUDA graphs of a step.",
        "A CPU runs smaller networks at fewer sparsities than a GPU does; the raw file tells the sizes.",
    )
    needs_gpu = False

    def points(self, setting: Setting) -> Iterable[Point]:
        sizes = TINY if setting.tiny else ON_CPU if setting.device.key == CPU else WHOLE
        for seed in range(sizes.seeds):
            points = {network: [*_of_network(network, seed, sizes, setting)] for network in NETWORKS}
            for told in (slice(TOLD), slice(TOLD, None)):  # both networks have their first rows first
                for network in reversed(NETWORKS):  # the ResNet trains in less time
                    yield from points[network][told]
            if not seed and (setting.is_timed or setting.tiny):
                yield from equal_accuracy.points(PATTERNS, setting)

    def table(self, document: Document) -> str:
        lines, at_equal = [], []
        for network in NETWORKS:
            rows = _rows(document, network)
            dense = [row["error"] for row in rows if row["pattern"] == AGAIN]
            for pattern in dict.fromkeys(row["pattern"] for row in rows if row["sparsity"]):
                errors = {p: _errors(rows, pattern, p) for p in _sparsities(document)}
                lines.append(
                    [f"{network}, {pattern}", _spread(dense), *(_spread(some) for some in errors.values())]
                )
                if pattern in PATTERNS:
                    highest = _highest(rows, pattern, network)
                    told = f"{network}, {pattern}"
                    at_equal.append(equal_accuracy.line(told, pattern, highest, document["rows"]))
        first = table(
            ["error (mean ± deviation over seeds)", AGAIN, *(f"{p:.0%}" for p in _sparsities(document))],
            lines,
        )
        is_timed = any("layer" in row for row in document["rows"])
        return f"{first}\n\n{table(equal_accuracy.HEAD, at_equal)}" if is_timed else first

    def results(self, document: Document) -> Sequence[str]:
        found = []
        for network in NETWORKS:
            rows = _rows(document, network)
            dense = [row["error"] for row in rows if row["pattern"] == AGAIN]
            within = _highest(rows, "uniform", network)
            unit = "bits" if network == "transformer" else "percentage points"
            highest = "none of those tried" if within is None else f"{within:.0%}"
            if dense and any(row["pattern"] == "uniform" for row in rows):
                found.append(
                    f"{network}: highest uniform sparsity within {MARGIN[network]} {unit} of dense: {highest}."
                )
            worse = [
                statistics.mean(_errors(rows, "uniform", p))
                - statistics.mean(_errors(rows, "unstructured", p))
                for p in _sparsities(document)
                if _errors(rows, "uniform", p) and _errors(rows, "unstructured", p)
            ]
            if worse:
                found.append(f"{network}: uniform is at most {max(worse):.3f} {unit} above unstructured.")
            emptied = max(
                (row.get("emptied_layers", 0) for row in rows if row["pattern"] == "uniform"), default=0
            )
            if emptied:
                found.append(
                    f"{network}: one global threshold empties up to {emptied} layers of a uniform network."
                )
            for p in (
                p for p in _sparsities(document) if _errors(rows, LOCAL, p) and _errors(rows, "uniform", p)
            ):
                local, one = (statistics.mean(_errors(rows, name, p)) for name in (LOCAL, "uniform"))
                better = "better" if local < one else "worse"
                found.append(
                    f"{network} at {p:.0%}: a threshold for each layer is {better} than a global one."
                )
        return found

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.2), layout="constrained")
        for axes, network in zip(figure.subplots(1, 2), ("transformer", "resnet"), strict=True):
            rows = _rows(document, network)
            for pattern in PATTERNS:
                known = {p: some for p in _sparsities(document) if (some := _errors(rows, pattern, p))}
                axes.plot(
                    list(known), [statistics.mean(some) for some in known.values()], marker="o", label=pattern
                )
            dense = [row["error"] for row in rows if row["pattern"] == AGAIN]
            if dense:
                axes.axhline(
                    statistics.mean(dense), color="black", linewidth=0.8, linestyle="--", label="dense"
                )
            unit = "bits per byte" if network == "transformer" else "error, %"
            axes.set(title=network, xlabel="sparsity", ylabel=unit)
        axes.legend()
        return svg(figure, path)


MARGIN = {"transformer": 0.05, "resnet": 0.5}  # of an error that still counts as the dense one's


def _of_network(network: str, seed: int, sizes: Sizes, setting: Setting) -> Iterator[Point]:
    """The points of a network that is trained once for all of them."""
    trained = cache(lambda: Trained(network, seed, sizes, setting))
    once = 1 + training_seconds(network, sizes)

    def point(name: str, measure: Callable[[], dict[str, Any]], expected: float) -> Point:
        named = f"{network}, {name}, seed {seed}"
        return Point(named, measure, expected, is_timed=False, group=f"{network}, {seed}")

    yield point("dense", lambda: trained().dense(), 2 + once)
    yield point(AGAIN, lambda: trained().dense_again(), once)
    listed = [*_prunings(sizes)]
    for name, options, sparsity, rounds in sorted(listed, key=lambda one: not _tells(one, sizes)):
        yield point(
            f"{name}, {sparsity:.0%}",
            lambda o=options, p=sparsity, r=rounds, n=name: {"pattern": n} | trained().pruned(o, p, r),
            rounds * once,
        )


def _tells(pruning: tuple[str, dict[str, Any], float, int], sizes: Sizes) -> bool:
    """True for the paper's comparison where networks begin to lose: uniform and unstructured, at high sparsities."""
    name, _, sparsity, _ = pruning
    return name in ("uniform", "unstructured") and sparsity in sizes.scored[1:]


def training_seconds(network: str, sizes: Sizes) -> float:
    """Seconds of all epochs: products in TF32 or bfloat16, and some 60 activations a layer that are read or written."""
    steps = sizes.epochs * sizes.steps
    if network == "resnet":
        pixels = 14**2 * sizes.channels * sizes.batch_of(network)
        return steps * seconds(moved=100 * 4 * pixels, tf32=30 * 9 * 6 * pixels * sizes.channels)
    places = sizes.batch_of(network) * sizes.length
    products = 6 * places * (12 * sizes.layers * sizes.width**2 + 256 * sizes.width)
    attention = 12 * sizes.layers * places * sizes.length * sizes.width
    moved = 60 * 2 * places * sizes.width * sizes.layers
    return steps * seconds(half=products + 2 * attention, moved=moved)


def _prunings(sizes: Sizes) -> Iterator[tuple[str, dict[str, Any], float, int]]:
    """Name, arguments of `sparsegen.prune`, sparsity and rounds of all that is tried."""
    for sparsity in sizes.sparsities:
        for name, options in PATTERNS.items():
            yield name, options, sparsity, 1
    for sparsity in sizes.scored:
        for score in SCORES:
            yield f"uniform by {score}", PATTERNS["uniform"] | {"score": score}, sparsity, 1
        yield LOCAL, PATTERNS["uniform"] | {"scope": "layer"}, sparsity, 1
        yield f"uniform, {ITERATIVE} rounds", PATTERNS["uniform"], sparsity, ITERATIVE


class Trained:
    """A network that was trained dense, and what becomes of it when it is pruned and trained again."""

    def __init__(self, network: str, seed: int, sizes: Sizes, setting: Setting) -> None:
        import torch

        self.network, self.seed, self.sizes, self.place = network, seed, sizes, setting.place
        if self.place.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
        self.task = _text_task(sizes, setting) if network == "transformer" else _digit_task(sizes, setting)
        torch.manual_seed(seed)
        self.model = self.task.model().to(self.place)
        self.weights = self.kept(setting.shared)
        self.model.load_state_dict(self.weights)

    def kept(self, shared: Path | None) -> dict[str, Any]:
        """The dense weights: trained once by the processes that share a folder."""
        import torch

        if shared is None:
            self.train(self.model, range(self.sizes.epochs))
            return {name: value.clone() for name, value in self.model.state_dict().items()}
        file = shared / f"{self.network}-{self.seed}.pt"
        with private_lock(file.stem, shared / "locks"):
            if not file.is_file():
                torch.save(self.kept(None), file)
        found: dict[str, Any] = torch.load(file, map_location=self.place)
        return found

    def train(self, model: Any, epochs: Iterable[int], *, pruned: bool = False) -> None:
        """Train by the learning rates of some epochs of the whole schedule, with zeros held or not."""
        from benchmarks.papers import steps
        from sparsegen.integrations.torch import hold_zeros

        sizes = self.sizes
        schedule = steps.rates(epochs, sizes.steps, sizes.epochs)
        chosen = steps.drawn(self.task.most, sizes.batch_of(self.network), len(schedule), 1000 + self.seed)
        held = partial(hold_zeros, model, exclude=EXCLUDED[self.network]) if pruned else None
        steps.train(model, lambda m, row: self.task.loss(m, self.task.draw(row)), chosen, schedule, held)

    def told(self, error: float, **more: Any) -> dict[str, Any]:
        from dataclasses import asdict

        return {
            "network": self.network,
            "data": self.task.what,
            "seed": self.seed,
            "error": round(error, 5),
        } | {
            **more,
            "sizes": asdict(self.sizes),
        }

    def dense(self) -> dict[str, Any]:
        self.model.load_state_dict(self.weights)
        return self.told(self.task.error(self.model), pattern="dense", sparsity=0.0)

    def dense_again(self) -> dict[str, Any]:
        """Trained once more without pruning, as long as pruned networks are."""
        self.model.load_state_dict(self.weights)
        self.train(self.model, range(self.sizes.epochs))
        return self.told(self.task.error(self.model), pattern=AGAIN, sparsity=0.0)

    def pruned(self, options: dict[str, Any], sparsity: float, rounds: int) -> dict[str, Any]:
        """Prune it and train it again, once or in rounds."""
        model = self.model
        model.load_state_dict(self.weights)
        before = math.nan
        for step in sparsegen.rewinding_rounds(sparsity, self.sizes.epochs, rounds=rounds):
            slopes = self.gradients(model) if options.get("score") == "taylor" else None
            found = sparsegen.prune(
                model.state_dict(),
                sparsity=step.sparsity,
                gradients=slopes,
                exclude=EXCLUDED[self.network],
                **options,
            )
            model.load_state_dict(found.weights)
            before = self.task.error(model)
            self.train(model, step.epochs, pruned=True)
        emptied = len(found.report.emptied)
        return self.told(
            self.task.error(model),
            sparsity=sparsity,
            error_before_retraining=round(before, 5),
            reached=round(found.report.sparsity, 4),
            emptied_layers=emptied,
        )

    def gradients(self, model: Any) -> dict[str, Any]:
        """Gradients of the loss on some batches by all that is pruned; other tensors get none."""
        from benchmarks.papers import steps

        model.zero_grad(set_to_none=True)
        for row in steps.drawn(self.task.most, self.sizes.batch_of(self.network), 4, 7):
            self.task.loss(model, self.task.draw(row.to(self.place))).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@dataclass(frozen=True)
class Task:
    """A task of a network: how it is made, a batch, its loss, and the error on data that it did not learn from.

    Attributes:
        most: numbers below it choose what is in a batch.
        draw: the batch that some numbers choose.
    """

    what: str
    model: Callable[[], Any]
    most: int
    draw: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]
    error: Callable[[Any], float]


def _digit_task(sizes: Sizes, setting: Setting) -> Task:
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.papers.networks import ResNet

    learnt, unseen, what = setting.data.digits(sizes.images, sizes.tested)
    place = setting.place
    x, y = (
        torch.from_numpy(np.ascontiguousarray(a)).to(place) for a in (learnt.images[:, None], learnt.labels)
    )
    tx, ty = (
        torch.from_numpy(np.ascontiguousarray(a)).to(place) for a in (unseen.images[:, None], unseen.labels)
    )

    def draw(chosen: Any) -> Any:
        return x[chosen], y[chosen]

    def error(model: Any) -> float:
        model.eval()
        with torch.no_grad():
            parts = zip(tx.split(500), ty.split(500), strict=True)
            wrong = torch.stack([(model(a).argmax(1) != b).sum() for a, b in parts])
        return 100 * int(wrong.sum()) / len(ty)

    def loss(model: Any, batch: Any) -> Any:
        return cross_entropy(model(batch[0]), batch[1])

    return Task(what, lambda: ResNet(sizes.channels), len(y), draw, loss, error)


def _text_task(sizes: Sizes, setting: Setting) -> Task:
    import torch
    from torch.nn.functional import cross_entropy

    from benchmarks.papers.networks import ByteTransformer

    place = setting.place
    learnt, unseen, what = setting.data.text()
    known, unknown = (torch.from_numpy(part.astype(np.int64)).to(place) for part in (learnt, unseen))
    span = torch.arange(sizes.length + 1, device=place)

    def draw(starts: Any) -> Any:
        found = known[starts[:, None] + span]
        return found[:, :-1], found[:, 1:]

    def loss(model: Any, batch: Any) -> Any:
        with torch.autocast(place.type, torch.bfloat16, enabled=setting.is_timed):
            found = model(batch[0])
        return cross_entropy(found.float().flatten(0, 1), batch[1].flatten())

    def error(model: Any) -> float:
        model.eval()
        starts = (
            torch.linspace(0, len(unknown) - sizes.length - 2, max(8, sizes.tested // 10)).long().to(place)
        )
        found = unknown[starts[:, None] + span]
        with torch.no_grad():
            losses = [loss(model, (part[:, :-1], part[:, 1:])) for part in found.split(50)]
        return statistics.mean(torch.stack(losses).tolist()) / math.log(2)

    most = len(known) - sizes.length - 1
    return Task(
        what, lambda: ByteTransformer(sizes.width, sizes.layers, sizes.length), most, draw, loss, error
    )


def _rows(document: Document, network: str) -> list[Row]:
    """The trainings of a network."""
    return [row for row in document["rows"] if row.get("network") == network]


def _sparsities(document: Document) -> list[float]:
    return sorted({row["sparsity"] for row in document["rows"] if "network" in row and row["sparsity"] > 0})


def _highest(rows: Sequence[Row], pattern: str, network: str) -> float | None:
    """The highest sparsity of a network whose mean error is the dense one's within `MARGIN`; None if no one's is."""
    dense = [row["error"] for row in rows if row["pattern"] == AGAIN]
    tried = {row["sparsity"] for row in rows if row["pattern"] == pattern}
    return max((p for p in tried if _within(_errors(rows, pattern, p), dense, network)), default=None)


def _errors(rows: Sequence[Row], pattern: str, sparsity: float) -> list[float]:
    return [row["error"] for row in rows if row["pattern"] == pattern and row["sparsity"] == sparsity]


def _within(errors: Sequence[float], dense: Sequence[float], network: str) -> bool:
    return bool(errors and dense) and statistics.mean(errors) <= statistics.mean(dense) + MARGIN[network]


def _spread(errors: Sequence[float]) -> str:
    if not errors:
        return NONE
    return f"{statistics.mean(errors):.3f}" + (
        f" ± {statistics.stdev(errors):.3f}" if len(errors) > 1 else ""
    )


STUDY = UniformAccuracy()
main = STUDY.command()

if __name__ == "__main__":
    main()
