"""Kinds of problems that the contract tests draw for a family: dtypes, layouts, epilogues, sizes, masks and batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from sparsegen.kernels.base import AnyFamily
from sparsegen.matrix.formats import CsrMatrix
from sparsegen.operators import (
    BlockAttentionProblem,
    DType,
    Epilogue,
    FactorType,
    ItemValues,
    Layout,
    MaskedConv2dProblem,
    MaskedConv2dWeightsProblem,
    MaskedProblem,
    PagedAttentionProblem,
    PointsProblem,
    Problem,
    SpmmProblem,
    fields_of,
)
from sparsegen.testing.matrices import matrices

Traits = tuple[tuple[str, StrEnum], ...]
BATCH = 3  # batch elements; an odd number, so that neither begins where vectors do
# Blocks of masks; small ones, so that the small matrices have several.
BLOCKS = "16x16", "32x16", "32x64", "64x16", "64x64", "128x64"
NARROW_BLOCK = "64x128"  # for 8-bit factors, whose stages are as long
DENSITIES = (0.3, 0.5, 0.9)
# Of convolutions; every image, if of one pixel, is large enough for these filters.
CONVOLUTIONS: tuple[dict[str, str], ...] = (
    {"filter_size": "3x3", "padding": "1", "mask_block": "16x16"},
    {"filter_size": "3x3", "padding": "1", "mask_block": "8x24"},
    {"filter_size": "1x1", "padding": "0", "mask_block": "8x8"},
    {"filter_size": "5x3", "padding": "2x1", "mask_block": "16x8"},
    {"filter_size": "5x5", "padding": "2", "mask_block": "16x16"},
    {"filter_size": "3x3", "padding": "1", "mask_block": "8x16", "stride": "2"},
    {"filter_size": "1x7", "padding": "0x3", "mask_block": "8x16"},
    {"filter_size": "4x2", "padding": "3x1", "mask_block": "5x7", "stride": "1x2", "dilation": "2x1"},
)
# Of attention: what queries see by their places, and blocks of masks.
SPANS = ("full", "causal", "causal@start", "full:20", "causal:30+5")
ATTENTION_BLOCKS = ("16x16", "16x64", "32x32", "64x64", "64x128", "128x64", "128x128", "256x256")
PAGES = ("16", "32", "64", "128", "256")  # tokens of each
ROOMS = (0, 12)  # partial blocks
MOST_PIXELS = 1500  # of an image: the emulator's products are slow
FILTER_VOLUMES = ("3x3x3", "1x1x1", "5x1x3", "1x3x5")
MOST_FEATURES = 9000  # of all points
OWN_KINDS = ("item_values", "factor_type", "given")  # traits that few kinds have other than by default
MOST_KINDS = 40  # in all; of more as few as have every two traits together
BATCH_MATRICES = ("odd_shape", "empty_rows", "no_nonzeros", "no_rows")
SIZES = (1, 7, 8, 32, 40, 64, 132)  # of B's columns (spmm), of k (sddmm)
# Of convolutions, instead of these: the tile of every choice divides some, and products stay few.
SIZES_OF = {
    "channels": (1, 7, 16, 24, 32, 64),
    "filters": (3, 20, 32, 64, 128, 256),
    "images": (1, 2),
    "kv_heads": (1, 2),
    "group": (1, 3),
    "head_dim": (16, 64, 80, 128),
}
CONVOLVED = (MaskedConv2dProblem, MaskedConv2dWeightsProblem)


@dataclass(frozen=True)
class Kind:
    """A problem without its matrix: dense sizes and traits by name."""

    problem_type: type[Problem]
    sizes: tuple[tuple[str, int], ...]
    traits: tuple[tuple[str, StrEnum], ...]
    batch: int = 1
    parameters: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def spmm(cls, n: int, dtype: DType, layout: Layout, epilogue: Epilogue) -> Kind:
        return cls(SpmmProblem, (("n", n),), (("dtype", dtype), ("layout", layout), ("epilogue", epilogue)))

    @classmethod
    def sized(cls, family: AnyFamily, size: int, traits: tuple[tuple[str, StrEnum], ...]) -> Kind:
        """One of the family's operator with this size for each dense size."""
        of = family.problem_type
        return cls(of, tuple((name, size) for name in of.dense_sizes), traits)

    def __str__(self) -> str:
        named = (*self.sizes, *self.parameters)
        words = [*(str(t) for _, t in self.traits), *(f"{name}{value}" for name, value in named)]
        return "-".join([*words, *([f"batch{self.batch}"] if self.batch > 1 else [])])

    def problem(self, matrix: CsrMatrix) -> Problem:
        return self._of_shape(matrix.shape)

    @cache  # noqa: B019 - there are some ten thousand
    def _of_shape(self, shape: tuple[int, int]) -> Problem:
        options = dict((*self.sizes, *self.traits, *self.parameters, ("batch", self.batch)))
        return self.problem_type.of(shape, **options)

    @cache  # noqa: B019 - there are a few thousand
    def is_computed(self, family: AnyFamily) -> bool:
        """True if the family computes such a problem of the smallest matrix, or of one of whole chunks; before blocks
        are drawn, with some.
        """
        if issubclass(self.problem_type, MaskedProblem) and not self.parameters:
            return any(replace(self, parameters=(("block", b),)).is_computed(family) for b in BLOCKS)
        return any(
            family.computes(self.problem(matrices()[name])) for name in ("one_element", "aligned_shape")
        )

    def with_sizes(self, size: int) -> Kind:
        """The kind with this size for each, and as many groups if it has a filter for each channel."""
        parameters = tuple((name, size if name == "groups" else value) for name, value in self.parameters)
        return replace(self, sizes=tuple((name, size) for name, _ in self.sizes), parameters=parameters)


