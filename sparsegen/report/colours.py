"""Colours and markers of the charts, on a light page and on a dark one."""

from __future__ import annotations

from enum import Enum


class Colour(Enum):
    """A colour on a light page and on a dark one. The series' colours are told apart by colour-blind readers
    (after Okabe and Ito's palette), and every series has a marker of its own besides.
    """

    INK = ("#1f2329", "#e6eaf0")
    MUTED = ("#5f6873", "#a3adb8")
    GRID = ("#dde2e7", "#333b45")
    PAPER = ("#ffffff", "#14181d")
    BLUE = ("#0067a5", "#5cb3f0")
    ORANGE = ("#c84e00", "#ff9142")
    GREEN = ("#00805d", "#35cfa2")
    PURPLE = ("#a04a8c", "#e79ad6")
    OCHRE = ("#9a7400", "#e3c044")
    SKY = ("#3f93c7", "#a9dcfb")
    RED = ("#b3223a", "#ff7d8c")
    SLATE = ("#4d5a87", "#aab6e8")
    UMBER = ("#5b3a1e", "#d2ab85")
    TEAL = ("#0f4c4a", "#7fd6d0")
    LIME = ("#637d00", "#c8e05a")
    VIOLET = ("#5a2ca0", "#b79bff")
    PINK = ("#d6428a", "#ffb3d4")

    @property
    def light(self) -> str:
        return self.value[0]

    @property
    def variable(self) -> str:
        return f"--{self.name.lower()}"


SERIES = (
    Colour.BLUE,
    Colour.ORANGE,
    Colour.GREEN,
    Colour.PURPLE,
    Colour.OCHRE,
    Colour.RED,
    Colour.SKY,
    Colour.SLATE,
    Colour.UMBER,
    Colour.TEAL,
    Colour.LIME,
    Colour.VIOLET,
    Colour.PINK,
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "h")


def palette(index: int) -> str:
    """CSS declarations of every colour: 0 for a light page, 1 for a dark one."""
    return " ".join(f"{colour.variable}: {colour.value[index]};" for colour in Colour)
