"""Pictures of results, as they are committed: equal results make equal bytes, and text stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STYLE = {"svg.hashsalt": "sparsegen", "svg.fonttype": "none"}


def save(figure: Any, file: Path, dpi: int = 100) -> None:
    """Write a matplotlib figure to an ``.svg`` or ``.png``; what is rasterized in an SVG has ``dpi`` dots an inch."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure.savefig(file, dpi=dpi, metadata={"Date": None} if file.suffix == ".svg" else None)