def allows(problem_type: type[Problem], matrix: CsrMatrix) -> bool:
    """True if problems may have such a shape: none is empty without a pattern, and images and lists of points are
    small.
    """
    rows, columns = matrix.shape
    if problem_type in CONVOLVED and rows * columns > MOST_PIXELS:
        return False
    if issubclass(problem_type, PointsProblem) and rows * columns > MOST_FEATURES:
        return False
    return problem_type.has_pattern or min(matrix.shape) > 0


def matrices_of(family: AnyFamily) -> list[str]:
    """The matrices of whose shape the family computes any kind of problem."""
    some = list(kinds(family, random.Random(0)))
    return [
        name
        for name, matrix in matrices().items()
        if allows(family.problem_type, matrix)
        and any(family.computes(kind.with_sizes(size).problem(matrix)) for kind in some for size in SIZES)
    ]


def kinds(family: AnyFamily, rng: random.Random) -> Iterator[Kind]:
    """Every dtype, layout and epilogue that the family computes, each with some sizes; of very many, some."""
    sizes_of = _sizes_of(family)
    some = [traits for traits, computed in sizes_of.items() if computed]
    names = family.problem_type.dense_sizes
    for traits in some if len(some) <= MOST_KINDS else in_pairs(some):
        sizes = tuple((name, rng.choice(sizes_of[traits])) for name in names)
        kind = Kind(family.problem_type, sizes, traits)
        if _is_depthwise(family):
            kind = replace(kind, parameters=(("groups", 1),)).with_sizes(rng.choice(SIZES_OF["channels"]))
        else:
            for name in names:
                kind = _resized(family, kind, name, rng)
        yield replace(kind, parameters=_parameters(family, kind, rng))


@cache
def _sizes_of(family: AnyFamily) -> dict[Traits, list[int]]:
    """Returns the dense sizes that the family computes with each combination of traits."""
    return {
        traits: [size for size in SIZES if Kind.sized(family, size, traits).is_computed(family)]
        for traits in traits_of(family.problem_type)
    }


def _is_depthwise(family: AnyFamily) -> bool:
    """True if a family computes convolutions of one filter for each channel, and none of one group."""
    if family.problem_type is not MaskedConv2dProblem:
        return False
    groups = (replace(Kind.sized(family, 16, ()), parameters=(("groups", count),)) for count in (1, 16))
    return [kind.is_computed(family) for kind in groups] == [False, True]


