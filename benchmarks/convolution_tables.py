"""Tables of the suite `convolution`; `benchmarks.make_tables` places them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown import NONE, TYPES, table
from benchmarks.suite_tables import origin, read
from sparsegen.bench.results.results import UNTUNED, Row
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
