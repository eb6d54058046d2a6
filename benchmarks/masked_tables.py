"""Tables of products with masks: the suite `sparsedrop`, and the goals of structured dropout beside what was measured.

Ratios are of times of one row: ours is the tuned winner or, where nothing was tuned, plain dispatch; dense is the
faster of cuBLAS and the first eight algorithms of cuBLASLt, in TF32 for float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.markdown import TYPES, figure, quotient, table
from benchmarks.suite_tables import origin, read
from sparsegen.bench.results.results import TUNED, UNTUNED, Row
from sparsegen.bench.results.summary import summarize
from sparsegen.operators import DsdProblem, DsdTransposedProblem, DType, MaskedProblem, SddProblem

SUITE = "sparsedrop"
DENSE = {DType.FLOAT32: ("cublas-tf32", "cublaslt")}
USUAL_DENSE = ("cublas", "cublaslt")
CLEAR_US = 1000.0  # of products, from which on a mask's microseconds are within their noise
PEERS = ("triton-blocks", "torch-masked-bsr")
PRODUCTS: tuple[tuple[str, type[MaskedProblem]], ...] = (
    ("dsd", DsdProblem),
    ("transposed", DsdTransposedProblem),
    ("sdd", SddProblem),
)


class Workload(NamedTuple):
    """Properties that the three products of a step share; ``dropped`` is the share of blocks as asked for."""

    size: tuple[int, int, int]
    block: int
    dropped: float
    dtype: DType

    def __str__(self) -> str:
        m, k, n = self.size
        size = f"{m}³" if m == k == n else f"{m} x {k} x {n}"
        return f"{size}, block {self.block}, s = {self.dropped:g}, {TYPES[self.dtype]}"


@dataclass(frozen=True)
class Product:
    """A row of the suite: microseconds.

    Attributes:
        live: the share of blocks that live, as drawn.
        dropout: PyTorch's dropout and dense product.
        peer: the faster of two routines of blocks in Triton.
    """

    ours: float | None
    dense: float | None
    dropout: float | None
    peer: float | None
    live: float

    @classmethod
    def of(cls, row: Row, problem: MaskedProblem) -> Product:
        def fastest(names: Sequence[str]) -> float | None:
            return min((us for name in names if (us := row.us(name)) is not None), default=None)

        return cls(
            row.us(TUNED) or row.us(UNTUNED),
            fastest(DENSE.get(problem.dtype, USUAL_DENSE)),
            row.us("torch-dropout"),
            fastest(PEERS),
            problem.density.share * row.floor.computed,
        )

    @property
    def over_dense(self) -> float | None:
        return quotient(self.ours, self.dense)

    @property
    def over_live(self) -> float | None:
        """Our time over the live share of the dense one."""
        ratio = self.over_dense
        return None if ratio is None else ratio / self.live


Step = Mapping[str, Product]


def steps(folder: Path) -> dict[Workload, Step]:
    """The suite's rows by workload and product."""
    found: dict[Workload, dict[str, Product]] = {}
    for results in read(folder, suites=[SUITE]):
        for row in results.rows:
            problem = row.problem
            if row.suite != SUITE or not isinstance(problem, MaskedProblem):
                continue
            [name] = [name for name, kind in PRODUCTS if isinstance(problem, kind)]
            dropped = round(1 - problem.density.share, 3)
            size = (problem.m, problem.k, problem.n)
            workload = Workload(size, problem.block.rows, dropped, problem.dtype)
            found.setdefault(workload, {})[name] = Product.of(row, problem)
    return found


def products(folder: Path) -> str:
    """A line for each workload: the three products, and all of them beside dense ones."""
    lines = []
    for workload, step in sorted(steps(folder).items(), key=lambda one: _order(one[0])):
        known = [step.get(name) for name, _ in PRODUCTS]
        ours, dense = (_sum(known, attribute) for attribute in ("ours", "dense"))
        lines.append(
            [
                str(workload),
                figure(known[0].dense if known[0] else None),
                *(figure(p.ours if p else None) for p in known),
                *(figure(p.over_live if p else None) for p in known),
                figure(quotient(ours, dense)),
                *(figure(quotient(p.peer, p.ours) if p else None) for p in known),
                *(figure(quotient(p.dropout, p.dense) if p else None) for p in (known[0], known[2])),
            ]
        )
    if not lines:
        return "Not measured yet: no `bench_*.json.xz` has rows of `sparsedrop` (benchmarks/README.md)."
    names = [name for name, _ in PRODUCTS]
    head = ["m x k x n", "dense, µs", *(f"{name}, µs" for name in names)]
    head += [*(f"{name} over live dense" for name in names), "all three over dense"]
    head += [*(f"best Triton over {name}" for name in names), "with dropout over dense: dsd", "sdd"]
    return table(head, lines) + origin(read(folder, suites=[SUITE]))


