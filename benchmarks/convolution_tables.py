"""Tables of the suite `convolution`, and its goals beside what was measured; `benchmarks.make_tables` places them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import study
from benchmarks.markdown import NONE, TYPES, table
from benchmarks.suite_tables import origin, read
from sparsegen.bench.results.results import UNTUNED, Row
from sparsegen.bench.results.summary import geometric
from sparsegen.operators import DType, MaskedConv2dProblem, MaskedConv2dWeightsProblem, MaskOf, Rest

SUITE = "convolution"
CHANNELS, IMAGES, SIDES = (64, 128, 256), (1, 8), (128, 256, 512)
SPARSITIES = (0, 50, 70, 90, 95)  # percent
PEERS = {
    "torch-gather-conv": "gathered and scattered by PyTorch",
    "kernel-gather-conv": "by kernels of ours",
    "torch-im2col": "im2col and a product",
}
MISSING = "Not measured yet: there is no `bench_convolution.json.xz` (benchmarks/README.md)."


@dataclass(frozen=True)
class Key:
    """A row of the suite, by what tells it from the others."""

    channels: int = 128
    images: int = 8
    side: int = 512
    sparsity: int = 90
    blobs: bool = False
    filter_size: str = "3x3"
    stride: str = "1x1"
    mask_of: MaskOf = MaskOf.OUTPUT
    rest: Rest = Rest.KEPT
    dtype: DType = DType.FLOAT16
    epilogue: str = "none"
    by_weights: bool = False

    @classmethod
    def of(cls, row: Row) -> Key:
        p = row.problem
        by_weights = isinstance(p, MaskedConv2dWeightsProblem)
        assert isinstance(p, MaskedConv2dProblem | MaskedConv2dWeightsProblem)
        return cls(
            channels=p.channels,
            images=p.images if isinstance(p, MaskedConv2dWeightsProblem) else p.batch,
            side=p.height,
            sparsity=round(100 * (1 - p.density.share)),
            blobs=row.case.endswith("blobs"),
            filter_size=str(p.filter_size),
            stride=str(p.stride),
            mask_of=MaskOf.OUTPUT if isinstance(p, MaskedConv2dWeightsProblem) else p.mask_of,
            rest=Rest.KEPT if isinstance(p, MaskedConv2dWeightsProblem) else p.rest,
            dtype=p.dtype,
            epilogue="none" if isinstance(p, MaskedConv2dWeightsProblem) else str(p.epilogue),
            by_weights=by_weights,
        )


Rows = dict[Key, Row]


def rows_of(folder: Path) -> Rows:
    """The suite's rows; none where it was not measured."""
    return {
        Key.of(row): row for part in read(folder, suites=[SUITE]) for row in part.rows if row.suite == SUITE
    }


def ours(row: Row | None) -> float | None:
    return None if row is None else row.us(UNTUNED)


def dense(row: Row | None) -> float | None:
    found = None if row is None else row.dense()
    return None if found is None or found.timing is None else found.timing.us


def faster(row: Row | None) -> float | None:
    """cuDNN's time over ours."""
    mine, theirs = ours(row), dense(row)
    return theirs / mine if mine and theirs else None


def us(value: float | None) -> str:
    return NONE if value is None else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def times(folder: Path, *, blobs: bool = False) -> str:
    """A row for each shape: microseconds by sparsity, and how much faster than cuDNN."""
    rows = rows_of(folder)
    if not rows:
        return MISSING
    some = [s for s in SPARSITIES if s > 0 or not blobs]
    lines = []
    for channels in CHANNELS:
        for images in IMAGES:
            for side in SIDES:
                found = [rows.get(Key(channels, images, side, s, blobs)) for s in some]
                baseline = next((t for t in map(dense, found) if t is not None), None)
                ratios = " / ".join(NONE if (f := faster(r)) is None else f"{f:.2f}" for r in found)
                lines.append(
                    [f"{channels}, {images}, {side}²", us(baseline), *(us(ours(r)) for r in found), ratios]
                )
    head = ["channels, images, pixels", "cuDNN", *(f"{s} % dead" for s in some), "faster than cuDNN at these"]
    return table(head, lines) + origin(read(folder, suites=[SUITE]))


