"""Pictures of results, as they are committed: equal results make equal bytes, and text stays text."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

STYLE = {"svg.hashsalt": "sparsegen", "svg.fonttype": "none"}
OTHER_FONTS = re.compile(r"(?<='DejaVu Sans'), '[^;\"]*")
RASTER = re.compile(r"(?<=data:image/png;base64,)[^\"]*")
COLOURS = 32  # of what is rasterized in an SVG
NAME = re.compile(r' id="([^"]*)"')
MARK = re.compile(r"#([\w.-]+)")
STYLE_OF_ONE = re.compile(r'(?<= )style="([^"]*)"')
SHARED_FROM = 3  # elements of one style
UNTURNED = re.compile(r' transform="rotate\(-?0 [^"]*"')
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
    """An SVG document without comments, metadata and indentation, its numbers rounded to hundredths of a point.

    Texts name their font, and any without serifs in its place; what is rasterized has a palette. Names that nothing
    refers to are gone, and so are groups and turns that say nothing; a style that several elements have stands once.
    """
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", document, flags=re.DOTALL)
    text = RASTER.sub(_with_palette, OTHER_FONTS.sub(", sans-serif", text))
    marks = set(MARK.findall(text))
    text = _with_classes(NAME.sub(lambda name: name[0] if name[1] in marks else "", text))
    text = LONG_NUMBER.sub(_rounded, UNTURNED.sub("", text))
    return "\n".join(_without_bare_groups(re.sub(r"\s*\n\s*", "\n", text).split("\n")))


def _without_bare_groups(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a document without those of groups that have neither a name nor a property."""
    stay: list[bool] = []
    for line in lines:
        if line == "<g>" or line.startswith("<g "):
            stay.append(line != "<g>")
        if line not in ("<g>", "<g/>") and (line != "</g>" or stay.pop()):
            yield line


def _with_classes(text: str) -> str:
    """The document with a class for each style that `SHARED_FROM` elements have."""
    count = Counter(STYLE_OF_ONE.findall(text))
    shared = [style for style, times in count.items() if times >= SHARED_FROM]
    classes = {style: f"s{number}" for number, style in enumerate(shared)}
    rules = "".join(f"\n.{name}{{{style}}}" for style, name in classes.items())
    text = STYLE_OF_ONE.sub(lambda s: f'class="{classes[s[1]]}"' if s[1] in classes else s[0], text)
    return text.replace("</style>", f"{rules}</style>", 1)


def _with_palette(image: re.Match[str]) -> str:
    from PIL import Image  # matplotlib needs it, too

    found = Image.open(io.BytesIO(base64.b64decode(image[0])))
    if found.mode == "P":
        return image[0]
    out = io.BytesIO()
    found.quantize(COLOURS).save(out, "PNG", optimize=True)
    return base64.b64encode(out.getvalue()).decode()


def _rounded(number: re.Match[str]) -> str:
    """Four digits of what is below 10, as factors are."""
    value = float(number[0])
    return f"{value:.4g}" if abs(value) < 10 else f"{value:.2f}".rstrip("0").rstrip(".")
