"""The three products of a layer behind structured dropout at 1024³: time and rate over the share that is dropped.

    python -m benchmarks.papers.sparsedrop_layer

Lo, Efficient Sparse Training with Structured Dropout, figure 3: forward and backward of a linear layer, beside dense,
dropout before dense, and dropout of blocks before dense. Steps are CUDA graphs, replayed in turn, with the L2 as they
leave it; masked products are held against dense ones on the same mask first. `benchmarks.structured_dropout` measures
them, and asks more of them than the paper does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from benchmarks.markdown import NONE, figure, quotient, table
from benchmarks.papers.budget import seconds
from benchmarks.papers.study import Claim, Document, Point, Setting, Study, ahead_from, outcome, result, svg
from benchmarks.structured_dropout import layer_row

SIZE, BLOCK = 1024, "128"
SHARES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
TOLD = (0.05, 0.1, 0.3, 0.5, 0.9)  # told first
WAYS = {
    "dense": "dense_us",
    "dropout, dense": "dropout_dense_us",
    "block dropout, dense": "dense_behind_block_dropout_us",
    "masked products": "masked_us",
    "masked products, own seed": "masked_own_seed_us",
}


class SparseDropLayer(Study):
    name = "sparsedrop_layer"
    title = "SparseDrop: a layer"
    paper = "A. Lo: Efficient Sparse Training with Structured Dropout, 2024, section 3.5"
    gpu = "RTX 2060 Max-Q, 1200 MHz"
    claims = (
        Claim("M = N = K = 1024: faster than dense, and than dropout and dense", "from 5 % on", "Fig. 3a"),
        Claim("time over sparsity", "falls linearly", "Fig. 3a"),
        Claim("FLOP/s over sparsity", "high throughout, rises a little to 30 %", "Fig. 3b"),
    )
    differs = (
        "Steps are CUDA graphs, so that drawing masks costs no host time; the paper launches from C++.",
        "The first share is 1 %: a layer that drops nothing is the dense one.",
        "The L2 stays as the step before leaves it; the paper clears it. Clocks are not locked.",
        "Gradients run at once, on three streams of the graph; both products have 64 tiles of 128 columns.",
        "A dense step takes some 27 µs here: launches and the last wave of blocks weigh more than on the paper's GPU.",
    )

    def points(self, setting: Setting) -> Iterable[Point]:
        size, block, shares = (64, "16", (0.5,)) if setting.tiny else (SIZE, BLOCK, SHARES)
        for p in sorted(shares, key=lambda p: (p not in TOLD, p)):

            def measured(p: float = p) -> dict[str, Any]:
                place = setting.place
                stream = (
                    torch.cuda.stream(torch.cuda.Stream())
                    if place.type == "cuda"
                    else contextlib.nullcontext()
                )
                with stream:
                    return {"dropped": p} | layer_row(size, p, block, place)

            yield Point(f"{size} x {size} x {size}, {p:.0%}", measured, 3 + seconds(compiled=1))

    def table(self, document: Document) -> str:
        lines = [
            [
                *(
                    f"{row['dropped']:.0%}",
                    *(figure(row[key] or None) for key in WAYS.values()),
                    tera_flops(row),
                ),
                *(outcome(quotient(row[key], row["masked_us"])) for key in ("dropout_dense_us", "dense_us")),
            ]
            for row in by_share(document)
        ]
        head = ["dropped", *(f"{name}, µs" for name in WAYS), "TFLOP/s, masked"]
        return table([*head, "masked beside dropout, dense", "beside dense"], lines)

    def results(self, document: Document) -> Sequence[str]:
        found = []
        for name, key in (("dense", "dense_us"), ("dropout and dense", "dropout_dense_us")):
            ratios = {r["dropped"]: quotient(r[key], r["masked_us"]) for r in document["rows"]}
            least = ahead_from(ratios)
            told = (
                "**not throughout from any share on** that was tried"
                if least is None
                else f"from {least:.0%} on"
            )
            if any(ratios.values()):
                found.append(f"Masked products are faster than {name} {told}.")
                found.append(result(f"At 50 %, over {name}", ratios.get(0.5)))
        return found

    def why(self, document: Document, name: str) -> str:
        row = next((r for r in document["rows"] if f"{r['dropped']:.0%}" == name), None)
        if row is None:
            return "launches and the last wave of blocks weigh more than what is dropped"
        dense, ours, dropped = row["dense_us"], row["masked_us"], row["dropped"]
        return (
            f"what is dropped spares {dense * dropped:.1f} of {dense:.1f} µs at most, and masks, further launches and "
            f"the last waves of blocks take {ours - dense * (1 - dropped):.1f}"
        )

    def draw(self, document: Document, path: Path) -> bool:
        from matplotlib.figure import Figure

        made = Figure(figsize=(8, 3.2), layout="constrained")
        first, second = made.subplots(1, 2)
        rows = by_share(document)
        for name, key in WAYS.items():
            first.plot(
                [100 * row["dropped"] for row in rows], [row[key] for row in rows], marker=".", label=name
            )
        first.set(xlabel="dropped, %", ylabel="µs, forward and backward", ylim=0)
        first.legend()
        known = [(100 * r["dropped"], flop(r) / r["masked_us"] / 1e6) for r in rows if r["masked_us"]]
        second.plot(*zip(*known, strict=True), marker=".") if known else None
        second.set(xlabel="dropped, %", ylabel="TFLOP/s of live blocks")
        return svg(made, path)


def by_share(document: Document) -> list[Any]:
    """The rows, in the order of what they drop."""
    return sorted(document["rows"], key=itemgetter("dropped"))


def flop(row: Any) -> float:
    """Operations of the three products on live blocks."""
    size = int(row["layer"].split(" ")[0])
    return float(3 * 2 * size**3 * (1 - row["dropped"]))


def tera_flops(row: Any) -> str:
    return figure(flop(row) / row["masked_us"] / 1e6) if row["masked_us"] else NONE


STUDY = SparseDropLayer()
main = STUDY.command()

if __name__ == "__main__":
    main()
