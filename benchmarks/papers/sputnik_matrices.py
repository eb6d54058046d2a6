"""The matrices of the Deep Learning Matrix Collection: SpMM and SDDMM at inference and training batches.

    python -m benchmarks.papers.sputnik_matrices --data DATA

Gale et al., SC 2020, section VII-A1, figure 9 and table I: our choice without any tuning and the paper's own rule
(`csr_spmm` and `csr_sddmm` as published) beside cuSPARSE and cuBLAS. Without data the suites ``dlmc-like`` and
``sddmm`` stand in.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.markdown import figure, table, times
from benchmarks.papers.bench_study import RATES, BenchStudy, best, of_suites, ratio, tera_flops
from benchmarks.papers.reasons import why_dense_wins
from benchmarks.papers.study import Claim, Document, outcome, result
from sparsegen.bench.results.results import UNTUNED, Row
from sparsegen.operators import DType, SddmmProblem

CUSPARSE, CUSPARSE_SDDMM, DENSE = "cusparse-csr", "cusparse-sddmm", "cublas"
SPMM, SDDMM = "csr_spmm", "csr_sddmm"
SMALL = "l0_regularization/0.5/body_decoder_layer_0_self_attention_multihead_attention_q"
PARTS = {
    "SpMM, inference": (("dlmc", "dlmc-like"), DType.FLOAT32),
    "SpMM, training": (("dlmc-training",), DType.FLOAT32),
    "SpMM, inference, fp16": (("dlmc", "dlmc-like"), DType.FLOAT16),
    "SDDMM": (("dlmc-gradients", "sddmm"), DType.FLOAT32),
}

SHARES = {"SpMM, inference": 0.273, "SDDMM": 0.262}  # of the fp32 peak, table I


class SputnikMatrices(BenchStudy):
    name = "sputnik_matrices"
    title = "Sputnik: matrices of networks"
    paper = "T. Gale, M. Zaharia, C. Young, E. Elsen: Sparse GPU Kernels for Deep Learning, SC 2020, section VII-A1"
    gpu = "V100, CUDA 10.1"
    claims = (
        Claim("SpMM of 3,012 matrices over cuSPARSE, mean; won", "3.58 ×; 99.75 %", "Fig. 9, Table I"),
        Claim("the same in mixed precision", "5.97 ×; 99.7 %", "Fig. 9, Table I"),
        Claim("SDDMM over cuSPARSE, mean; won", "2.19 ×; 93.34 %", "Fig. 9, Table I"),
        Claim("highest TFLOP/s: SpMM, mixed, SDDMM", "4.29, 5.57, 4.11", "Table I"),
        Claim("the same as shares of the fp32 peak: SpMM, SDDMM", "27.3 %, 26.2 %", "Table I"),
    )
    differs = (
        "98 of the collection's 3,012 matrices, chosen over models, ways of pruning and sparsities.",
        "Training batches of ResNet-50 have 32 images, the paper's 256.",
        "Ours is what dispatch takes untuned; cuSPARSE's fastest algorithm and layout stand beside it.",
        "An H200 multiplies 128 floats a cycle and multiprocessor and reads 32 from L1 or shared memory, a V100 64 and "
        "32. A kernel that reads an operand for each product, as Sputnik's and our strips and panels do, is bound at "
        "25 % of the H200's peak (33 % of what a dense product reaches there) and 50 % of the V100's. From about 15 % "
        "nonzeros on ours multiplies the zeros too, on tensor cores, each float as two TF32 numbers: three products, "
        "errors as of float32 (docs/notes/tensor-cores.md).",
    )
    suites = ("dlmc", "dlmc-training", "dlmc-gradients")
    folder = "dlmc"
    stand_ins = ("dlmc-like", "sddmm")
    told = (
        "dlmc rn50/magnitude_pruning/0.9/",
        "dlmc transformer/magnitude_pruning/0.9/",
        "dlmc-gradients transformer/magnitude_pruning/0.5/",
        "dlmc-training transformer/magnitude_pruning/0.5/",
        "/magnitude_pruning/0.9/",
        "/0.9/",
    )
    row_seconds = (
        1.5  # 0.5 on an H100 with more baselines (`bench_dlmc_float32.json.xz`), and two rules compiled
    )
    options = (
        *(w for name in (UNTUNED, CUSPARSE, CUSPARSE_SDDMM, DENSE) for w in ("--only", name)),
        *("--configs", f"{SPMM}@published", "--configs", f"{SDDMM}@published"),
        *("--rounds", "3", "--samples", "10"),
    )
    tiny = (
        *("--only", DENSE, "--configs", f"{SPMM}@published"),
        *("--rounds", "1", "--samples", "1"),
    )

    tiny_cases = ("512x128x784", f"{SMALL} n=64", f"{SMALL} k=256")

    def table(self, document: Document) -> str:
        lines = []
        for told, rows, vendor, rule in parts(document):
            ours = [over for row in rows if (over := ratio([row], vendor, UNTUNED))]
            highest = highest_of(rows)
            lines.append(
                [
                    told, len(rows), times(ratio(rows, vendor, rule)), times(ratio(rows, vendor, UNTUNED)),
                    best(rows, vendor, UNTUNED), f"{sum(over > 1 for over in ours)} of {len(ours)}",
                    times(ratio(rows, DENSE, UNTUNED)), outcome(ratio(rows, DENSE, UNTUNED)), figure(highest),
                ]
            )  # fmt: skip
        head = [
            "over cuSPARSE",
            "problems",
            "Sputnik's rule",
            "ours",
            "at most",
            "won",
            "ours over cuBLAS",
            "beside it",
        ]
        return table([*head, "highest TFLOP/s"], lines)

    def results(self, document: Document) -> Sequence[str]:
        found = []
        for told, rows, vendor, rule in parts(document):
            if rows:
                found.append(result(f"{told} over cuSPARSE", ratio(rows, vendor, UNTUNED)))
                found.append(result(f"{told} over Sputnik's rule", ratio(rows, rule, UNTUNED)))
        rates = document[RATES]
        rate = None if rates is None else rates.flop_per_s_of(DType.FLOAT32)
        for told, rows, *_ in parts(document):
            highest = highest_of(rows)
            if told in SHARES and highest and rate:
                share = 1e12 * highest / rate
                found.append(result(f"{told}, {share:.1%} of a dense product's rate", share / SHARES[told]))
        return found

    def why(self, document: Document, name: str) -> str:
        told, _, share = name.partition(", ")
        rows = {part: some for part, some, *_ in parts(document)}
        if name in rows:
            return why_dense_wins(rows[name], DENSE, UNTUNED)
        if not share.endswith("dense product's rate"):
            return (
                "cuSPARSE's fastest of all algorithms and layouts stands beside one choice without a search"
            )
        read = 4 / 2 * (highest_of(rows[told]) or 0.0)  # TB/s of float32: an element for two operations
        return (
            "each nonzero reads its elements of B through the L1 caches, whose 33 TB/s allow 16.5 TFLOP/s "
            f"(docs/notes/gather-kernels.md); the highest rate takes {read:.1f} TB/s"
        )


def highest_of(rows: Sequence[Row]) -> float | None:
    """The most useful TFLOP/s of ours."""
    return max((t for row in rows if (t := tera_flops(row, UNTUNED))), default=None)


def parts(document: Document) -> list[tuple[str, list[Row], str, str]]:
    """The parts of figure 9: rows, cuSPARSE's name, and that of the paper's rule."""
    found = []
    for told, (suites, dtype) in PARTS.items():
        rows = [row for row in of_suites(document, *suites) if row.dtype is dtype]
        is_gradient = bool(rows) and isinstance(rows[0].problem, SddmmProblem)
        vendor, rule = (CUSPARSE_SDDMM, SDDMM) if is_gradient else (CUSPARSE, SPMM)
        found.append((told, rows, vendor, rule))
    return found


STUDY = SputnikMatrices()
main = STUDY.command()

if __name__ == "__main__":
    main()
