"""Pictures of results, as they are committed: equal results make equal bytes, and text stays text."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

STYLE = {"svg.hashsalt": "sparsegen", "svg.fonttype": "none"}
LONG_NUMBER = re.compile(r"(?<![\w#.])-?\d+\.\d{3,}")


def save(figure: Any, file: Path, dpi: int = 100) -> None:
    """Write a matplotlib figure to an ``.svg`` or ``.png``; what is rasterized in an SVG has ``dpi`` dots an inch."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        if file.suffix != ".svg":
            figure.savefig(file, dpi=dpi)
            return
        out = io.StringIO()
        figure.savefig(out, format="svg", dpi=dpi, metadata={"Date": None})
    file.write_text(compact(out.getvalue()))


def compact(document: str) -> str:
    """An SVG document without comments and indentation, its numbers rounded to hundredths of a point."""
    text = re.sub(r"<!--.*?-->", "", document, flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "\n", LONG_NUMBER.sub(_rounded, text))


def _rounded(number: re.Match[str]) -> str:
    """Four digits of what is below 10, as factors are."""
    value = float(number[0])
    return f"{value:.4g}" if abs(value) < 10 else f"{value:.2f}".rstrip("0").rstrip(".")
