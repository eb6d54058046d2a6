"""Tables of sampled products, softmax, attention, training and MobileNet, for `benchmarks.make_tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsegen.bench.results import TUNED, Row
from sparsegen.bench.summary import geometric
from sparsegen.operators import SoftmaxProblem

NONE = "–"
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}

Rows = Sequence[Mapping[str, Any]]
Peers = Mapping[tuple[str, str, str], Mapping[str, float]]


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def sddmm(rows: Sequence[Row], peers: Peers) -> str:
    """A row for each case: float32 beside cuSPARSE and Sputnik, float16 beside those and a dense product.

    Ratios are of times, below 1 where sparsegen is faster; the last row has their geometric means.
    """
    by_case: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.dtype.value] = row
    lines, wide, narrow, to_dense = [], [], [], []
    for case, found in by_case.items():
        single, half = found.get("float32"), found.get("float16")
        ours, ours_half = (row.us(TUNED) if row else None for row in (single, half))
        vendor = single.us("cusparse-sddmm") if single else None
        sputnik = peers.get(("sddmm", case, "float32"), {}).get("sputnik")
        others = [us for us in (vendor, sputnik) if us]
        best = _ratio(ours, min(others, default=None))
        to_vendor = _ratio(ours_half, vendor)
        dense = half.us("cublas") if half else None
        over_dense = _ratio(ours_half, dense)
        for ratio, kept in ((best, wide), (to_vendor, narrow), (over_dense, to_dense)):
            if ratio is not None:
                kept.append(ratio)
        times = (ours, vendor, sputnik, best, ours_half, to_vendor, dense, over_dense)
        lines.append([case, *(_figure(x) for x in times)])
    means = [geometric(ratios).value if ratios else None for ratios in (wide, narrow, to_dense)]
    lines.append(
        ["geometric mean", *[NONE] * 3, _figure(means[0]), NONE, _figure(means[1]), NONE, _figure(means[2])]
    )
    head = ["m × n × k, sparsity", "fp32 µs", "cuSPARSE", "Sputnik", "to the better", "fp16 µs"]
    return table([*head, "to cuSPARSE fp32", "dense fp16", "to it"], lines)


def decode(runs: Mapping[str, Sequence[Row]]) -> str:
    """A row for each list and number of tokens: our time over dense cuBLAS's, geometric mean and worst.

    Args:
        runs: the rows by the state of the L2.
    """
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for state, rows in runs.items():
        for row in rows:
            dense = row.dense()
            ratio = _ratio(row.us(TUNED), dense.timing.us if dense and dense.timing else None)
            if ratio is not None:
                for which in ("all", f"n = {row.n}"):
                    found = groups.setdefault((row.suite, which), {state: [] for state in runs})
                    found[state].append(ratio)
    lines = []
    for (suite, which), found in groups.items():
        figures = [
            text
            for ratios in found.values()
            for text in (
                (
                    _figure(geometric(ratios).value),
                    _figure(max(ratios)),
                    f"{sum(r < 1 for r in ratios)} of {len(ratios)}",
                )
                if ratios
                else (NONE,) * 3
            )
        ]
        lines.append([f"{suite}, {which}", *figures])
    head = [column for state in runs for column in (f"{state}: mean", "worst", "faster")]
    return table(["list", *head], lines)


def sweep(rows: Rows) -> str:
    """A row for each workload of a grid of one family's configs: the guess and the fastest beside cuBLAS."""
    lines = []
    for row in rows:
        fastest, dense = row["configs"][0], row["vendors_us"].get("cublas")
        varied = {
            key
            for one in row["configs"]
            for key, value in one["config"].items()
            if value != fastest["config"][key]
        }
        config = " ".join(f"{key}={value}" for key, value in fastest["config"].items() if key in varied)
        times = (dense, row["guess_us"], fastest["us"], _ratio(fastest["us"], dense))
        lines.append([row["workload"], *(_figure(x) for x in times), len(row["configs"]), config])
    head = [
        "m × k × n, zeros",
        "cuBLAS µs",
        "a guess",
        "fastest",
        "to cuBLAS",
        "configs",
        "the fastest config",
    ]
    return table(head, lines)


