"""The distinct winning variants, numbered, and the sources that they are rendered to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sparsegen.errors import ConfigError
from sparsegen.kernels import family_of
from sparsegen.kernels.config import Config
from sparsegen.render import render
from sparsegen.report import words
from sparsegen.report.content import Source
from sparsegen.report.points import Point


@dataclass(frozen=True, slots=True)
class Entry:
    """A variant that won somewhere.

    Attributes:
        number: number from 1 on, in the order of the workloads that it won.
        wins: the workloads.
        sources: anchors of the sources that it was rendered to; several where dtypes or shapes make them differ.
        unrendered: why a source is not shown; empty if all are.
    """

    number: int
    variant: Config
    wins: tuple[Point, ...]
    sources: tuple[str, ...]
    unrendered: str

    @property
    def name(self) -> str:
        return f"V{self.number}"

    @property
    def anchor(self) -> str:
        return f"variant-{self.number}"


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every winning variant and every source, in the order of the variants' numbers."""

    entries: tuple[Entry, ...]
    sources: tuple[Source, ...]

    def entry(self, variant: Config) -> Entry:
        return next(entry for entry in self.entries if entry.variant == variant)


def catalogue(points: Sequence[Point]) -> Catalogue:
    """Number the winners of these points and render each for every problem that makes another source."""
    wins: dict[Config, list[Point]] = {}
    for point in points:
        if point.variant is not None and point.ours is not None:
            wins.setdefault(point.variant, []).append(point)
    order = sorted(wins, key=lambda variant: -len(wins[variant]))  # stable: ties as they first appear
    texts: dict[str, list[tuple[int, Point]]] = {}
    found: dict[int, list[str]] = {}
    unrendered: dict[int, str] = {}
    for number, variant in enumerate(order, 1):
        for point in wins[variant]:
            try:
                text = _source(variant, point)
            except ConfigError as error:
                unrendered[number] = str(error)
                continue
            texts.setdefault(text, []).append((number, point))
            if text not in found.setdefault(number, []):
                found[number].append(text)
    anchors = {text: f"source-{number}" for number, text in enumerate(texts, 1)}
    entries = tuple(
        Entry(
            number,
            variant,
            tuple(wins[variant]),
            tuple(anchors[text] for text in found.get(number, ())),
            unrendered.get(number, ""),
        )
        for number, variant in enumerate(order, 1)
    )
    sources = tuple(
        Source(anchors[text], _title(order, uses), _uses(uses), text) for text, uses in texts.items()
    )
    return Catalogue(entries, sources)


def _source(variant: Config, point: Point) -> str:
    """The CUDA source of a variant for a workload.

    Raises:
        ConfigError: this sparsegen does not have the family or a value of the config (any more).
    """
    if not variant.is_known:
        raise ConfigError(f"no installed family declares {variant}")
    return render(family_of(variant), point.problem, variant)


def _title(order: Sequence[Config], uses: Sequence[tuple[int, Point]]) -> str:
    number, point = uses[0]
    return f"V{number}: {order[number - 1].family_name}, {point.kind}"


def _uses(uses: Sequence[tuple[int, Point]]) -> str:
    shapes = Counter(words.sizes(p.problem) for _, p in uses)
    return f"for {words.listed(shapes, most=3)}"
