"""Table of whole models, from what `benchmarks.zoo` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import NONE, table
from benchmarks.study import geometric_mean, read_document

MODES = {"eager": "from Python", "graph": "as a CUDA graph", "compiled": "compiled"}
Row = Mapping[str, Any]


def models(devices: Sequence[Path]) -> str:
    """Times of converted models over those of the dense ones, and the numbers of layers that became sparse."""
    found = [file for device in devices if (file := device / "zoo.json.xz").is_file()]
    if not found:
        return "Not measured yet: there is no `zoo.json.xz` (benchmarks/README.md)."
    document = read_document(found[-1])
    rows: list[Row] = [row for row in document["rows"] if "timed_s" in row]
    lines = [
        [
            f"`{row['model']}`",
            f"{row['pattern']}, {row['sparsity']:.0%}",
            *(_said(row, mode) for mode in MODES),
        ]
        for row in rows
    ]
    means = [geometric_mean([_ratio(row, mode) for row in rows]) for mode in MODES]
    lines.append([f"geometric mean of {len(rows)}", "", *(f"{mean:.3f}" for mean in means)])
    states = ", ".join(dict.fromkeys(row["state"][:10] for row in rows))
    return (
        table(["model", "pruned", *MODES.values()], lines)
        + f"\n\n{document['device']}, driver {document['driver']}, {document['date']}; measured by {states}; made by "
        f"`{document['command']}`."
    )


def _ratio(row: Row, mode: str) -> float:
    """The time over the dense model's; 1 of a model without sparse layers, which is the dense one."""
    return float(row.get(f"{mode}_ratio", 1.0)) if row.get(f"{mode}_sparse_layers") else 1.0


def _said(row: Row, mode: str) -> str:
    if f"{mode}_ratio" not in row:
        return NONE
    layers = row.get(f"{mode}_sparse_layers", 0)
    return f"{_ratio(row, mode):.3f} ({layers})" if layers else "dense"
