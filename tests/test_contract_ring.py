"""Contract tests that `make test` leaves out cover nothing of their own."""

from __future__ import annotations

from typing import Any

import pytest
from contract_ring import (
    LEAST,
    all_variants,
    by_matrices,
    dealt_in_long_ring,
    dealt_matrices,
    in_rings,
    shown_on,
    with_new_values,
)
from test_contract_gpu import problems_at_size

from sparsegen.kernels import families
from sparsegen.kernels.base import AnyFamily
from sparsegen.operators import BlockAttentionProblem
from sparsegen.testing.cover import cover, long_ring, short_ring, shown, together
from sparsegen.testing.variants import sample

each_family = pytest.mark.parametrize("family", families().values(), ids=families())


def test_a_cover_shows_all_and_none_of_it_is_in_vain() -> None:
    items = ["ab", "bc", "abcd", "de", "xyz", "x", "zyx", ""]
    chosen = cover(items, frozenset)
    assert chosen == ["abcd", "de", "xyz"]
    assert cover([], frozenset) == []


@each_family
def test_the_short_ring_shows_all_of_a_family(family: AnyFamily) -> None:
    """Every line of code, trait and matrix that any variant of the sample has."""
    everything = frozenset[Any]().union(*map(shown, sample(family)))
    assert frozenset[Any]().union(*map(shown, short_ring(family))) == everything
    assert {"dtype", "batch", "matrix", "line"} <= {entry[0] for entry in everything}
    assert set(short_ring(family)) <= set(sample(family))


@each_family
def test_the_short_ring_meets_every_matrix_with_few_for_each_variant(family: AnyFamily) -> None:
    variants = short_ring(family)
    dealt = dealt_matrices(variants)
    assert {name for names in dealt.values() for name in names} == {m for v in variants for m in v.matrices}
    assert all(
        set(names) <= set(v.matrices) and len(names) >= min(LEAST, len(v.matrices))
        for v, names in dealt.items()
    )


@each_family
def test_every_trait_and_choice_meets_every_matrix_that_it_can(family: AnyFamily) -> None:
    variants = long_ring(family)
    dealt = dealt_in_long_ring(variants)
    met, all_there = (
        frozenset[Any]().union(*(shown_on(v, name) for v in variants for name in names(v)))
        for names in (lambda v: dealt[v], lambda v: v.matrices)
    )
    assert met == all_there
    assert all(len(set(names)) >= min(LEAST, len(v.matrices)) for v, names in dealt.items())


def test_the_rings_together_have_the_matrices_that_were_dealt() -> None:
    met: dict[tuple[str, str], list[str]] = {}
    for parameter in by_matrices(all_variants()):
        [variant] = parameter.values
        met.setdefault((str(variant), variant.source), []).extend(variant.matrices)
    for family in families().values():
        for variant, names in dealt_in_long_ring(long_ring(family)).items():
            assert sorted(met.pop((str(variant), variant.source))) == sorted(names)
    assert not met


@each_family
def test_the_long_ring_makes_every_choice_and_shows_every_two_traits(family: AnyFamily) -> None:
    drawn, ring = sample(family), long_ring(family)
    assert set(short_ring(family)) <= set(ring) <= set(drawn)
    everything = frozenset[Any]().union(*map(together, drawn))
    assert frozenset[Any]().union(*map(together, ring)) == everything
    for tunable in family.config_type.tunables():
        made = {getattr(variant.config, tunable.name) for variant in ring}
        assert made == {getattr(variant.config, tunable.name) for variant in drawn}, tunable.name


@each_family
def test_values_are_renewed_in_the_short_ring_too(family: AnyFamily) -> None:
    assert set(short_ring(family)) & set(with_new_values())


@pytest.mark.parametrize("name", ["tma_attention", "tma_attention_backward"])
def test_attention_at_size_takes_the_host_a_minute(name: str) -> None:
    """GPU machines run it within the seconds of the whole ring."""
    sized = [problem for problem, _ in problems_at_size(families()[name], 256)]
    attention = [problem for problem in sized if isinstance(problem, BlockAttentionProblem)]
    assert len(attention) == len(sized) > 20
    assert sum(p.batch * p.kv_heads * p.group * p.queries * p.keys for p in attention) < 250_000_000


def test_both_rings_are_run() -> None:
    parameters = list(in_rings(all_variants()))
    short = {variant for family in families().values() for variant in short_ring(family)}
    long = {variant for family in families().values() for variant in long_ring(family)}
    assert [p.values[0] for p in parameters] == [v for v in all_variants() if v in long]
    assert {p.values[0] for p in parameters if not p.marks} == short
    assert len(short) < len(parameters) / 2, "else there is no need of rings"
