"""Fill the tables of README.md and docs/performance.md from the raw results.

    python -m benchmarks.make_tables [--check]

A table stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; nothing in it is typed by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import click

from benchmarks.common import HERE, geometric_mean

ROOT = HERE.parent
RESULTS = HERE / "results" / "nvidia-h100-80gb-hbm3-sm90"


SESSIONS = " cuSPARSE: the smaller of those times and of `vendor_baselines.json`, made by `benchmarks.add_baselines`."


@cache
def load(name: str) -> Mapping[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def origin(*names: str) -> str:
    """Where the figures come from, in one line."""
    documents = [load(name) for name in names]
    first = documents[0]
    commands = ", ".join(f"`{document['command']}`" for document in documents)
    return f"\n\n{first['device']}, driver {first['driver']}, {first['date']}; made by {commands}."


def vendor_times() -> dict[tuple[str, str], float]:
    """What cuSPARSE took when each of its ways was timed right after its own preprocessing, by workload and dtype."""
    rows = load("vendor_baselines")["rows"]
    return {(r["workload"], r["dtype"]): r["us"] for r in rows if r["contender"] == "cusparse"}


def fair_cusparse(workload: str, dtype: str, same_run: float) -> float:
    """The smaller of cuSPARSE's time beside ours and of its time in a session of its own (docs/performance.md)."""
    return min(same_run, vendor_times().get((workload, dtype), same_run))


def peer_rows(kind: str) -> list[dict[str, Any]]:
    """The rows of both lists, with the ratio to the better of cuSPARSE and Sputnik."""
    dtype = {"fp32": "float32", "fp16": "float16"}[kind]
    rows = []
    for r in load(f"spmm_peers_{kind}")["rows"]:
        cusparse = fair_cusparse(r["workload"], dtype, r["us"]["cusparse"])
        ratio = r["us"]["sparsegen"] / min(cusparse, r["sputnik_us"])
        rows.append({**r, "us": {**r["us"], "cusparse": cusparse}, "ratio": ratio})
    return rows


def performance() -> str:
    """README: geometric means per list and type."""
    rows = []
    for kind, name in (("fp32", "fp32"), ("fp16", "fp16, sums in fp32")):
        for part in ("rnn", "transformer"):
            some = [r for r in peer_rows(kind) if r["list"] == part]
            vendor = geometric_mean(r["us"]["cusparse"] / r["us"]["sparsegen"] for r in some)
            sputnik = geometric_mean(r["sputnik_us"] / r["us"]["sparsegen"] for r in some)
            dense = geometric_mean(r["us"]["cublas"] / r["us"]["sparsegen"] for r in some)
            wins = sum(r["us"]["sparsegen"] < r["us"]["cublas"] for r in some)
            cells = [f"{vendor:.2f} ×", f"{sputnik:.2f} ×", f"{dense:.2f} ×", f"{wins} of {len(some)}"]
            rows.append([f"SpMM, {part} list, {name}", *cells])
    head = [
        "geometric mean of the speedup",
        "over cuSPARSE",
        "over Sputnik",
        "over dense cuBLAS",
        "faster than dense",
    ]
    return table(head, rows) + origin("spmm_peers_fp32", "spmm_peers_fp16") + SESSIONS


def peers(kind: str) -> str:
    """Every workload of both lists."""
    measured = peer_rows(kind)
    rows = [
        [
            r["workload"], r["us"]["sparsegen"], r["us"]["cusparse"], r["sputnik_us"], r["us"]["cublas"],
            f"{r['ratio']:.2f}", f"{r['dense_ratio']:.2f}", r["family"],
        ]
        for r in measured
    ]  # fmt: skip
    head = [
        "m × k × n, sparsity",
        "µs",
        "cuSPARSE",
        "Sputnik",
        "cuBLAS",
        "to the better sparse",
        "to dense",
        "family",
    ]
    ratios = {r["workload"]: r["ratio"] for r in measured}
    worst = max(ratios, key=lambda workload: ratios[workload])
    mean = geometric_mean(ratios.values())
    close = f"\n\nGeometric mean to the better of cuSPARSE and Sputnik **{mean:.3f}**, "
    close += f"worst {ratios[worst]:.2f} ({worst}); "
    close += f"geometric mean to dense {geometric_mean(r['dense_ratio'] for r in measured):.2f}."
    return table(head, rows) + close + origin(f"spmm_peers_{kind}") + SESSIONS


