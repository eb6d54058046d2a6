"""Markdown tables and the figures in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsegen.bench.results.summary import geometric

NONE = "–"
TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def times(value: float | None) -> str:
    """A ratio of speeds or times."""
    return NONE if value is None else f"{value:.2f} ×"


def quotient(ours: float | None, other: float | None) -> float | None:
    return ours / other if ours and other else None


def mean_of(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    """Geometric mean of a field of rows, of those that have it."""
    found = [row[key] for row in rows if row[key] is not None]
    return times(geometric(found).value if found else None)
