"""Tables of where ours wins and where it loses, each row against the fastest way that anyone else has.

`drawn` is the README's table: problems drawn at random, with a line for each operator. `lists` has lines of the suites.
Ours is the tuned winner; where nothing was tuned, what dispatch runs. The alternative is the fastest of all others in
the row's own type, dense or sparse: those timed beside ours, and in lists those that another program timed on the same
kind of GPU (`benchmarks.anchors`). Lines stand by the geometric mean, the largest gain first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import drawn_tables
from benchmarks.anchors import Peers
from benchmarks.convolution_tables import CHANNELS, IMAGES, SIDES, Key
from benchmarks.drawn_tables import Times
from benchmarks.markdown import NONE, TYPES, table, times
from benchmarks.suite_tables import ANCHORED, days, read, sparse_times, whole
from sparsegen.bench.results.results import Kind, Results, Row
from sparsegen.bench.results.summary import geometric
from sparsegen.measure.rates import Arithmetic
from sparsegen.operators import Block, DType, FactorType, MaskedProblem

CAUSAL = "torch-sdpa-causal"  # dense attention under a causal mask: a window's place can be taken by it
NAMES: Mapping[str, str] = {
    **ANCHORED,
    CAUSAL: "dense causal attention",
    "cublas": "cuBLAS",
    "cublas-layers": "cuBLAS by layers",
    "cublas-tf32": "cuBLAS",
    "cublaslt": "cuBLASLt",
    "cublaslt-mma": "cuBLASLt",
    "cusparse-blocked-ell": "cuSPARSE",
    "cusparse-bsr": "cuSPARSE",
    "cusparse-coo": "cuSPARSE",
    "cusparse-csr": "cuSPARSE",
    "cusparse-layers": "cuSPARSE by layers",
    "cusparse-sddmm": "cuSPARSE",
    "kernel-gather-conv": "cuDNN on gathered blocks",
    "csr-network": "a plain kernel by layers",
    "torch-bsr": "Triton's BSR in PyTorch",
    "torch-conv2d": "cuDNN",
    "torch-conv2d-weights": "cuDNN",
    "torch-csr-layers": "PyTorch by layers",
    "torch-flex": "FlexAttention",
    "torch-flex-blocks": "FlexAttention",
    "torch-gather": "PyTorch, gathering",
    "torch-gather-conv": "cuDNN on blocks that PyTorch gathers",
    "torch-im2col": "im2col",
    "torch-linear": "PyTorch's linear layer",
    "torch-masked-bsr": "Triton's BSR in PyTorch",
    "torch-scaled-mm": "PyTorch in 8 bits",
    "torch-sdpa-pages": "PyTorch's attention on copied pages",
    "torch-sampled-addmm": "PyTorch's sampled product",
    "torch-softmax": "PyTorch's softmax",
    "triton-blocks": "Triton",
}


@dataclass(frozen=True)
class Job:
    """A line of the table: rows of one kind of work in one type.

    Attributes:
        also: a second arithmetic in which a dense product counts, for float32 TF32.
    """

    words: str
    suites: tuple[str, ...]
    dtype: DType
    is_of: Callable[[Row], bool] = lambda row: True
    also: Arithmetic | None = None

    def holds(self, row: Row) -> bool:
        return row.suite in self.suites and row.dtype is self.dtype and self.is_of(row)


def _blocks(*percents: int) -> Callable[[Row], bool]:
    """Products whose blocks of 32 or 128 are zero in such a share."""
    ends = tuple(f".{percent} b{size}" for percent in percents for size in (32, 128))
    return lambda row: row.case.endswith(ends)


def _dropped(share: float) -> Callable[[Row], bool]:
    """Selects products with a mask of blocks of 128 × 128, a share of them dead; cubes from 1024³ to 8192³."""

    def is_of(row: Row) -> bool:
        problem = row.problem
        return (
            isinstance(problem, MaskedProblem)
            and problem.block == Block(128, 128)
            and problem.density.share == 1 - share
            and problem.factor_type is FactorType.SAME
            and row.case.split()[0] in {f"{size}x{size}x{size}" for size in (1024, 2048, 4096, 8192)}
        )

    return is_of


def _dead(percent: int) -> Callable[[Row], bool]:
    """3 × 3 convolutions of random blocks of 16 × 16."""
    keys = {Key(c, n, s, percent) for c in CHANNELS for n in IMAGES for s in SIDES}
    return lambda row: Key.of(row) in keys


HEAD = ("our speed over the fastest alternative", "mean", "least to most", "rows won", "the fastest is")
HALF, SINGLE = DType.FLOAT16, DType.FLOAT32
JOBS = (
    Job("pruned LLaMA weights, 8 to 32 tokens", ("llm",), HALF),
    Job("pruned LLaMA weights, 1 token", ("spmv",), HALF),
    Job("pruned layers (DLMC)", ("dlmc",), SINGLE),
    Job("pruned layers (DLMC), dense in TF32 counts too", ("dlmc",), SINGLE, also=Arithmetic.TF32),
    Job("pruned layers (DLMC)", ("dlmc",), HALF),
    Job("rows of equal length", ("uniform", "uniform-shapes", "uniform-sparsity", "uniform-batch"), HALF),
    Job("LSTM weights", ("rnn",), HALF),
    Job("dense blocks of 32 and 128, 80 and 90 % zeros", ("block",), HALF, _blocks(80, 90)),
    Job("dense blocks of 32 and 128, 20 and 50 % zeros", ("block",), HALF, _blocks(20, 50)),
    Job("sampled products", ("sddmm",), SINGLE),
    Job("sampled products", ("sddmm",), HALF),
    Job("graphs", ("gnn",), SINGLE),
    Job("attention windows", ("attention",), HALF, lambda row: "sliding" in row.case),
    Job("attention bands, no tile empty", ("attention",), HALF, lambda row: "band" in row.case),
    Job("block masks for every call, half dead", ("sparsedrop",), HALF, _dropped(0.5)),
    Job("block masks for every call, none dead", ("sparsedrop",), HALF, _dropped(0.0)),
    Job("masked images, 90 % dead", ("convolution",), HALF, _dead(90)),
    Job("masked images, 50 % dead", ("convolution",), HALF, _dead(50)),
    Job("masked images, none dead", ("convolution",), HALF, _dead(0)),
    Job("sparse networks, 120 layers", ("spdnn",), HALF),
)


DRAWN: Mapping[str, str] = {
    "block_attention": "attention with masks of blocks, `block_attention`",
    "dsd": "products with dead blocks of the input, `dsd`",
    "dsd_transposed": "products with dead blocks, turned, as in gradients, `dsd_transposed`",
    "masked_conv2d": "convolutions of masked images, `masked_conv2d`",
    "masked_conv2d_weights": "gradients of masked images by the filters",
    "paged_attention": "attention on listed pages, `paged_attention`",
    "sdd": "products of which some blocks are asked for, `sdd`",
    "sddmm": "products at the places of a pattern, `sddmm`",
    "sparse_attention": "attention with fixed masks, `SparseAttention`",
    "sparse_network": "sparse networks, `SparseNetwork`",
    "sparse_softmax": "softmax over the places of a pattern",
    "spmm": "pruned weights and graphs times columns, `spmm`",
    "submanifold_conv3d": "convolutions at points, `SubmanifoldConv3d`",
    "submanifold_conv3d_weights": "gradients at points by the filters",
}


def drawn(folders: Iterable[Path]) -> str:
    """Table of drawn rows, all types of an operator together, and where its figures come from."""
    devices = [files for folder in folders if (files := read(folder, drawn_tables.KIND))]
    rows: dict[str, list[Row]] = {}
    for row in (row for files in devices for results in files for row in results.rows):
        rows.setdefault(row.operator, []).append(row)
    lines = []
    for operator, own in rows.items():
        tuned = Gains.of(own, lambda times: times.ours, {}, drawn_tables.also_counts)
        called = Gains.of(own, lambda times: times.graph, {}, drawn_tables.also_counts)
        if tuned is not None:
            *ratios, fastest = tuned.cells()
            untuned = NONE if called is None else times(called.mean)
            lines.append((tuned.mean, [DRAWN.get(operator, f"`{operator}`"), *ratios, untuned, fastest]))
    lines.sort(key=lambda line: -line[0])
    head = [*HEAD[:-1], "nothing tuned, in a graph", HEAD[-1]]
    measured = "".join(drawn_tables.origin(files) for files in devices)
    return table(head, [cells for _, cells in lines]) + measured


def lists(folder: Path, peers: Peers) -> str:
    """Table of the suites, and where its figures come from."""
    listed = whole(folder)
    lines = []
    for job in JOBS:
        own = [row for row in listed.rows if job.holds(row)]
        gains = Gains.of(own, lambda times: times.ours, peers, lambda row, job=job: job.also)
        if gains is not None:
            lines.append((gains.mean, [f"{job.words}, {TYPES[job.dtype]}", *gains.cells()]))
    lines.sort(key=lambda line: -line[0])
    return table(HEAD, [cells for _, cells in lines]) + _origin(folder, listed)


@dataclass(frozen=True)
class Gains:
    """Speeds of ours over the fastest alternative, and how often each of those is the fastest."""

    ratios: Sequence[float]
    fastest: Counter[str]

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        ours: Callable[[Times], float | None],
        peers: Peers,
        also: Callable[[Row], Arithmetic | None],
    ) -> Gains | None:
        """Gains of the rows that have both times; None if none has."""
        ratios, who = [], Counter[str]()
        for row in rows:
            us, others = ours(Times.of(row)), alternatives(row, peers, also(row))
            if us and others:
                name = min(others, key=others.__getitem__)
                ratios.append(others[name] / us)
                who[NAMES.get(name, name)] += 1
        return cls(ratios, who) if ratios else None

    @property
    def mean(self) -> float:
        return geometric(self.ratios).value

    def cells(self) -> list[str]:
        """Cells below `HEAD`, but for the first."""
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"
        won = f"{sum(ratio > 1 for ratio in self.ratios)} of {len(self.ratios)}"
        fastest = ", ".join(f"{who} {count}" for who, count in self.fastest.most_common())
        return [times(self.mean), spread, won, fastest]


def alternatives(row: Row, peers: Peers, also: Arithmetic | None = None) -> dict[str, float]:
    """Microseconds of all others that compute a row in its own type, or of dense ones in ``also``."""
    found = sparse_times(row, peers)
    for cell in row.cells:
        is_dense = cell.kind is Kind.DENSE or cell.baseline == CAUSAL
        if cell.timing and is_dense and cell.arithmetic.value in (row.dtype.value, also):
            found[cell.baseline] = cell.timing.us
    return found


def _origin(folder: Path, listed: Results) -> str:
    """Device, state of the L2, dates, and where each row stands with the commit that measured it."""
    suites = {suite for job in JOBS for suite in job.suites}
    files = [results for results in read(folder) if any(row.suite in suites for row in results.rows)]
    dates = sorted({date for results in files for date in days(results).split(" to ")})
    when = " to ".join(dates[:: max(1, len(dates) - 1)])
    return (
        f"\n\n{listed.device.name}, driver {listed.device.driver}, {when}, L2 {listed.protocol.l2}; made by "
        f"`python -m benchmarks.make_tables` from the raw results in `{folder.name}`, which name the commit that "
        "measured each row."
    )
