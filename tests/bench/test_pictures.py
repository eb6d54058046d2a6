"""Pictures as they are committed: fewer bytes, the same drawing."""

from __future__ import annotations

import io

import pytest

from benchmarks.pictures import compact

DRAWN = """<svg>
 <style>*{stroke: none}</style>
 <!-- a figure -->
 <g id="figure_1">
  <g id="named" style="fill: red">
   <use href="#mark" x="1.23456" style="fill: blue"/>
   <use href="#mark" x="12.3456" style="fill: blue" transform="rotate(-0 1 2)"/>
  </g>
  <g/>
  <path id="mark" style="fill: blue"/>
 </g>
</svg>
"""


def test_what_says_nothing_is_gone() -> None:
    assert compact(DRAWN).splitlines() == [
        "<svg>",
        "<style>*{stroke: none}",
        ".s0{fill: blue}</style>",
        '<g style="fill: red">',
        '<use href="#mark" x="1.235" class="s0"/>',
        '<use href="#mark" x="12.35" class="s0"/>',
        "</g>",
        '<path id="mark" class="s0"/>',
        "</svg>",
    ]
    assert compact(compact(DRAWN)) == compact(DRAWN)


def test_lines_of_matplotlib_keep_their_points() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2, 3], [1, 4, 2], linewidth=5)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    found = compact(drawn.getvalue())
    assert len(found) < 0.7 * len(drawn.getvalue())
    assert found.count("stroke-width: 5") == 1 and found.count("<path") == drawn.getvalue().count("<path")
