"""Table of products with masks: the suite `sparsedrop`.

Ratios are of times of one row: ours is the tuned winner or, where nothing was tuned, plain dispatch; dense is the
faster of cuBLAS and the first eight algorithms of cuBLASLt, in TF32 for float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.markdown import TYPES, figure, quotient, table
from benchmarks.suite_tables import origin, read
from sparsegen.bench.results.results import TUNED, UNTUNED, Row
from sparsegen.operators import DsdProblem, DsdTransposedProblem, DType, MaskedProblem, SddProblem

SUITE = "sparsedrop"
DENSE = {DType.FLOAT32: ("cublas-tf32", "cublaslt")}
USUAL_DENSE = ("cublas", "cublaslt")
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
