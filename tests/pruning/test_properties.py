"""Properties for any weights: exact counts, nested choices, idempotence, no dependence on order, ties."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from pruning_reference import Array, kept_count, masks

import sparsegen
from sparsegen.pruning import groups
from sparsegen.pruning.request import PatternName

RANKED = [name for name in PatternName if name is not PatternName.NM]
BLOCK = (2, 3)

shapes = st.tuples(st.integers(1, 6), st.integers(1, 7))
# Few values, so that most groups tie; never zero, so that nonzeros are what was kept.
tied = hnp.arrays(np.float32, shapes, elements=st.sampled_from([1.0, -1.0, 2.0, -2.0, 3.0]))
any_values = hnp.arrays(
    np.float32, shapes, elements=st.floats(-1e6, 1e6, width=32).filter(lambda value: abs(value) > 1e-6)
)
networks = st.dictionaries(st.sampled_from("abcd"), tied | any_values, min_size=1, max_size=3)
sparsities = st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9])
scopes = st.sampled_from(["global", "layer"])
patterns = st.sampled_from(RANKED)
quick = settings(max_examples=60)


def prune(weights: dict[str, Array], pattern: str, sparsity: float, scope: str) -> Any:
    block = BLOCK if "block" in pattern else None
    return sparsegen.prune(weights, pattern=pattern, sparsity=sparsity, scope=scope, block=block)


@quick
@given(networks, sparsities, scopes)
def test_unstructured_counts_are_exact(weights: dict[str, Array], sparsity: float, scope: str) -> None:
    found = prune(weights, "unstructured", sparsity, scope)
    kept = {name: np.count_nonzero(array) for name, array in found.weights.items()}
    if scope == "layer":
        assert kept == {name: kept_count(sparsity, array.size) for name, array in weights.items()}
    assert sum(kept.values()) == found.report.kept == found.report.nonzeros
    if scope == "global":
        assert found.report.kept == kept_count(sparsity, found.report.size)


@quick
@given(networks, sparsities, scopes)
def test_uniform_rows_are_equal(weights: dict[str, Array], sparsity: float, scope: str) -> None:
    found = prune(weights, "uniform", sparsity, scope)
    for name, array in found.weights.items():
        assert len(set(np.count_nonzero(array, axis=1))) == 1
        before = weights[name]
        lost = np.where(array == 0, np.abs(before), 0).max(axis=1)
        assert (np.where(array != 0, np.abs(before), np.inf).min(axis=1) >= lost).all(), "largest of each row"
        if scope == "layer":
            assert 2 * abs(np.count_nonzero(array) - kept_count(sparsity, array.size)) <= len(array)
    if scope == "global":
        tallest = max(len(array) for array in weights.values())
        assert 2 * abs(found.report.kept - kept_count(sparsity, found.report.size)) <= tallest


@quick
@given(networks, sparsities, scopes, patterns)
def test_ties_go_as_stated(weights: dict[str, Array], sparsity: float, scope: str, pattern: str) -> None:
    """Ties go by layer name, then index. Whole numbers are used, whose norms are the same in any order of summation."""
    whole = {name: np.sign(array) * np.ceil(np.abs(array) % 4) for name, array in weights.items()}
    found = prune(whole, pattern, sparsity, scope)
    expected = masks(whole, pattern, sparsity, scope, BLOCK)
    for name, array in whole.items():
        assert np.array_equal(found.weights[name], np.where(expected[name], array, 0))


@quick
@given(networks, sparsities, sparsities, scopes, patterns)
def test_more_density_only_adds(
    weights: dict[str, Array], one: float, other: float, scope: str, pattern: str
) -> None:
    dense, sparse = (prune(weights, pattern, s, scope) for s in sorted((one, other)))
    assert dense.report.kept_energy >= sparse.report.kept_energy
    for name, array in dense.weights.items():
        assert (array != 0)[sparse.weights[name] != 0].all()


@quick
@given(networks, sparsities, scopes, patterns)
def test_twice_is_once(weights: dict[str, Array], sparsity: float, scope: str, pattern: str) -> None:
    once = prune(weights, pattern, sparsity, scope).weights
    twice = prune(once, pattern, sparsity, scope).weights
    assert all(np.array_equal(once[name], twice[name]) for name in weights)


@quick
@given(networks, sparsities, scopes, patterns)
def test_the_order_of_layers_does_not_matter(
    weights: dict[str, Array], sparsity: float, scope: str, pattern: str
) -> None:
    one = prune(weights, pattern, sparsity, scope)
    other = prune(dict(reversed(weights.items())), pattern, sparsity, scope)
    assert list(other.weights) == list(reversed(weights))
    assert all(np.array_equal(one.weights[name], other.weights[name]) for name in weights)


@quick
@given(tied | any_values, st.integers(1, 5), st.integers(1, 5))
def test_every_group_of_m_keeps_n(array: Array, n: int, more: int) -> None:
    m = n + more
    found = sparsegen.prune(array, pattern="nm", nm=(n, m)).weights
    assert np.array_equal(found, sparsegen.prune(found, pattern="nm", nm=(n, m)).weights)
    for start in range(0, array.shape[1], m):
        counts = np.count_nonzero(found[:, start : start + m], axis=1)
        assert (counts == min(n, array.shape[1] - start)).all()


@pytest.mark.parametrize("pattern", RANKED)
def test_equal_weights_stay_from_the_first_on(pattern: str) -> None:
    weights = {name: np.ones((2, 6), np.float32) for name in ("b", "a")}
    found = prune(weights, pattern, 0.5, "global").weights
    assert found["a"].all() and not found["b"].any()


def test_energy_is_added_up_in_pieces_as_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).standard_normal(5 << 12).astype(np.float32)
    whole = [float(np.square(part, dtype=np.float64).sum()) for part in values[: 4 << 12].reshape(4, -1)]
    monkeypatch.setattr(groups, "_CHUNK", 1 << 12)
    monkeypatch.setattr(groups, "_PIECE", 1 << 7)
    assert groups.energy(values[: 4 << 12]) == sum(whole)
    rest = float(np.square(values[4 << 12 : -9], dtype=np.float64).sum())
    assert groups.energy(values[:-9]) == sum([*whole, rest])
    assert groups.energy(values[:0]) == 0