def _order(workload: Workload) -> tuple[Any, ...]:
    m, k, n = workload.size
    return (
        list(DType).index(workload.dtype),
        not m == k == n,
        workload.size,
        -workload.block,
        workload.dropped,
    )


def _sum(known: Sequence[Product | None], attribute: str) -> float | None:
    """Sum over all three products; None if one is not known."""
    found = [getattr(product, attribute) if product else None for product in known]
    return None if None in found else sum(found)


class Goal(NamedTuple):
    """A row of the goals: what is asked for, each figure with its bound, and where they are from."""

    what: str
    asked: str
    figures: Sequence[tuple[float | None, float]]
    source: str
    is_least: bool = False  # bounds are the least that is asked for, not the most


def goals(folder: Path, study: Callable[[str], Sequence[Mapping[str, Any]]]) -> str:
    """The issue's table beside what was measured.

    Args:
        study: the rows of a study's file; none where there is no such file.
    """
    lines = []
    for goal in _goals(folder, study):
        known = [(value, bound) for value, bound in goal.figures if value is not None]
        short = [value < bound if goal.is_least else value > bound for value, bound in known]
        state = "not measured"
        if known:
            missing = (
                "" if len(known) == len(goal.figures) else f"; {len(goal.figures) - len(known)} not measured"
            )
            state = (f"{sum(short)} of {len(known)} short" if any(short) else "reached") + missing
        measured = ", ".join(figure(value) for value, _ in goal.figures)
        lines.append(f"| {goal.what} | {goal.asked} | {measured} | {goal.source} | {state} |")
    return "\n".join(["| | goal | measured | from | |", "|---|---|---|---|---|", *lines])