def others(folder: Path) -> str:
    """A row for each that is not of the table of shapes."""
    rows = rows_of(folder)
    if not rows:
        return MISSING
    shapes = {
        Key(c, n, s, z, b)
        for c in CHANNELS
        for n in IMAGES
        for s in SIDES
        for z in SPARSITIES
        for b in (False, True)
    }
    lines = []
    for key, row in rows.items():
        if key in shapes:
            continue
        found = faster(row)
        cells = us(ours(row)), us(dense(row)), NONE if found is None else f"{found:.2f}"
        lines.append([f"`{row.case}`, {TYPES[row.dtype]}", *cells])
    return table(["case", "µs", "cuDNN", "faster"], lines)


def peers(folder: Path) -> str:
    """Other ways to compute live blocks alone, in times of ours."""
    rows = rows_of(folder)
    if not rows:
        return MISSING
    lines = []
    for key, row in rows.items():
        found = _over(row)
        if found:
            masks = "blobs" if key.blobs else "random"
            shape = f"{key.channels}, {key.images}, {key.side}², {key.sparsity} %, {masks}"
            told = (f"{found[name]:.1f} ×" if name in found else NONE for name in PEERS)
            lines.append([shape, us(ours(row)), *told])
    return table(["channels, images, pixels, dead", "ours, µs", *PEERS.values()], lines)


def _over(row: Row) -> dict[str, float]:
    """Times of the others over ours."""
    mine = ours(row)
    return {name: t / mine for name in PEERS if mine and (t := row.us(name))}


# --- goals ---


@dataclass(frozen=True)
class Figure:
    """A goal and the measured value; ``more`` is true if larger is better."""

    goal: float
    measured: float | None
    more: bool = True
    digits: int = 2

    @property
    def is_reached(self) -> bool:
        if self.measured is None:
            return False
        rounded = round(self.measured, self.digits)
        return rounded >= self.goal if self.more else rounded <= self.goal

    def __str__(self) -> str:
        return NONE if self.measured is None else f"{self.measured:.{self.digits}f}"


@dataclass(frozen=True)
class Goal:
    name: str
    figures: tuple[Figure, ...]
    unit: str = "×"
    source: str = "`bench_convolution.json.xz`"

    def line(self) -> list[str]:
        known = [f for f in self.figures if f.measured is not None]
        missed = len([f for f in known if not f.is_reached])
        state = "reached" if not missed else f"{missed} short"
        if len(known) < len(self.figures):
            state = "not measured" if not known else f"{state}, {len(self.figures) - len(known)} not measured"
        goals = " / ".join(f"{f.goal:g}" for f in self.figures)
        return [self.name, f"{goals} {self.unit}", " / ".join(map(str, self.figures)), self.source, state]


def goals(folder: Path, host: Path) -> str:
    """A row for each of the goals that the operator was given.

    Args:
        host: the folder of the device that ``host_convolution.json.xz`` is of.
    """
    rows = rows_of(folder)
    if not rows:
        return MISSING
    listed = [*_of_shapes(rows), *_of_others(rows), *_of_studies(folder, host)]
    return table(["", "goal", "measured", "from", ""], [goal.line() for goal in listed]) + origin(
        read(folder, suites=[SUITE])
    )


