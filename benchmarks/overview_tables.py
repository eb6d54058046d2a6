"""Short tables for the guides: masks that change with every call, networks.

All figures are of suites that `sparsegen bench` measured; `benchmarks.make_tables` places the tables. Ratios are of
times of one row, which one session measured: clocks depend on power, and differ between rows and days.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from benchmarks import convolution_tables, masked_tables
from benchmarks.convolution_tables import CHANNELS, IMAGES, SIDES, Key
from benchmarks.markdown import NONE, quotient, table, times
from benchmarks.masked_tables import Product, Workload
from benchmarks.suite_tables import read, short
from sparsegen.bench.results.results import UNTUNED, Row
from sparsegen.bench.results.summary import geometric
from sparsegen.operators import DType, SparseNetworkProblem

SIZES = (8192, 4096, 2048, 1024)  # rows, columns and contraction of masked products
PRODUCTS = {"dsd": "`dsd`", "sdd": "`sdd`", "transposed": "`dsd_transposed`"}
DEAD = (0, 50, 90, 95)  # percent, of a convolution's blocks
BLOCK = 128
NETWORKS = "spdnn"
DIES, LIVES = "challenge-like", "every input alive"
NETWORK_PEERS = {
    "cublas-layers": "cuBLAS",
    "torch-csr-layers": "PyTorch's CSR",
    "cusparse-layers": "cuSPARSE",
}


def times_as_fast(values: Sequence[float | None]) -> list[str]:
    return [times(value) for value in values]


def masked_products(folder: Path) -> str:
    """Table of speedups over the better of cuBLAS and cuBLASLt, by size, with no block dead and with half of them."""
    found = masked_tables.steps(folder)

    def faster(name: str, size: int, dropped: float) -> float | None:
        one: Product | None = found.get(Workload((size,) * 3, BLOCK, dropped, DType.FLOAT16), {}).get(name)
        return quotient(one.dense, one.ours) if one else None

    lines = [
        [f"{words}, {what}", *times_as_fast([faster(name, size, dropped) for size in SIZES])]
        for dropped, what in ((0.5, "half of the blocks dead"), (0.0, "no block dead"))
        for name, words in PRODUCTS.items()
    ]
    return table(["over cuBLAS", *(f"{size}³" for size in SIZES)], lines)


def convolutions(folder: Path) -> str:
    """Table of speedups over cuDNN in benchmark mode, by the share of dead blocks; random blocks of 16 × 16."""
    rows = convolution_tables.rows_of(folder)

    def mean(dead: int) -> str:
        keys = (Key(c, n, s, dead) for c in CHANNELS for n in IMAGES for s in SIDES)
        ratios = [f for key in keys if (f := convolution_tables.faster(rows.get(key))) is not None]
        return f"{geometric(ratios).value:.2f} × (least {min(ratios):.2f})" if ratios else NONE

    lines = [["18 shapes, geometric mean", *map(mean, DEAD)]]
    for channels in CHANNELS:
        of = [convolution_tables.faster(rows.get(Key(channels, 8, 512, dead))) for dead in DEAD]
        lines.append([f"{channels} channels, 8 images of 512²", *times_as_fast(of)])
    return table(["over cuDNN", *(f"{dead} % dead" for dead in DEAD)], lines)


def networks(folder: Path) -> str:
    """Edges a second of networks of 120 layers, and how much longer others take for them, layer by layer.

    The time is the newest of a case, be it of a comparison or of an exploration. Ratios are of the newest row that has
    a time of ours and of another, which may be slower than the newest: the last column says which it is.
    """
    rows: dict[str, list[Row]] = {}
    for kind in ("bench", "explore"):
        for results in read(folder, kind, suites=[NETWORKS]):
            for row in results.rows:
                if row.suite == NETWORKS and row.measured is not None and row.us(UNTUNED):
                    rows.setdefault(row.case, []).append(row)
    lines = []
    for known in rows.values():
        row = max(known, key=lambda row: row.measured or datetime.min)
        problem, us = row.problem, row.us(UNTUNED)
        assert isinstance(problem, SparseNetworkProblem) and us and row.measured
        name = f"{problem.neurons} neurons, {DIES if 'challenge' in row.case else LIVES}"
        compared = max(
            (one for one in known if any(map(one.us, NETWORK_PEERS))),
            key=lambda one: one.measured or datetime.min,
            default=None,
        )
        others = [
            quotient(compared.us(peer), compared.us(UNTUNED)) if compared else None for peer in NETWORK_PEERS
        ]
        rate = problem.edges(row.nnz) * problem.n / us / 1e6
        cells = (f"{problem.n:,}", f"{us / 1e3:.2f}", f"{rate:.1f}")
        ratios = [NONE if ratio is None else f"{ratio:.0f} ×" for ratio in others]
        lines.append([name, *cells, _when(row), *ratios, _when(compared)])
    head = ["120 layers", "inputs", "ms", "10¹² edges a second"]
    head = [*head, "measured", *(f"over {words}" for words in NETWORK_PEERS.values()), "compared"]
    return table(head, lines)


def _when(row: Row | None) -> str:
    """Date of a row's measurement, and the state of the source that measured it."""
    return NONE if row is None or row.measured is None else f"{row.measured:%Y-%m-%d}; {short(row.state)}"
