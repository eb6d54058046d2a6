"""Draws docs/kinds.svg: eight kinds of sparsity, each with what computes it.

    python -m docs.make_kinds_picture

Each is a pattern of 32 × 32 places as sparsegen makes it, or of the layer in examples/.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import sparsegen
from sparsegen import masks
from sparsegen.matrix.generators import power_law

PICTURE = Path(__file__).with_name("kinds.svg")
LAYER = PICTURE.parents[1] / "examples" / "pruned_mlp_layer.npz"
SIDE, CELL = 32, 5
WIDTH, HEIGHT, LEFT, TOP = 232, 258, 24, 44
LIVE = {"the pattern stays": "#3f51b5", "a mask comes with every call": "#d55e00"}
Places = npt.NDArray[np.bool_]


def kinds() -> Iterator[tuple[str, str, Places]]:
    """Name of each kind, what computes it, and its live places; first those whose pattern stays."""
    rng = np.random.default_rng(0)
    layer = sparsegen.load_matrix(LAYER).to_scipy().toarray()
    yield "a pruned weight", "convert, prepare", layer[:SIDE, :SIDE] != 0
    weight = rng.standard_normal((SIDE, SIDE), np.float32)
    blocks = sparsegen.prune(weight, pattern="block", sparsity=0.7, block=(4, 4)).weights
    yield "a weight pruned in blocks", "convert, prepare", sparsegen.as_csr(blocks).to_scipy().toarray() != 0
    window = masks.sliding_window(SIDE, window=7, sinks=2)
    yield "a window of attention, sinks", "SparseAttention", window.to_scipy().toarray() != 0
    graph = power_law(SIDE, SIDE, 0.1, seed=1).to_scipy().toarray() != 0
    yield "a graph", "prepare", graph

    causal = np.tril(np.ones((SIDE, SIDE), bool))
    chosen = np.tril(rng.random((8, 8)) < 0.35) | np.eye(8, dtype=bool)
    yield "blocks of keys, causal", "block_attention", _grown(chosen) & causal
    yield "blocks of a layer's input", "DropoutLinear, dsd", _grown(rng.random((8, 8)) < 0.5)
    y, x = np.mgrid[:16, :16]
    blobs = ((x - 4) ** 2 + (y - 10) ** 2 < 14) | ((x - 11) ** 2 + (y - 4) ** 2 < 9)
    yield "blocks of an image", "MaskedConv2d", _grown(blobs)
    angle = rng.random((4, 40)) * 2 * np.pi
    radius = np.array([[4], [8], [12], [15]]) + rng.random((4, 40))
    points = np.zeros((SIDE, SIDE), bool)
    points[
        (16 + radius * np.sin(angle)).astype(int) % SIDE, (16 + radius * np.cos(angle)).astype(int) % SIDE
    ] = True
    yield "points of a scan, from above", "SubmanifoldConv3d", points


def _grown(blocks: Places) -> Places:
    """The places of live blocks."""
    return np.kron(blocks, np.ones((SIDE // len(blocks),) * 2)).astype(bool)


def path(live: Places) -> str:
    """Outline of the live places: a line along each run of a row."""
    parts = []
    for row, places in enumerate(live):
        edges = np.flatnonzero(np.diff(places, prepend=False, append=False).astype(int))
        parts += [f"M{a} {row}.5h{b - a}" for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return "".join(parts)


def document() -> str:
    """The picture as SVG."""
    every = list(kinds())
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {4 * WIDTH} {2 * HEIGHT}" role="img" '
        'aria-labelledby="title" font-family="system-ui, -apple-system, \'DejaVu Sans\', sans-serif" font-size="14">',
        f'<title id="title">{"; ".join(f"{name}: {by}" for name, by, _ in every)}</title>',
        f'<rect width="{4 * WIDTH}" height="{2 * HEIGHT}" rx="8" fill="#fff"/>',
    ]
    for number, (name, by, live) in enumerate(every):
        words, colour = list(LIVE.items())[number // 4]
        left, top = LEFT + number % 4 * WIDTH, TOP + number // 4 * HEIGHT
        if number % 4 == 0:
            lines.append(f'<text x="{left}" y="{top - 16}" fill="#555">{words}:</text>')
        lines += [
            f'<g transform="translate({left} {top})">',
            f'<rect width="{SIDE * CELL}" height="{SIDE * CELL}" fill="#f4f4f4"/>',
            f'<path transform="scale({CELL})" stroke="{colour}" d="{path(live)}"/>',
            f'<text y="{SIDE * CELL + 18}">{name}</text>',
            f'<text y="{SIDE * CELL + 36}" fill="{colour}" font-family="monospace" font-size="13">{by}</text></g>',
        ]
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(document(), encoding="utf-8")
