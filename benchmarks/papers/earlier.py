"""Ratios that other benchmarks measured of the papers' claims before the studies did, from their raw files.

Each line is a ratio above 1 where ours is better. It answers a claim less well than the study that is named with it:
fewer problems, other images, single layers in the place of a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.markdown import table, times
from benchmarks.papers.bench_study import ratio
from benchmarks.papers.sparse_dnn import A100
from benchmarks.papers.study import BEHIND, outcome
from benchmarks.study import geometric_mean, rows_of
from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import TUNED, UNTUNED, Row
from sparsegen.networks.model.radixnet import FAN_IN
from sparsegen.operators import DType

H100, H200 = "nvidia-h100-80gb-hbm3-sm90", "nvidia-h200-sm90"
CUSPARSE, CUSPARSE_SDDMM, BY_LAYERS = "cusparse-csr", "cusparse-sddmm", "cusparse-layers"


@dataclass(frozen=True)
class Earlier:
    """A claim beside a ratio of another benchmark's raw file.

    Attributes:
        what: what is compared with what.
        paper: the paper's figure, and where.
        raw: the raw file below the folder of results, without its suffix.
        over: the ratio of it, above 1 where ours is better.
        study: the study that measures the claim as the paper does.
        why: the cause, for a ratio that is behind.
    """

    what: str
    paper: str
    raw: str
    over: Callable[[Path], float]
    study: str
    why: str = "why was not looked into yet"


def of_bench(
    suite: str, other: str, ours: str = TUNED, dtype: DType | None = None, case: str = ""
) -> Callable[[Path], float]:
    """The geometric mean over a suite's rows, or over those whose case contains a text."""

    def over(path: Path) -> float:
        rows: list[Row] = [
            row
            for row in result_file.read(path).rows
            if row.suite == suite and case in row.case and (dtype is None or row.dtype is dtype)
        ]
        found = ratio(rows, other, ours)
        assert found is not None, f"{path.name} has no {other} in {suite}"
        return found

    return over


def over_a100(neurons: int) -> Callable[[Path], float]:
    """Tera-edges a second on the device of a network of 120 layers, over the paper's A100."""

    def over(path: Path) -> float:
        (row,) = (
            row
            for row in result_file.read(path).rows
            if row.m == 120 * neurons and "challenge" in row.case and "short" not in row.case
        )
        us = row.us(UNTUNED)
        assert us is not None, f"{path.name} has no time of {row.case}"
        return FAN_IN * row.m * row.n / us / 1e6 / A100[neurons, 120]

    return over


def of_rows(above: str, below: str, **where: object) -> Callable[[Path], float]:
    """The quotient of two fields, a geometric mean of the rows that have these values in other fields."""

    def over(path: Path) -> float:
        rows = [row for row in rows_of(path) if all(row.get(key) == value for key, value in where.items())]
        return geometric_mean(row[above] / row[below] for row in rows)

    return over


def falls(path: Path) -> float:
    """Time of the kernel at half of the blocks dead over nine tenths, of the ratio of what is live."""
    ms = {row["sparsity"]: row["kernel_on_device_ms"] for row in rows_of(path)}
    return float(ms[0.5] / ms[0.9] / 5)


