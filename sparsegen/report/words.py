"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sparsegen.operators import DType, Problem

DTYPES = {DType.FLOAT32: "fp32", DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16"}
MISSING = "–"


def figure(value: float | None) -> str:
    """Three digits or more, with thousands separated."""
    if value is None or math.isnan(value):
        return MISSING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1e-3 else f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def tick(value: float) -> str:
    """A number on an axis, with all of its digits."""
    return f"{value:.10g}"


def microseconds(value: float | None) -> str:
    return MISSING if value is None else f"{figure(value)} µs"


def factor(value: float | None) -> str:
    """A ratio: ``1.53 ×``."""
    return MISSING if value is None or math.isnan(value) else f"{value:.2f} ×"


def percent(share: float | None) -> str:
    """A share of 1; one more digit close to the ends, where 99 % and 99.9 % are far apart."""
    if share is None or math.isnan(share):
        return MISSING
    text = f"{100 * share:.1f}"
    return f"{text if 0.98 < share < 1 else text.removesuffix('.0') if text.endswith('.0') else round(100 * share)} %"


def listed(values: Iterable[object], *, most: int = 12) -> str:
    """``32, 128, 256``, cut after ``most``."""
    texts = [str(value) for value in values]
    rest = len(texts) - most
    return ", ".join(texts) if rest <= 0 else f"{', '.join(texts[:most])} and {rest} more"


def count(number: int, noun: str) -> str:
    """``1 workload``, ``2 workloads``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def sizes(problem: Problem) -> str:
    """``1,024 × 512 × 64``."""
    return " × ".join(f"{size:,}" for size in problem.sizes.values())
