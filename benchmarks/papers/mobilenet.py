"""MobileNetV1 end to end: frames a second of wider sparse networks beside narrower dense ones, and their accuracy.

    python -m benchmarks.papers.mobilenet --data DATA

Gale et al., SC 2020, section VII-D: networks of widths 1.0 to 1.8 whose 1 × 1 convolutions are 90 % zeros, but for the
first; batch norms folded, bias and ReLU part of the kernels, in float32 with one image. Time is of a CUDA graph of the
whole network on images of 224 × 224, sparse (`convert` with ``dense="never"``, depthwise convolutions by our kernel
too), as `convert` chooses inside the model (``chosen``), and dense. Accuracy is of the same networks on digits of 96 ×
96, where each is trained, pruned and trained again with the learning rates of all its epochs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

import sparsegen
from benchmarks.markdown import NONE, figure, quotient, table
from benchmarks.papers import steps
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import Claim, Document, Point, Setting, Study, outcome, result, svg
from benchmarks.study import WrongResultError, times_in_turn
from sparsegen.integrations.torch import convert, fold_batch_norms, hold_zeros

# Outputs and stride of each depthwise-separable layer behind the first convolution (Howard et al., 2017, table 1).
LAYERS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2),
    (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2), (1024, 1),
)  # fmt: skip
FIRST = 32
SPARSITY, TOLERANCE = 0.9, 2e-3
# The paper's equal pairs of both ends.
TOLD = ("dense", 1.0), ("sparse", 1.3), ("dense", 1.4), ("sparse", 1.8)
PAPER = {  # table IV: accuracy in percent, frames a second on a V100
    ("dense", 1.0): (72.7, 2518), ("dense", 1.2): (73.8, 2046), ("dense", 1.4): (74.8, 1729),
    ("sparse", 1.3): (72.9, 2874), ("sparse", 1.4): (73.3, 2706), ("sparse", 1.5): (73.8, 2537),
    ("sparse", 1.6): (74.1, 2366), ("sparse", 1.7): (74.4, 2226), ("sparse", 1.8): (74.9, 2095),
}  # fmt: skip
AS_EXACT = {
    1.3: 1.0,
    1.5: 1.2,
    1.8: 1.4,
}  # widths of sparse networks, and of dense ones of equal accuracy there


@dataclass(frozen=True)
class Sizes:
    """Sizes of images and training."""

    layers: int = len(LAYERS)
    timed_side: int = 224
    side: int = 96
    classes: int = 1000
    images: int = 16384
    tested: int = 10000
    batch: int = 128
    steps: int = 128
    epochs: int = 4


TINY = Sizes(2, 16, 16, 10, 64, 32, 8, 2, 1)


def channels(width: float, full: int) -> int:
    """Scaled to a multiple of eight, so that vectors of floats are aligned."""
    return max(8, round(width * full / 8) * 8)


def mobilenet(width: float, layers: int, classes: int) -> nn.Sequential:
    """MobileNetV1: a convolution of stride 2, depthwise-separable layers, and a linear layer."""

    def behind(conv: nn.Conv2d) -> list[nn.Module]:
        return [conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU()]

    inputs = channels(width, FIRST)
    made = behind(nn.Conv2d(3, inputs, 3, 2, 1, bias=False))
    for full, stride in LAYERS[:layers]:
        outputs = channels(width, full)
        made += behind(nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False))
        made += behind(nn.Conv2d(inputs, outputs, 1, bias=False))
        inputs = outputs
    return nn.Sequential(*made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def pointwise(model: nn.Module) -> list[str]:
    """The 1 × 1 convolutions but the first, as in the paper."""
    found = [
        name for name, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)
    ]
    return found[1:]


def prune(model: nn.Module) -> None:
    """Prunes to 90 % zeros, each layer by itself."""
    names = [f"{name}.weight" for name in pointwise(model)]
    weights = {name: model.state_dict()[name] for name in names}
    found = sparsegen.prune(weights, pattern="unstructured", sparsity=SPARSITY, scope="layer").weights
    model.load_state_dict(model.state_dict() | found)


class Timed:
    """One network, ready for inference in several ways, which give the same results."""

    def __init__(self, width: float, kind: str, sizes: Sizes, setting: Setting) -> None:
        torch.manual_seed(0)
        self.setting = setting
        base = mobilenet(width, sizes.layers, sizes.classes).to(setting.place)
        side = sizes.timed_side
        self.x = torch.randn(1, 3, side, side, device=setting.place).contiguous(
            memory_format=torch.channels_last
        )
        base = base.to(memory_format=torch.channels_last)
        with torch.no_grad():
            base(torch.randn(4, 3, side, side, device=setting.place))  # statistics of the norms
        base.eval()
        if kind == "sparse":
            prune(base)
        fold_batch_norms(base)
        self.models: dict[str, nn.Module] = {"dense": base}
        if kind == "sparse":
            self.models["sparse"], self.models["chosen"] = copy.deepcopy(base), copy.deepcopy(base)
            convert(self.models["sparse"], dense="never")
            convert(self.models["chosen"], example_inputs=self.x)

    @torch.no_grad()
    def measured(self) -> dict[str, Any]:
        """Frames a second of each way.

        Raises:
            WrongResultError: a way gives another result than the dense one.
        """
        wanted = self.models["dense"](self.x)
        error = 0.0
        for name, model in self.models.items():
            error = max(error, float((model(self.x) - wanted).abs().max() / wanted.abs().max()))
            if not error <= TOLERANCE:
                raise WrongResultError(f"{name}: off by {error:.3g} of the largest result")
        if not self.setting.is_timed:
            return {"frames_per_s": dict.fromkeys(self.models), "error": error}
        us = times_in_turn([self.replay(model) for model in self.models.values()], calls=5)
        frames = {name: round(5e6 / one) for name, one in zip(self.models, us, strict=True)}
        return {"frames_per_s": frames, "error": error}

    def replay(self, model: nn.Module) -> Any:
        """Five replays of a CUDA graph of the whole network."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                model(self.x)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(self.x)
        return lambda: [graph.replay() for _ in range(5)]