def _of_shapes(rows: Rows) -> Iterator[Goal]:
    nothing_dead = [
        f
        for c in CHANNELS
        for n in IMAGES
        for s in SIDES
        if (f := faster(rows.get(Key(c, n, s, 0)))) is not None
    ]
    whole = len(nothing_dead) == len(CHANNELS) * len(IMAGES) * len(SIDES)
    mean, least = (geometric(nothing_dead).value, min(nothing_dead)) if whole else (None, None)
    yield Goal("0 %, 18 shapes: geometric mean, least", (Figure(1.08, mean), Figure(0.98, least)))
    for sparsity, wanted in ((50, (2.2, 1.95, 2.1)), (90, (9.0, 9.0, 10.0)), (95, (14.0, 17.0, 18.0))):
        found = (
            Figure(g, faster(rows.get(Key(c, sparsity=sparsity))))
            for c, g in zip(CHANNELS, wanted, strict=True)
        )
        yield Goal(f"{sparsity} %, N8 512², C 64 / 128 / 256", tuple(found))
    small = (Figure(g, faster(rows.get(Key(128, n, 256)))) for n, g in ((8, 7.5), (1, 4.0)))
    yield Goal("90 %, C128 256², N8 / N1", tuple(small))


def _of_others(rows: Rows) -> Iterator[Goal]:
    for blobs, wanted in ((True, ((50, 125.0), (90, 35.0), (95, 25.0))), (False, ((50, 170.0), (90, 55.0)))):
        found = (
            Figure(
                goal, ours(rows.get(Key(128, 8, 256, s, blobs, mask_of=MaskOf.INPUT))), more=False, digits=1
            )
            for s, goal in wanted
        )
        shares = " / ".join(str(s) for s, _ in wanted)
        yield Goal(
            f"mask of the input, {'blobs' if blobs else 'random'}, C128 N8 256²: {shares} %",
            tuple(found),
            "µs",
        )
    some = (
        Key(256, 8, 256, 0, filter_size="1x1"),
        Key(128, 1, 256, 0, filter_size="5x5"),
        Key(128, 8, 256, 0, stride="2x2"),
        Key(32, 8, 512, 0),
    )
    yield Goal(
        "0 %: 1 × 1 C256, 5 × 5 C128, stride 2 C128, C32",
        tuple(Figure(1.0, faster(rows.get(k))) for k in some),
    )
    gradients = Key(by_weights=True), Key(mask_of=MaskOf.ANY_INPUT, rest=Rest.FILLED)
    yield Goal(
        "gradients by the weights and by x, C128 N8 512², 90 %",
        tuple(Figure(5.0, faster(rows.get(k))) for k in gradients),
    )
    over = [_over(row) for row in rows.values()]
    least = [min((o[name] for o in over if name in o), default=None) for name in PEERS]
    yield Goal(
        f"90 %, least of {', '.join(PEERS.values())}", tuple(Figure(4.0, value, digits=1) for value in least)
    )
    halves = [ours(rows.get(Key(c, 8, 256, s, dtype=DType.BFLOAT16))) for c in CHANNELS for s in (0, 50, 90)]
    singles = [ours(rows.get(Key(c, 8, 256, s))) for c in CHANNELS for s in (0, 50, 90)]
    ratios = [a / b for a, b in zip(halves, singles, strict=True) if a and b]
    yield Goal(
        "bfloat16 over float16, N8 256², the slowest", (Figure(1.02, max(ratios, default=None), more=False),)
    )


def _of_studies(folder: Path, host: Path) -> Iterator[Goal]:
    chain = study.rows_of(folder / "masked_chain.json.xz")

    def best(field: str) -> Callable[[int], float | None]:
        return lambda c: min((r[field] for r in chain if r["channels"] == c), default=None)

    for name, field, wanted in (("alone", "alone_cold_us", 10.0), ("in a chain", "layer_earlier_us", 4.0)):
        found = tuple(Figure(wanted, best(field)(c), more=False, digits=1) for c in CHANNELS)
        yield Goal(f"N1 128² at 90 %, {name}, C 64 / 128 / 256", found, "µs", "`masked_chain.json.xz`")
    report = [
        r["in_place_ms"] for r in study.rows_of(host / "host_convolution.json.xz") if r["sparsity"] == 0.7
    ]
    [value] = report or [None]
    figures = (Figure(9.5, value, more=False, digits=1),)
    yield Goal(
        "256 images of 512², 3 channels, 70 %, host to host (H200)",
        figures,
        "ms",
        "`host_convolution.json.xz`",
    )
