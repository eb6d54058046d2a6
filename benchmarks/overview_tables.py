"""The README's tables of single cases: masks that change with every call, networks, where sparse products win.

All figures are of suites that `sparsegen bench` measured; `benchmarks.make_tables` places the tables. Ratios are of
times of one row, which one session measured: clocks depend on power, and differ between rows and days.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from benchmarks import convolution_tables, masked_tables
from benchmarks.convolution_tables import CHANNELS, IMAGES, SIDES, Key
from benchmarks.markdown import NONE, quotient, table
from benchmarks.masked_tables import Product, Workload
from benchmarks.suite_tables import read, short
from sparsegen.bench.results.results import TUNED, UNTUNED, Kind, Row
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


def _is_block(row: Row, *, block: int, percent: int) -> bool:
    return row.case.endswith(f".{percent} b{block}")


def times_as_fast(values: Sequence[float | None]) -> list[str]:
    return [NONE if value is None else f"{value:.2f} ×" for value in values]


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


CAUSAL, CAUSAL_WORDS = (
    "torch-sdpa-causal",
    "dense causal attention",
)  # what a user would take in a window's place
Which = Callable[[Row], bool]
CASES: Mapping[
    str, tuple[str, Which]
] = {  # what is compared with dense products: suite and which of its rows
    "decoding, pruned LLaMA weights": ("llm", lambda row: True),
    "decoding, one token": ("spmv", lambda row: True),
    **{
        f"blocks of {block}, {percent} % zeros": ("block", partial(_is_block, block=block, percent=percent))
        for block in (128, 32)
        for percent in (20, 50, 80, 90)
    },
    "LSTM weights, 8192 × 2048": ("rnn", lambda row: row.case.startswith("8192x2048")),
    f"attention, sliding windows, over {CAUSAL_WORDS}": ("attention", lambda row: "sliding" in row.case),
    f"attention, bands that leave no tile empty, over {CAUSAL_WORDS}": (
        "attention",
        lambda row: "band" in row.case,
    ),
}


def cases(folder: Path) -> str:
    """Table of speedups over the fastest dense product for some cases in float16: the slowest and the fastest row."""
    lines = []
    for words, (suite, is_of) in CASES.items():
        rows = [
            row
            for results in read(folder, suites=[suite])
            for row in results.rows
            if row.suite == suite and row.dtype is DType.FLOAT16 and is_of(row)
        ]
        ratios = [ratio for row in rows if (ratio := quotient(_dense_us(row), _our_us(row))) is not None]
        if ratios:
            faster = f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}"
            lines.append([words, *times_as_fast([min(ratios), max(ratios)]), faster])
    return table(["float16, over the fastest dense product", "least", "most", "rows faster"], lines)


def _dense_us(row: Row) -> float | None:
    """The fastest dense product of a row; of attention the dense one under a causal mask."""
    if us := row.us(CAUSAL):
        return us
    times = [us for one in row.cells if one.kind is Kind.DENSE and (us := row.us(one.baseline))]
    return min(times, default=None)


def _our_us(row: Row) -> float | None:
    """The tuned winner of a row; where nothing was tuned, plain dispatch."""
    return row.us(TUNED) or row.us(UNTUNED)