def _goals(folder: Path, study: Callable[[str], Sequence[Mapping[str, Any]]]) -> Iterator[Goal]:
    found, half = steps(folder), DType.FLOAT16
    file = f"`bench_{SUITE}.json.xz`"

    def figures(size: int, dropped: float, bounds: Sequence[float], block: int = 128, dtype: DType = half,
                names: Sequence[str] = ("dsd", "sdd", "transposed")) -> list[tuple[float | None, float]]:  # fmt: skip
        step = found.get(Workload((size, size, size), block, dropped, dtype), {})
        # Dense operands without zeros, where they were measured.
        whole = {**step, **found.get(Workload((size, size, size), 128, 0, dtype), {})}
        ratios = [
            quotient(step[name].ours, (whole[name].dense or 0) * step[name].live) if name in step else None
            for name in names
        ]
        if dropped == 0:
            ratios = [quotient(1, ratio) for ratio in ratios]
        return list(zip(ratios, bounds, strict=True))

    what = "s = 0, share of cuBLAS's speed: dsd, sdd, dW at"
    for size, bound in ((8192, 0.98), (4096, 0.98), (2048, 0.97), (1024, 0.9)):
        yield Goal(f"{what} {size}³", f"≥ {bound}", figures(size, 0, [bound] * 3), file, is_least=True)
    for size, bound in ((8192, 1.05), (4096, 1.1), (2048, 1.3)):
        what = f"time ÷ (live share · dense), block 128, s = 0.5: dsd, sdd, dW at {size}³"
        yield Goal(what, f"≤ {bound}", figures(size, 0.5, [bound] * 3), file)
    sixty_four = [
        *figures(4096, 0.5, [1.2], 64, names=["dsd"]),
        *figures(8192, 0.5, [1.12], 64, names=["dsd"]),
    ]
    yield Goal("block 64, s = 0.5, dsd at 4096³, 8192³", "≤ 1.20, 1.12", sixty_four, file)
    gains = [found.get(Workload((n, n, n), 64, 0.2, half), {}).get("sdd") for n in (4096, 8192)]
    over = [(one.over_dense if one else None, 1.0) for one in gains]
    yield Goal("block 64, s = 0.2, sdd ÷ dense at 4096³, 8192³", "< 1", over, file)
    studied = [*study("structured_dropout"), *study("structured_dropout_small")]  # the latter measured since
    layers = {(row["layer"].split()[0], row["p"]): row for row in studied if "layer" in row}
    asked = ((4096, 0.9, 0.55), (8192, 0.93, 0.5), (2048, 0.82, 0.6), (1024, 0.95, 0.8))
    for key, words in (("masked", ""), ("own_seed", ", seeds of the layer's own")):
        values = [
            (layers.get((str(size), p), {}).get(f"{key}_over_dropout_dense"), bound)
            for size, *bounds in asked
            for p, bound in zip((0.05, 0.5), bounds, strict=True)
        ]
        what = f"mask + forward + backward ÷ (dropout + dense){words}: s = 0.05, 0.5 at 4096³, 8192³, 2048³, 1024³"
        told = ", ".join(f"{one}, {other}" for _, one, other in asked)
        yield Goal(what, f"≤ {told}", values, "`structured_dropout.json.xz`")
    chains = [row for row in studied if "chain" in row and row["products_us"] < CLEAR_US]
    worst = max((row["early_adds_us"] for row in chains), default=None)
    yield Goal(
        "µs that a new mask adds to a step, the most to 4096³", "hidden (≤ 0.5)", [(worst, 0.5)], "the same"
    )
    rows = [row for results in read(folder, "explore", ["sparsedrop"]) for row in results.rows]
    mma = [_mma(rows, kind, density) for density in (1.0, 0.5) for _, kind in PRODUCTS]
    shares = [*((quotient(1, one), 0.85) for one in mma[:3])]
    yield Goal(
        "`mma.sync` at 4096³, s = 0: speed over cuBLASLt's kernels of sm_80, dsd, dW, sdd", "≥ 0.85", shares,
        "`explore_masked_mma.json.xz`", is_least=True,
    )  # fmt: skip
    yield Goal(
        "the same, s = 0.5: time ÷ (live share · dense)", "≤ 1.2", [(one, 1.2) for one in mma[3:]], "the same"
    )
    blocks = [
        row for results in read(folder, suites=["block"]) for row in results.rows if row.suite == "block"
    ]
    mean = summarize(blocks)[0].to_dense.value if blocks else None
    yield Goal(
        "static `block` list, ÷ dense, geometric mean", "≤ 0.60", [(mean, 0.6)], "`bench_block.json.xz`"
    )
    ratios = []
    for dropped in (0, 0.5):
        for name, _ in PRODUCTS:
            one, other = (
                found.get(Workload((4096,) * 3, 128, dropped, dtype), {}).get(name)
                for dtype in (DType.BFLOAT16, half)
            )
            ratios.append((quotient(one.ours if one else None, other.ours if other else None), 1.02))
    yield Goal("bf16 ÷ fp16 at 4096³: dsd, dW, sdd at s = 0, then 0.5", "≤ 1.02", ratios, file)
    single = DType.FLOAT32
    for size, least, most in ((8192, 0.98, 1.05), (4096, 0.98, 1.1), (2048, 0.97, 1.3)):
        pair = ("dsd", "sdd")
        yield Goal(
            f"TF32, s = 0, share of cuBLAS's speed in TF32: dsd, sdd at {size}³", f"≥ {least}",
            figures(size, 0, [least] * 2, dtype=single, names=pair), file, is_least=True,
        )  # fmt: skip
        yield Goal(
            f"TF32, s = 0.5, time ÷ (live share · dense) at {size}³", f"≤ {most}",
            figures(size, 0.5, [most] * 2, dtype=single, names=pair), file,
        )  # fmt: skip


def _mma(rows: Sequence[Row], kind: type[MaskedProblem], density: float) -> float | None:
    """The fastest `mma.sync` config over the live share of cuBLASLt's kernels of sm_80."""
    for row in rows:
        problem = row.problem
        if isinstance(problem, kind) and problem.density.share == density:
            timed = (row.us(cell.baseline) for cell in row.cells if cell.baseline.startswith("mma-"))
            ours = min((us for us in timed if us is not None), default=None)
            ratio = quotient(ours, row.us("cublaslt-mma"))
            if ratio is not None:
                return ratio / (density * row.floor.computed)
    return None
