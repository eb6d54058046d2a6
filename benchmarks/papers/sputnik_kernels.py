"""Sputnik's kernels: its list of recurrent networks, the crossover of an LSTM, imbalance, and each of its ideas.

    python -m benchmarks.papers.sputnik_kernels

Gale et al., SC 2020: figures 1, 7 and 10 and table II. The paper's own rule (`csr_spmm` and `csr_sddmm` as published)
stands beside our choice, with each idea of the ablation taken away from it (``benchmarks/papers/sputnik.json``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.markdown import NONE, table, times
from benchmarks.papers.bench_study import BenchStudy, best, of_suites, ratio, tera_flops
from benchmarks.papers.reasons import why_dense_wins
from benchmarks.papers.study import Claim, Document, ahead_from, outcome, result, svg
from sparsegen.bench.results.results import TUNED

SPMM, SDDMM = "sputnik-spmm", "sputnik-sddmm"
CUSPARSE, CUSPARSE_SDDMM, DENSE, TF32 = "cusparse-csr", "cusparse-sddmm", "cublas", "cublas-tf32"
IDEAS = {
    "load balancing": "load-balancing",
    "vector instructions": "vector",
    "residue unrolling": "residue-unroll",
    "index pre-scaling": "index-pre-scale",
}


class SputnikKernels(BenchStudy):
    name = "sputnik_kernels"
    title = "Sputnik: kernels"
    paper = (
        "T. Gale, M. Zaharia, C. Young, E. Elsen: Sparse GPU Kernels for Deep Learning, SC 2020, section VII"
    )
    gpu = "V100, CUDA 10.1"
    claims = (
        Claim("SpMM of 72 recurrent problems over cuSPARSE", "3.47 ×, at most 4.45 ×", "Fig. 10"),
        Claim("SDDMM of the same over cuSPARSE", "2.69 ×, at most 3.51 ×", "Fig. 10"),
        Claim("sparsity from which an LSTM is faster than dense", "71 %", "Fig. 1"),
        Claim("throughput kept at the largest imbalance, with row swizzle", "96.5 %", "Fig. 7"),
        Claim("throughput kept without row swizzle", "47.5 %", "Fig. 7"),
        Claim(
            "SpMM without load balancing, vectors, residue unrolling, pre-scaling",
            "78.5–96.1, 64.8–100.1, 87.8–94.1, 98.2–100.6 %",
            "Table II",
        ),
        Claim("share of the fp32 peak, SpMM and SDDMM", "27.3 %, 26.2 %", "Table I"),
    )
    differs = (
        "Weights are drawn with independent nonzeros, as in the paper.",
        "Dense is timed in fp32 and in TF32, which V100 lacks.",
        "MergeSpmm and ASpT are not timed; the ablation is on these problems, the paper's on its matrices of DLMC.",
        "Our kernel has no shared-memory residue loop: its residue is unrolled with predicates.",
    )
    suites = ("recurrent", "recurrent-gradients", "lstm-crossover", "imbalance")
    told = (
        *(
            "lstm-crossover 8192x2048x128 .70",
            "lstm-crossover 8192x2048x128 .90",
            "recurrent 8192x2048x128 .80",
        ),
        *("recurrent-gradients 8192x2048x128 .80", "cov 0.0", "cov 1.0", "lstm-crossover"),
    )
    row_seconds = (
        6.0  # 1 of a search beside five others, 2 to draw and hold up to 268 million places, 13 baselines
    )
    options = (
        *(w for name in (TUNED, CUSPARSE, CUSPARSE_SDDMM, DENSE, TF32) for w in ("--only", name)),
        *("--tune", "quick", "--jobs", "6", "--configs", "benchmarks/papers/sputnik.json"),
        *("--rounds", "4", "--samples", "15"),
    )
    tiny = (
        *("--only", DENSE, "--configs", "csr_spmm@published"),
        *("--rounds", "1", "--samples", "1"),
    )

    tiny_cases = ("1024x1024x32 .90",)

    def table(self, document: Document) -> str:
        spmm, sddmm = of_suites(document, "recurrent"), of_suites(document, "recurrent-gradients")
        lines = [
            [
                name, len(rows), times(ratio(rows, vendor, rule)), times(ratio(rows, vendor)), best(rows, vendor),
                times(ratio(rows, rule)), times(ratio(rows, DENSE)), outcome(ratio(rows, DENSE)),
            ]
            for name, rows, vendor, rule in (
                ("SpMM", spmm, CUSPARSE, SPMM), ("SDDMM", sddmm, CUSPARSE_SDDMM, SDDMM),
            )
        ]  # fmt: skip
        head = [
            "72 recurrent problems, fp32",
            "measured",
            "Sputnik's rule over cuSPARSE",
            "ours over cuSPARSE",
        ]
        found = table([*head, "at most", "ours over Sputnik's rule", "ours over cuBLAS", "beside it"], lines)
        lines = [
            [
                f"without {idea}",
                *(
                    share(ratio(rows, rule, f"{kind}-{word}"))
                    for kind, rows, rule in (("spmm", spmm, SPMM), ("sddmm", sddmm, SDDMM))
                ),
            ]
            for idea, word in IDEAS.items()
        ]
        return f"{found}\n\n{table(['throughput kept', 'SpMM', 'SDDMM'], lines)}"

    def results(self, document: Document) -> Sequence[str]:
        spmm, sddmm = of_suites(document, "recurrent"), of_suites(document, "recurrent-gradients")
        lstm = sorted(of_suites(document, "lstm-crossover"), key=lambda row: row.sparsity)
        uneven = sorted(of_suites(document, "imbalance"), key=lambda row: row.features.row_cov)
        found = [
            result("SpMM over cuSPARSE", ratio(spmm, CUSPARSE)),
            result("SDDMM over cuSPARSE", ratio(sddmm, CUSPARSE_SDDMM)),
        ]
        for name, dense in (("fp32", DENSE), ("TF32", TF32)):
            ratios = {row.sparsity: over for row in lstm if (over := ratio([row], dense)) is not None}
            least = ahead_from(ratios)
            told = "no sparsity that was tried" if least is None else f"{least:.0%}"
            if ratios:
                found.append(
                    f"The LSTM is faster than dense {name} from {told} on ({len(ratios)} of 19 measured)."
                )
        if len(uneven) > 1:
            for told, name in (
                ("Our choice", TUNED),
                ("Sputnik's rule", SPMM),
                ("The rule without swizzle", "spmm-load-balancing"),
            ):
                even, worst = (tera_flops(row, name) for row in (uneven[0], uneven[-1]))
                kept = f"{worst / even:.1%}" if even and worst else NONE
                found.append(f"{told} keeps {kept} of its throughput at the largest imbalance.")
        return found

    def why(self, document: Document, name: str) -> str:
        suite = "recurrent-gradients" if name.startswith("SDDMM") else "recurrent"
        return why_dense_wins(of_suites(document, suite), DENSE)

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        made = Figure(figsize=(9, 3.4), layout="constrained")
        first, second = made.subplots(1, 2)
        lstm = sorted(of_suites(document, "lstm-crossover"), key=lambda row: row.sparsity)
        for name in (TUNED, SPMM, CUSPARSE, DENSE, TF32):
            known = [(100 * row.sparsity, us) for row in lstm if (us := row.us(name))]
            first.plot(*zip(*known, strict=True), marker=".", label=name) if known else None
        first.set(title="LSTM, 8192 × 2048 × 128", xlabel="sparsity, %", ylabel="µs", yscale="log")
        if first.lines:
            first.legend()
        uneven = sorted(of_suites(document, "imbalance"), key=lambda row: row.features.row_cov)
        for name in (TUNED, SPMM, "spmm-load-balancing", CUSPARSE):
            base = tera_flops(uneven[0], name) if uneven else None
            known = [
                (r.features.row_cov, 100 * speed / base)
                for r in uneven
                if base and (speed := tera_flops(r, name))
            ]
            second.plot(*zip(*known, strict=True), marker=".", label=name) if known else None
        second.set(
            title="8192 × 2048 × 128 at 75 %", xlabel="CoV of row lengths", ylabel="throughput kept, %"
        )
        if second.lines:
            second.legend()
        return svg(made, path)


def share(value: float | None) -> str:
    """Time with all ideas over time without one, as a percentage of throughput kept."""
    return NONE if value is None else f"{value:.1%}"


STUDY = SputnikKernels()
main = STUDY.command()

if __name__ == "__main__":
    main()