def accuracy(width: float, kind: str, sizes: Sizes, setting: Setting) -> dict[str, Any]:
    """Percent of unseen digits, of a network that was trained, and of a sparse one pruned and trained again."""
    torch.manual_seed(0)
    place = setting.place
    learnt, unseen, what = setting.data.digits(sizes.images, sizes.tested)
    model = mobilenet(width, sizes.layers, 10).to(place)
    known, labels = (
        torch.from_numpy(np.ascontiguousarray(a)).to(place) for a in (learnt.images, learnt.labels)
    )

    def images(grey: Tensor) -> Tensor:
        return interpolate(grey[:, None], sizes.side, mode="bilinear").expand(-1, 3, -1, -1)

    def loss(model: nn.Module, chosen: Tensor) -> Tensor:
        with torch.autocast(place.type, torch.bfloat16, enabled=setting.is_timed):
            found = model(images(known[chosen]))
        return cross_entropy(found.float(), labels[chosen])

    def train(epochs: Iterable[int], held: bool) -> None:
        schedule = steps.rates(epochs, sizes.steps, sizes.epochs)
        chosen = steps.drawn(len(labels), sizes.batch, len(schedule), 1)
        steps.train(model, loss, chosen, schedule, partial(hold_zeros, model) if held else None)

    train(range(sizes.epochs), held=False)
    if kind == "sparse":
        for turn in sparsegen.rewinding_rounds(SPARSITY, sizes.epochs):
            prune(model)
            train(turn.epochs, held=True)
    model.eval()
    right = 0
    with torch.no_grad():
        for first in range(0, len(unseen.labels), 256):
            grey = torch.from_numpy(np.ascontiguousarray(unseen.images[first : first + 256])).to(place)
            found = model(images(grey)).argmax(1).cpu().numpy()
            right += int((found == unseen.labels[first : first + 256]).sum())
    return {"accuracy": round(100 * right / len(unseen.labels), 3), "data": what}


def training_seconds(width: float, sizes: Sizes) -> float:
    """Seconds of all epochs: activations that are read and written some ten times in 32 bits."""
    count = sizes.epochs * sizes.steps
    pixels = sum((sizes.side >> 1) ** 2 * channels(width, full) for full, _ in LAYERS[: sizes.layers]) / 4
    return count * seconds(moved=10 * 4 * 2 * pixels * sizes.batch)