UNIFORM = (
    Earlier(
        "128² to 1024² at 60 %, over cuSPARSE CSR",
        "up to 13.73 ×, Fig. 5",
        f"{H100}/bench_uniform",
        of_bench("uniform-shapes", CUSPARSE),
        "uniform_kernels",
    ),
    Earlier(
        "1024³ at 95 %, over cuSPARSE CSR",
        "3.29 ×, Fig. 6",
        f"{H100}/bench_uniform",
        of_bench("uniform-sparsity", CUSPARSE, case="1024x1024x1024 .95"),
        "uniform_kernels",
    ),
    Earlier(
        "1024² at 60 %, n = 128 to 16384, over cuSPARSE CSR",
        "up to 1.62 ×, Fig. 7",
        f"{H100}/bench_uniform",
        of_bench("uniform-batch", CUSPARSE),
        "uniform_kernels",
    ),
    Earlier(
        "the same over dense cuBLAS",
        "none",
        f"{H100}/bench_uniform",
        of_bench("uniform-batch", "cublas"),
        "uniform_kernels",
        "tiles that tensor cores multiply are hardly ever empty at 60 %, and short products are launch-bound",
    ),
)
SPUTNIK = (
    Earlier(
        "98 matrices of the collection, fp32, over cuSPARSE",
        "3.58 ×, Table I",
        f"{H100}/bench_dlmc_float32",
        of_bench("dlmc", CUSPARSE),
        "sputnik_matrices",
    ),
    Earlier(
        "the same in fp16",
        "5.97 ×, Table I",
        f"{H100}/bench_dlmc_float16",
        of_bench("dlmc", CUSPARSE),
        "sputnik_matrices",
    ),
    Earlier(
        "sampled products, fp32, over cuSPARSE",
        "2.19 ×, Table I",
        f"{H100}/bench_sddmm",
        of_bench("sddmm", CUSPARSE_SDDMM, dtype=DType.FLOAT32),
        "sputnik_matrices",
    ),
    Earlier(
        "LSTM weights, fp32, over cuSPARSE",
        "3.47 ×, Fig. 10",
        f"{H100}/bench_weights",
        of_bench("rnn", CUSPARSE, dtype=DType.FLOAT32),
        "sputnik_kernels",
    ),
    Earlier(
        "LSTM weights, fp32, over dense cuBLAS in TF32",
        "none: V100 has no TF32",
        f"{H100}/bench_weights",
        of_bench("rnn", "cublas-tf32", dtype=DType.FLOAT32),
        "sputnik_kernels",
    ),
    Earlier(
        "1 × 1 convolutions of MobileNetV1, over dense ones of the same width",
        "none: networks of other widths",
        f"{H100}/bench_mobilenet",
        of_bench("mobilenet", "torch-linear"),
        "mobilenet",
    ),
)
CHALLENGE = (
    *(
        Earlier(
            f"{neurons} × 120, challenge-like, on the device, over the paper's A100",
            f"{A100[neurons, 120]} TE/s, Table I",
            f"{H100}/bench_spdnn",
            over_a100(neurons),
            "sparse_dnn",
        )
        for neurons in (1024, 4096, 16384, 65536)
    ),
    Earlier(
        "16384 × 120, challenge-like, over cuSPARSE layer by layer",
        "125 to 210 ×, section IV-D",
        f"{H100}/bench_spdnn",
        of_bench("spdnn", BY_LAYERS, UNTUNED),
        "sparse_dnn_kernels",
    ),
)
SPARSEDROP = (
    *(
        Earlier(
            f"{size}³, {100 * p:.0f} % dropped, over dropout and dense",
            "faster from 5 % on, Fig. 3a",
            f"{H100}/structured_dropout",
            of_rows("dropout_dense_us", "masked_us", layer=f"{size} x {size} x {size}", p=p),
            "sparsedrop_layer",
        )
        for size in (1024, 4096)
        for p in (0.05, 0.5)
    ),
    Earlier(
        "1024³, 50 % dropped, masks by a seed of its own, over dropout and dense",
        "faster from 5 % on, Fig. 3a",
        f"{H100}/structured_dropout",
        of_rows("dropout_dense_us", "masked_own_seed_us", layer="1024 x 1024 x 1024", p=0.5),
        "sparsedrop_layer",
    ),
)
CONVOLUTION = (
    Earlier(
        "from host to host at 90 % dead, over copies and cuDNN",
        "no numbers, Fig. 5",
        f"{H200}/host_convolution",
        of_rows("cudnn_copied_ms", "in_place_ms", sparsity=0.9),
        "block_convolution",
    ),
    Earlier(
        "fall of the kernel's time from 50 to 90 % dead, over the fall of what is live",
        "flat, Fig. 5",
        f"{H200}/host_convolution",
        falls,
        "block_convolution",
        "some 60 instructions for each element, dead or live, bound that kernel; the study below has the one of today",
    ),
)


def earlier_table(lines: tuple[Earlier, ...], results: Path) -> str:
    """The lines with what they come to, and the command that measures each claim."""
    cells, causes = [], []
    for one in lines:
        path = results / f"{one.raw}.json.xz"
        over = one.over(path) if path.is_file() else None
        cells.append([one.what, one.paper, times(over), outcome(over), f"`{one.raw}`", f"`{one.study}`"])
        if outcome(over) == BEHIND:
            causes.append(f"\n- Behind, {one.what}: {one.why}.")
    head = ["measured before, by other benchmarks", "the paper", "ours", "result", "raw file", "its study"]
    return table(head, cells) + "".join(["\n", *causes] if causes else [])
