"""Material of every section: the inputs, their points, the numbered variants, a colour for each suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparsegen.bench.results.results import Rates
from sparsegen.report import words
from sparsegen.report.catalogue import Catalogue, catalogue
from sparsegen.report.colours import MARKERS, SERIES, Colour
from sparsegen.report.inputs import Inputs
from sparsegen.report.kinds import Kind
from sparsegen.report.points import Point


@dataclass(frozen=True, slots=True)
class Material:
    """The inputs of one report, analysed once.

    Attributes:
        suites: every suite of the points, in the order in which they first appear.
    """

    inputs: Inputs
    points: tuple[Point, ...]
    catalogue: Catalogue
    suites: tuple[str, ...]

    @classmethod
    def of(cls, inputs: Inputs) -> Material:
        points = tuple(inputs.points())
        suites = tuple(dict.fromkeys(point.suite for point in points))
        return cls(inputs, points, catalogue(points), suites)

    @property
    def rates(self) -> Rates | None:
        """Measured rates of the device, from the first file that has them."""
        return next((part.rates for _, part in self.inputs.results if part.rates is not None), None)

    @property
    def origin(self) -> str:
        """Describes the points' source in a sentence."""
        if self.inputs.has_bench:
            return "Each point is a row of the result files."
        return (
            "Each point is a workload of the database, with the dense and cuSPARSE times recorded beside it."
        )

    def look(self, kind: Kind, suite: str) -> tuple[Colour, str]:
        """Colour and marker of a suite, the same in all charts of an operator and layout."""
        alike = (p.suite for p in self.points if (p.operator, p.layout) == (kind.operator, kind.layout))
        place = list(dict.fromkeys(alike)).index(suite)
        return SERIES[place % len(SERIES)], MARKERS[(place + place // len(SERIES)) % len(MARKERS)]


def by_kind(points: Iterable[Point]) -> dict[Kind, list[Point]]:
    """Points by kind, in the order in which they first appear."""
    groups: dict[Kind, list[Point]] = {}
    for point in points:
        groups.setdefault(point.kind, []).append(point)
    return groups


def sizes_n(points: Sequence[Point]) -> str:
    """``n = 32, 128``, for captions."""
    known = sorted({point.n for point in points if point.n})
    return f"n = {words.listed(known)}" if known else f"{len(points)} workloads"