def ablation() -> str:
    """Slowdown when one idea of csr_spmm is taken away."""
    document = load("ablation_float32")
    head = [
        "without (or instead of) the idea",
        *(r["workload"].split(",")[0] for r in document["rows"]),
        "mean",
    ]
    rows = [
        [
            idea,
            *(f"{r['slowdown'][idea]:.2f}" if idea in r["slowdown"] else "–" for r in document["rows"]),
            f"{mean:.2f}",
        ]
        for idea, mean in document["summary"].items()
    ]
    return table(head, rows) + origin("ablation_float32")


def search() -> str:
    """Budgeted searches against the exhaustive one."""
    rows = [
        [
            f"{r['workload']} {r['dtype']}", r["space_size"],
            f"{r['to_exhaustive']['quick']:.3f}", f"{r['wall_seconds']['quick']:.1f}",
            f"{r['to_exhaustive']['normal']:.3f}", f"{r['wall_seconds']['normal']:.1f}",
        ]
        for r in load("search_quality")["rows"]
    ]  # fmt: skip
    head = ["problem", "configs", "quick / exhaustive", "s", "normal / exhaustive", "s"]
    return table(head, rows) + origin("search_quality")


def dispatch() -> str:
    """Dispatch to matrices that were not tuned."""
    s = load("dispatch_transfer")["summary"]
    rows = [
        ["dispatched from the database", f"{s['geometric_mean_regret']:.3f}", f"{s['worst_regret']:.2f}"],
        ["rule of thumb, nothing tuned", f"{s['geometric_mean_untuned_regret']:.3f}", "–"],
    ]
    head = [
        f"{s['tested_on']} matrices, {s['tuned_on']} others tuned",
        "geometric mean to tuning each",
        "worst",
    ]
    return table(head, rows) + origin("dispatch_transfer")


def host() -> str:
    """Host time of a call."""
    names = {
        "bare_launch_us": "bare launch of the same kernel (ctypes, `cuLaunchKernel`)",
        "torch_with_out_us": "`op(b, out)` with PyTorch tensors",
        "torch_us": "`op(b)`, the result allocated by PyTorch",
        "cupy_with_out_us": "`op(b, out)` with CuPy arrays",
        "torch_dense_mm_us": "PyTorch dense `A @ b`",
        "torch_sparse_mm_us": "PyTorch sparse CSR `A @ b`",
    }
    row = load("host_cost")["rows"][0]
    return table(["call", "µs on the host"], [[names[k], v] for k, v in row.items()]) + origin("host_cost")


def layouts() -> str:
    """Row-major against column-major B and C."""
    head = [
        "m × k × n, sparsity",
        "type",
        "row-major µs",
        "cuSPARSE",
        "cuBLAS",
        "column-major µs",
        "cuSPARSE",
        "cuBLAS",
    ]
    names = ("sparsegen", "cusparse", "cublas")
    by_case: dict[tuple[str, str], dict[str, Mapping[str, float]]] = {}
    for r in load("layouts")["rows"]:
        cusparse = fair_cusparse(r["workload"], r["dtype"], r["us"]["cusparse"])
        by_case.setdefault((r["workload"], r["dtype"]), {})[r["layout"]] = {**r["us"], "cusparse": cusparse}
    rows = [
        [*case, *(us[layout][name] for layout in ("row", "column") for name in names)]
        for case, us in by_case.items()
    ]
    return table(head, rows) + origin("layouts") + SESSIONS


TABLES: Mapping[str, Callable[[], str]] = {
    "performance": performance,
    "peers-fp32": lambda: peers("fp32"),
    "peers-fp16": lambda: peers("fp16"),
    "ablation": ablation,
    "search": search,
    "dispatch": dispatch,
    "host": host,
    "layouts": layouts,
}


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a table is out of date.")
def main(check: bool) -> None:
    stale = []
    for path in (ROOT / "README.md", ROOT / "docs" / "performance.md"):
        text = path.read_text()
        filled = fill(text)
        if filled != text:
            stale.append(path.name)
            if not check:
                path.write_text(filled)
    if check and stale:
        click.echo(f"out of date: {', '.join(stale)}; run python -m benchmarks.make_tables")
        sys.exit(1)


def fill(text: str) -> str:
    """The text with every known table made anew."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin in text:
            before, rest = text.split(begin, 1)
            text = f"{before}{begin}\n{make()}\n{end}{rest.split(end, 1)[1]}"
    return text


if __name__ == "__main__":
    main()