def _resized(family: AnyFamily, kind: Kind, name: str, rng: random.Random) -> Kind:
    """Returns the kind with a size of `SIZES_OF` for this name that the family computes, if there is one."""
    some = [
        replace(kind, sizes=(*dict(kind.sizes, **{name: size}).items(),)) for size in SIZES_OF.get(name, ())
    ]
    return rng.choice([one for one in some if one.is_computed(family)]) if some else kind


def _parameters(family: AnyFamily, kind: Kind, rng: random.Random) -> tuple[tuple[str, Any], ...]:
    """Draws blocks and a density for operators with masks; for convolutions from those that the family computes."""
    density = ("density", rng.choice(DENSITIES))
    if issubclass(kind.problem_type, PointsProblem):
        return (("filter_volume", rng.choice(FILTER_VOLUMES)), density)
    if kind.problem_type in CONVOLVED:
        some = [
            replace(kind, parameters=(*kind.parameters, *sides.items(), density)) for sides in CONVOLUTIONS
        ]
        return rng.choice([one for one in some if one.is_computed(family)]).parameters
    if issubclass(kind.problem_type, BlockAttentionProblem):
        blocks = [
            b for b in ATTENTION_BLOCKS if replace(kind, parameters=(("block", b),)).is_computed(family)
        ]
        drawn = (
            ("block", rng.choice(blocks or list(ATTENTION_BLOCKS))),
            density,
            ("span", rng.choice(SPANS)),
        )
        partial = replace(kind, parameters=(*drawn, ("partial_blocks", rng.choice(ROOMS))))
        return partial.parameters if partial.is_computed(family) else drawn
    if issubclass(kind.problem_type, PagedAttentionProblem):
        return (("page", rng.choice(PAGES)), density)
    if not issubclass(kind.problem_type, MaskedProblem):
        return ()
    blocks = [block for block in BLOCKS if replace(kind, parameters=(("block", block),)).is_computed(family)]
    return (("block", rng.choice(blocks)), density)


def of_8bit_factors(family: AnyFamily, rng: random.Random) -> Iterator[Kind]:
    """Products with masks of 8-bit factors, each pair of their types in one kind, if the family computes any."""
    if not issubclass(family.problem_type, MaskedProblem):
        return
    for types in FactorType:
        some = [
            replace(
                Kind.sized(family, size, (*traits, ("factor_type", types))),
                parameters=(("block", NARROW_BLOCK),),
            )
            for traits in traits_of(family.problem_type)
            for size in (32, 64, 160)
        ]
        computed = [kind for kind in some if kind.is_computed(family)]
        if types is not FactorType.SAME and computed:
            chosen = rng.choice(computed)
            yield replace(chosen, parameters=(*chosen.parameters, ("density", rng.choice(DENSITIES))))


def batches(family: AnyFamily, rng: random.Random) -> Iterator[Kind]:
    """Two batches in two dtypes, if the family computes any; of a product, values for all elements and for each."""
    listed = [kind for kind in kinds(family, rng) if replace(kind, batch=BATCH).is_computed(family)]
    own: tuple[tuple[str, StrEnum], ...] = ()
    for dtype in rng.sample(list(DType), 2):
        of_dtype = [kind for kind in listed if ("dtype", dtype) in kind.traits]
        if of_dtype:
            chosen = rng.choice(of_dtype)
            yield replace(chosen, batch=BATCH, traits=(*chosen.traits, *own))
            if family.problem_type is SpmmProblem:
                own = () if own else (("item_values", ItemValues.OWN),)


def traits_of(problem_type: type[Problem]) -> Iterator[Traits]:
    """Every combination of the traits that an operator's problems without a batch have."""
    fields = fields_of(problem_type).items()
    types = {name: field.kind for name, field in fields if field.is_trait and name not in OWN_KINDS}
    traits = {name: list(kind) for name, kind in types.items() if issubclass(kind, StrEnum)}
    for members in itertools.product(*traits.values()):
        yield tuple(zip(traits, members, strict=True))


def in_pairs(combinations: Sequence[Traits]) -> list[Traits]:
    """Few of them, in which every two traits that come together do so, in order."""
    pairs = {traits: set(itertools.combinations(traits, 2)) for traits in combinations}
    missing = set().union(*pairs.values())
    chosen = set()
    while missing:
        best = max(combinations, key=lambda traits: len(pairs[traits] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return [traits for traits in combinations if traits in chosen]
