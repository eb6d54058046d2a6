"""Tables of the files that studies write and earlier scripts left; `benchmarks.make_tables` places them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import NONE, TYPES, figure, mean_of, quotient, table

Rows = Sequence[Mapping[str, Any]]
Document = Mapping[str, Any]

SLOWER = 1.02  # than dense: beyond the noise


def sweep(rows: Rows) -> str:
    """A row for each workload of a grid of one family's configs: the heuristic and the fastest beside cuBLAS."""
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
        times = (dense, row["guess_us"], fastest["us"], quotient(fastest["us"], dense))
        lines.append([row["workload"], *(figure(x) for x in times), len(row["configs"]), config])
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


def training(rows: Rows) -> str:
    """A row for each part."""
    lines = [
        [
            r["part"],
            r["steps"],
            *(f"{r['last_loss'][name]:.4f}" for name in ("sparse", "dense")),
            f"{r['difference']:.1e}",
            f"{r['noise']:.1e}",
            *(figure(r["ms_per_step"][name]) for name in ("sparse", "dense")),
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


def ablation(document: Document) -> str:
    """Slowdown when one idea of csr_spmm is taken away."""
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
    return table(head, rows)


def search(document: Document) -> str:
    """Budgeted searches against the exhaustive one."""
    rows = [
        [
            f"{r['workload']} {r['dtype']}", r["space_size"],
            f"{r['to_exhaustive']['quick']:.3f}", f"{r['wall_seconds']['quick']:.1f}",
            f"{r['to_exhaustive']['normal']:.3f}", f"{r['wall_seconds']['normal']:.1f}",
        ]
        for r in document["rows"]
    ]  # fmt: skip
    head = ["problem", "configs", "quick / exhaustive", "s", "normal / exhaustive", "s"]
    return table(head, rows)


def never_slower(document: Document) -> str:
    """Table of dispatch's choices without tuning, over dense products: products, models from Python and as graphs."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in document["rows"]:
        called = {"eager": "from Python", "graph": "a CUDA graph"}.get(row.get("mode", ""), "alone")
        kinds.setdefault((f"{row['part']}, {TYPES[row['dtype']]}", called), []).append(row)
    lines = [
        [
            name,
            called,
            len(rows),
            sum(row["over_dense"] > SLOWER for row in rows),
            f"{max(row['over_dense'] for row in rows):.2f}",
            mean_of(rows, "over_dense"),
            mean_of(rows, "over_best") if "over_best" in rows[0] else NONE,
        ]
        for (name, called), rows in sorted(
            kinds.items(), key=lambda kind: kind[0][0].split(",")[0] != "products"
        )
    ]
    head = ["", "called", "cases", "slower than dense by over 2 %", "worst", "mean over dense"]
    return table([*head, "mean over the best of both"], lines)


def host(document: Document) -> str:
    """Host time of a call."""
    names = {
        "bare_launch_us": "bare launch of the same kernel (ctypes)",
        "torch_with_out_us": "`op(b, out)` with PyTorch tensors",
        "torch_us": "`op(b)`, the result allocated by PyTorch",
        "cupy_with_out_us": "`op(b, out)` with CuPy arrays",
        "torch_dense_mm_us": "PyTorch dense `A @ b`",
        "torch_sparse_mm_us": "PyTorch sparse CSR `A @ b`",
        "dense_layer_us": "`torch.nn.Linear` in inference",
        "layer_us": "`SparseLinear` in inference, by a sparse kernel",
        "layer_by_dense_products_us": "the same, by dense products",
        "dense_layer_in_model_us": "`torch.nn.Linear` and three layers behind it, in a model",
        "layer_in_model_us": "`SparseLinear` and the same layers",
        "training_dense_layer_us": "`torch.nn.Linear`, recorded for a gradient",
        "training_layer_us": "`SparseLinear`, recorded for a gradient",
    }
    row = document["rows"][0]
    return table(["call", "µs on the host"], [[name, row[key]] for key, name in names.items() if key in row])
