"""Times of uniform sparsity's kernels: all of figures 5 to 8 and table 1 of Muralidharan, MLSys 2023.

python -m benchmarks.papers.uniform_kernels
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markdown import table, times
from benchmarks.papers.bench_study import BenchStudy, best, of_suites, ratio
from benchmarks.papers.reasons import why_dense_wins
from benchmarks.papers.study import Claim, Document, outcome, result, svg
from sparsegen.bench.results.results import TUNED, Row

CUSPARSE, COO, PAPERS, VEC = "cusparse-csr", "cusparse-coo", "uspmm", "uspmm_vec"
FIGURES = {
    "5: 128² to 1024² at 60 %": lambda r: r.m == r.k and r.n in (128, 1024) and abs(r.sparsity - 0.6) < 0.01,
    "6: 128³, 5 to 95 %": lambda r: r.m == r.n == 128,
    "6: 1024³, 5 to 95 %": lambda r: r.m == r.n == 1024,
    "7: 1024² at 60 %, n = 128 to 16384": lambda r: r.m == 1024 and abs(r.sparsity - 0.6) < 0.01,
}
NETWORKS = {  # table 1: USpMM and USpMM-Vec over cuSPARSE CSR, geometric means over a network's layers
    "Transformer-Big": ("at 65 %, n = 1024", 1.49, 1.62),
    "ResNet-50": ("at 81 %, n = 128", 1.31, 1.01),
}


class UniformKernels(BenchStudy):
    name = "uniform_kernels"
    title = "Uniform sparsity: kernels"
    paper = "S. Muralidharan: Uniform Sparsity in Deep Neural Networks, MLSys 2023, section 4.3"
    gpu = "A100, cuSPARSE of CUDA 11"
    claims = (
        Claim("over cuSPARSE CSR, 60 % sparse, 128² to 1024²", "up to 13.73 ×", "Fig. 5"),
        Claim("over cuSPARSE CSR, 1024³ at 95 %", "3.29 ×", "Fig. 6"),
        Claim("over cuSPARSE CSR, 128³ at 60 %", "2.74 ×", "Fig. 6"),
        Claim("over cuSPARSE CSR, n up to 16384", "up to 1.62 ×", "Fig. 7"),
        Claim("never slower than cuSPARSE CSR", "all points", "section 4.3"),
        Claim(
            "over cuSPARSE CSR, layers of Transformer-Big at 65 %, USpMM and Vec", "1.49, 1.62 ×", "Table 1"
        ),
        Claim("over cuSPARSE CSR, layers of ResNet-50 at 81 %, USpMM and Vec", "1.31, 1.01 ×", "Table 1"),
    )
    differs = (
        "cuSPARSE 12 is faster than the paper's of 2022, so that the same kernel gains less over it.",
        "Our fastest variants run on tensor cores; the paper's kernels do not.",
        "`Uspmm.published()` once exchanged the paper's (N_warp, V_size) = (2, 8) and (1, 8), and ran (8, 2) and "
        "(8, 1): what was said to be over the paper's kernel was over a setting 1.27 times as slow, by the mean of ten "
        "shapes. All rows here are of the paper's own, to which a test holds it.",
        "Layers of table 1's networks have random uniform patterns, all of the network's mean sparsity.",
    )
    suites = ("uniform-figures", "uniform-networks")
    told = (
        *("uniform-figures 1024x1024x1024 .60", "uniform-figures 1024x1024x1024 .95", "128x128x128 .60"),
        *("Transformer-Big", "1024x1024x16384", "1024x1024x1024 .80", "128x128x128 .95"),
    )
    row_seconds = (
        5.0  # 1 of a search beside five others, 18 kernels compiled on 16 cores, 24 configs that are timed
    )
    options = (
        *(w for name in (TUNED, CUSPARSE, COO, "cublas") for w in ("--only", name)),
        *("--tune", "quick", "--jobs", "6"),
        *("--configs", "uspmm@published", "--configs", "uspmm_vec@published"),
        *("--configs", "uspmm:vsize=1,2,4,8;nwarp=1,2,4,8", "--rounds", "4", "--samples", "15"),
    )
    tiny = (
        "--only",
        CUSPARSE,
        "--configs",
        "uspmm@published",
        "--rounds",
        "1",
        "--samples",
        "1",
    )

    tiny_cases = ("128x128x128 .95",)

    def table(self, document: Document) -> str:
        lines = []
        for name, some in parts(document).items():
            lines.append(
                [
                    name, len(some),
                    *(times(ratio(some, CUSPARSE, ours)) for ours in (PAPERS, VEC, TUNED)),
                    best(some, CUSPARSE, VEC), best(some, CUSPARSE), times(ratio(some, COO)),
                    times(ratio(some, "cublas")), outcome(ratio(some, "cublas")),
                ]
            )  # fmt: skip
        head = ["over cuSPARSE CSR", "points", "USpMM", "USpMM-Vec", "ours", "Vec at most", "ours at most"]
        return table([*head, "ours over cuSPARSE COO", "ours over cuBLAS", "beside it"], lines)

    def results(self, document: Document) -> Sequence[str]:
        rows = of_suites(document, "uniform-figures")
        both = [(vec, other) for row in rows if (vec := row.us(VEC)) and (other := row.us(CUSPARSE))]
        slower = sum(vec > other for vec, other in both)
        return [
            result("The paper's kernel, USpMM-Vec, over cuSPARSE CSR", ratio(rows, CUSPARSE, VEC)),
            result("The paper's base kernel, USpMM, over cuSPARSE CSR", ratio(rows, CUSPARSE, PAPERS)),
            result("Our choice over cuSPARSE CSR", ratio(rows, CUSPARSE)),
            f"USpMM-Vec is slower than cuSPARSE at {slower} of {len(both)} points.",
        ]

    def why(self, document: Document, name: str) -> str:
        if name in (lines := parts(document)):
            return why_dense_wins(lines[name], "cublas")
        return "cuSPARSE 12 is faster than the paper's of 2022, and this kernel is as published"

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        rows = of_suites(document, "uniform-figures")
        made = Figure(figsize=(11, 3.4), layout="constrained")
        first, second, third = made.subplots(1, 3)
        for axes, size in ((first, 128), (second, 1024)):
            some = sorted((r for r in rows if r.m == r.n == r.k == size), key=lambda r: r.sparsity)
            for name, label in (
                (COO, "cuSPARSE COO"),
                (PAPERS, "USpMM"),
                (VEC, "USpMM-Vec"),
                (TUNED, "ours"),
            ):
                known = [(100 * r.sparsity, over) for r in some if (over := ratio([r], CUSPARSE, name))]
                axes.plot(*zip(*known, strict=True), marker=".", label=label) if known else None
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set(
                title=f"{size}³", xlabel="sparsity, %", ylabel="times faster than cuSPARSE CSR", yscale="log"
            )
        if first.get_legend_handles_labels()[0]:
            first.legend()
        some = [r for r in rows if r.m == r.n == r.k == 1024]
        for settings in dict.fromkeys(setting for row in some for setting in _grid(row)):
            known = sorted((100 * r.sparsity, _grid(r)[settings]) for r in some if settings in _grid(r))
            third.plot(
                *zip(*known, strict=True), marker=".", label="N_warp, V_size = {}, {}".format(*settings)
            )
        third.set(title="USpMM, 1024³", xlabel="sparsity, %", ylabel="TFLOP/s")
        return svg(made, path)


def times_in_network(row: Row) -> int:
    """The number of layers of a shape in a network."""
    found = re.search(r"(\d+) times$", row.case)
    return int(found[1]) if found else 1


def _grid(row: Row) -> dict[tuple[int, int], float]:
    """Useful TFLOP/s of each (N_warp, V_size) that was tried."""
    found = {}
    for cell in row.cells:
        for one in cell.implementations if cell.baseline.startswith(PAPERS) else ():
            if one.us and one.variant and one.variant.family_name == PAPERS:
                values = one.variant.to_dict()
                found[int(values["nwarp"]), int(values["vsize"])] = row.floor.flop / one.us / 1e6
    return found


def parts(document: Document) -> dict[str, list[Row]]:
    """The rows of each line of the table; a layer's as often as its network has it."""
    rows, layers = (of_suites(document, name) for name in ("uniform-figures", "uniform-networks"))
    found = {f"Fig. {name}": [row for row in rows if belongs(row)] for name, belongs in FIGURES.items()}
    for network, (at, *_) in NETWORKS.items():
        of_network = [row for row in layers if network in row.case]
        found[f"Table 1: {network} {at}"] = [row for row in of_network for _ in range(times_in_network(row))]
    return found


STUDY = UniformKernels()
main = STUDY.command()

if __name__ == "__main__":
    main()
