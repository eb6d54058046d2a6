"""The challenge's kernels on the device: ours, the paper's with its own settings, and the one of its listing 1.

    python -m benchmarks.papers.sparse_dnn_kernels

Hidayetoglu et al., HPEC 2020, sections III and IV-B: float32, 120 layers, images that die as in the challenge, and
images that all live. What the host adds is measured by `benchmarks.papers.sparse_dnn`.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.markdown import figure, table, times
from benchmarks.papers.bench_study import ROWS, BenchStudy, ratio
from benchmarks.papers.sparse_dnn import SparseDnn
from benchmarks.papers.study import Claim, Document, outcome, result
from sparsegen.bench.results.results import UNTUNED, Row
from sparsegen.networks.model.radixnet import FAN_IN

LISTING, PAPERS = "csr-network", "staged_network"


class SparseDnnKernels(BenchStudy):
    name = "sparse_dnn_kernels"
    title = "Sparse DNN Challenge: kernels"
    paper = SparseDnn.paper
    gpu = "V100"
    claims = (
        Claim("over the baseline kernel of listing 1", "5.56 to 11.84 ×", "section IV-B"),
        Claim("tera-edges a second at 120 layers, one V100, host to host", "3.47 to 10.51", "Table I"),
    )
    differs = (
        "Images are generated strokes of the challenge's kind; those of 65536 neurons are 8,448.",
        "In listing 1's kernel a block sees by itself whether its input died, the paper's host lists the live ones.",
        "Times are of the device, with inputs and weights there.",
    )
    suites = ("spdnn-float32",)
    told = ("challenge",)
    row_seconds = 40.0  # 27 on an H100 with three baselines (`bench_spdnn.json.xz`)
    options = (
        *("--only", UNTUNED, "--only", LISTING, "--configs", f"{PAPERS}@published"),
        *("--rounds", "3", "--samples", "3"),
    )
    tiny = (
        *("--only", LISTING),
        *("--configs", f"{PAPERS}@published", "--rounds", "1", "--samples", "1"),
    )

    tiny_suites = ("spdnn",)
    tiny_cases = ("alive, short, float32",)

    def table(self, document: Document) -> str:
        names = {"ours": UNTUNED, "the paper's kernel": PAPERS, "listing 1": LISTING}
        lines = [
            [
                row.case,
                *(figure(us and us / 1e3) for us in map(row.us, names.values())),
                *(figure(tera_edges(row, name)) for name in names.values()),
                times(ratio([row], LISTING, PAPERS)),
                outcome(ratio([row], PAPERS, UNTUNED)),
            ]
            for row in document[ROWS]
        ]
        head = ["network", *(f"{name}, ms" for name in names), *(f"{name}, TE/s" for name in names)]
        return table([*head, "the paper's kernel over listing 1", "ours beside the paper's kernel"], lines)

    def results(self, document: Document) -> Sequence[str]:
        rows = document[ROWS]
        return [
            result("The paper's kernel over listing 1", ratio(rows, LISTING, PAPERS)),
            result("Ours over the paper's kernel", ratio(rows, PAPERS, UNTUNED)),
            result("Ours over listing 1", ratio(rows, LISTING, UNTUNED)),
        ]


def tera_edges(row: Row, baseline: str) -> float | None:
    """Input edges a second, biases apart."""
    us = row.us(baseline)
    return None if us is None else FAN_IN * row.m * row.n / us / 1e6


STUDY = SparseDnnKernels()
main = STUDY.command()

if __name__ == "__main__":
    main()