def softmax(rows: Rows, peers: Peers) -> str:
    """A row for each mask, dtype and operator."""
    lines = [
        [
            f"{r['mask']}, {TYPES[r['dtype']]}{', backward' if 'backward' in r['operator'] else ''}",
            f"{r['nonzeros'] / 1e6:.2f}",
            _figure(r["us"]["ours"]),
            f"{r['gb_per_s']:.0f}",
            _figure(r["copy_us"]),
            f"{100 * r['of_copy']:.0f} %",
            _figure(r["us"].get("torch padded")),
            _figure(_sputnik_softmax(r, peers)),
        ]
        for r in rows
    ]
    head = ["mask", "million nonzeros", "µs", "GB/s", "copy of the bytes, µs", "of its bandwidth"]
    return table([*head, "`torch.softmax`, padded, µs", "Sputnik, µs"], lines)


def _sputnik_softmax(row: Mapping[str, Any], peers: Peers) -> float | None:
    """Sputnik has it in float32, and was timed on the random patterns of the suite ``sddmm``."""
    kind, length, *sparsity = row["mask"].split()
    if kind != "random" or row["operator"] != SoftmaxProblem.operator:
        return None
    case = f"{length}x{length}x64 {sparsity[0].removeprefix('0')}"
    return peers.get(("sddmm", case, row["dtype"]), {}).get("sputnik-softmax")


def attention(rows: Rows) -> str:
    """A row for each contender of each mask and dtype; what did not run is told below."""
    lines, missing = [], []
    for r in rows:
        title = f"{r['mask']} {r['length']}, {r['heads']} × {r['width']}, {TYPES[r['dtype']]}"
        ours = r["contenders"]["sparsegen"]["us"]
        for name, facts in r["contenders"].items():
            memory = NONE if facts["bytes"] is None else f"{facts['bytes'] / 2**20:.0f}"
            computes = "the mask" if facts["sees_mask"] else "dense, causal"
            lines.append([title, name, computes, _figure(facts["us"]), f"{facts['us'] / ours:.2f}", memory])
        missing += [f"{title}, {name}: {why}" for name, why in r["left_out"].items()]
    head = ["attention", "by", "computes", "µs", "over ours", "MiB beside Q, K, V"]
    told = "".join(f"\n- {line}" for line in missing)
    return table(head, lines) + (f"\n\nDid not run:\n{told}" if missing else "")


def training(rows: Rows) -> str:
    """A row for each part."""
    lines = [
        [
            r["part"],
            r["steps"],
            *(f"{r['last_loss'][name]:.4f}" for name in ("sparse", "dense")),
            f"{r['difference']:.1e}",
            f"{r['noise']:.1e}",
            *(_figure(r["ms_per_step"][name]) for name in ("sparse", "dense")),
        ]
        for r in rows
    ]
    head = ["model", "steps", "last loss, sparse", "masked-dense", "largest difference", "between seeds"]
    return table([*head, "ms a step, sparse", "masked-dense"], lines)


def graph_capture(rows: Rows) -> str:
    """A row for each dtype."""
    lines = [
        [
            TYPES[r["dtype"]],
            "yes" if r["captured_in_cuda_graph"] else "no",
            NONE if r["host_synchronisations"] is None else r["host_synchronisations"],
            r["graphs_compiled_first"],
            r["value_changes"],
            r["graphs_compiled_later"],
            f"{r['error']:.1e}",
        ]
        for r in rows
    ]
    head = ["converted perceptron", "in a CUDA graph", "waits", "graphs compiled", "changes of values"]
    return table([*head, "compiled anew", "error"], lines)


def mobilenet(rows: Rows) -> str:
    """A row for each layer of each width."""
    lines = [
        [
            f"{r['width']} ×: {r['m']} × {r['k']} × {r['n']}",
            r["count"],
            _figure(r["us"]["ours"]),
            *(_figure(r["us"].get(name)) for name in ("cublas", "cublaslt fused", "cudnn")),
            f"{r['to_dense']:.2f}",
            r["family"],
        ]
        for r in rows
    ]
    head = ["width: C_out × C_in × pixels", "times", "µs", "cuBLAS, then bias and ReLU", "cuBLASLt, fused"]
    return table([*head, "cuDNN", "over the best dense", "family"], lines)


def _ratio(ours: float | None, other: float | None) -> float | None:
    return ours / other if ours and other else None


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