class MobileNet(Study):
    name = "mobilenet"
    title = "Sputnik: MobileNetV1"
    paper = "T. Gale, M. Zaharia, C. Young, E. Elsen: Sparse GPU Kernels for Deep Learning, SC 2020, section VII-D"
    gpu = "V100, fp32, one image"
    claims = (
        Claim("frames a second, dense at widths 1, 1.2, 1.4", "2518, 2046, 1729", "Table IV"),
        Claim("frames a second, 90 % sparse at widths 1.3 to 1.8", "2874 to 2095", "Table IV"),
        Claim("sparse over dense at equal accuracy", "21 to 24 %", "Fig. 12"),
    )
    differs = (
        "Accuracy is of digits of 96 × 96, on which networks are trained for some epochs, not of ImageNet: all widths "
        "are near each other there, and equal accuracy is taken from the paper's own pairs.",
        "Pruning is in one step and retraining by learning-rate rewinding, not gradual over ten times as many epochs.",
        "Dense networks run by cuDNN and cuBLAS in CUDA graphs, fp32 without TF32.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        sizes = TINY if setting.tiny else Sizes()
        cases = [("dense", 1.0), ("sparse", 1.3)] if setting.tiny else list(dict.fromkeys((*TOLD, *PAPER)))
        for kind, width in cases:
            told = {"kind": kind, "width": width, "sizes": asdict(sizes)}
            yield Point(
                f"{kind}, width {width}, frames",
                lambda k=kind, w=width, t=told: t | Timed(w, k, sizes, setting).measured(),
                expected=4 + seconds(compiled=sizes.layers if kind == "sparse" else 0),
            )
        for kind, width in cases:
            told = {"kind": kind, "width": width, "sizes": asdict(sizes)}
            yield Point(
                f"{kind}, width {width}, accuracy",
                lambda k=kind, w=width, t=told: t | accuracy(w, k, sizes, setting),
                expected=2 + training_seconds(width, sizes) * (1 + (kind == "sparse")),
                is_timed=False,
            )

    def table(self, document: Document) -> str:
        lines, speeds = [], frames_of(document)
        for key, (paper_accuracy, paper_frames) in PAPER.items():
            narrow = speeds.get(("dense", AS_EXACT.get(key[1], 0.0)), {}) if key[0] == "sparse" else {}
            rows = [row for row in document["rows"] if (row["kind"], row["width"]) == key]
            frames = speeds.get(key, {})
            over = quotient(frames.get("chosen"), narrow.get("dense"))
            found = next((row["accuracy"] for row in rows if "accuracy" in row), None)
            lines.append(
                [
                    f"{key[0]}, width {key[1]}", *(frames.get(way) or NONE for way in ("dense", "sparse", "chosen")),
                    NONE if over is None else outcome(over), figure(found), paper_frames, paper_accuracy,
                ]
            )  # fmt: skip
        head = [
            "frames a second",
            "dense kernels",
            "sparse kernels",
            "chosen",
            "chosen beside a dense network as exact there",
            "accuracy, %",
            "paper",
            "paper, %",
        ]
        return table(head, lines)

    def results(self, document: Document) -> Sequence[str]:
        frames, found = frames_of(document), []
        for wide, narrow in AS_EXACT.items():
            ours, dense = frames.get(("sparse", wide), {}), frames.get(("dense", narrow), {})
            if ours.get("sparse") and dense.get("dense"):
                over = ours["sparse"] / dense["dense"]
                found.append(result(f"Sparse at width {wide} over dense at {narrow}", over))
                found.append(
                    result(f"As chosen at width {wide} over dense kernels", ours["chosen"] / ours["dense"])
                )
        return found

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        made = Figure(figsize=(5, 3.4), layout="constrained")
        axes = made.subplots()
        for kind in ("dense", "sparse"):
            rows = [row for row in document["rows"] if row["kind"] == kind]
            speed = {row["width"]: row["frames_per_s"].get(kind) for row in rows if "frames_per_s" in row}
            right = {row["width"]: row["accuracy"] for row in rows if "accuracy" in row}
            known = sorted(width for width in speed if speed[width] and width in right)
            axes.plot([1e3 / speed[w] for w in known], [right[w] for w in known], marker="o", label=kind)
        axes.set(xlabel="ms an image", ylabel="accuracy, %")
        axes.legend()
        return svg(made, path)


def frames_of(document: Document) -> dict[tuple[str, float], dict[str, Any]]:
    """Frames a second of each network that was timed, by the way in which it ran."""
    timed = (row for row in document["rows"] if "frames_per_s" in row)
    return {(row["kind"], row["width"]): row["frames_per_s"] for row in timed}


STUDY = MobileNet()
main = STUDY.command()

if __name__ == "__main__":
    main()
