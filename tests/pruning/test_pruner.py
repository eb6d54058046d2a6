"""Every pattern against a reference written independently, on random weights and on a network's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pruning_reference import (
    Array,
    as_matrix,
    kept_count,
    masks,
    n_of_m_mask,
    network_weights,
    random_weights,
)

import sparsegen
from sparsegen.errors import MatrixError, PruningError

SETS = {"random": random_weights(), "network": network_weights()}
RANKED = ("uniform", "unstructured", "block", "blocked-uniform")


def options(pattern: str, block: tuple[int, int]) -> dict[str, Any]:
    return {"pattern": pattern} | ({"block": block} if "block" in pattern else {})


def same_as_masked(pruned: dict[str, Array], weights: dict[str, Array], kept: dict[str, Array]) -> None:
    for name, array in weights.items():
        expected = np.where(kept[name].reshape(array.shape), array, 0)
        assert np.array_equal(pruned[name], expected), name
        assert pruned[name].dtype == array.dtype


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("pattern", RANKED)
def test_the_reference_keeps_the_same(pattern: str, sparsity: float, scope: str, kind: str) -> None:
    weights, block = SETS[kind], (4, 8)
    found = sparsegen.prune(weights, sparsity=sparsity, scope=scope, **options(pattern, block))
    kept = masks({n: as_matrix(a) for n, a in weights.items()}, pattern, sparsity, scope, block)
    same_as_masked(found.weights, weights, kept)
    total = lost = 0.0
    for layer in found.report.layers:
        matrix, mask = as_matrix(weights[layer.name]).astype(np.float64), kept[layer.name]
        lengths = mask.sum(axis=1)
        energy = math.fsum((matrix**2)[mask].tolist()) / math.fsum((matrix**2).ravel().tolist())
        total, lost = total + float((matrix**2).sum()), lost + float((matrix**2)[~mask].sum())
        assert layer.kept == layer.features.nnz == mask.sum()
        assert layer.sparsity == pytest.approx(1 - mask.mean())
        assert layer.kept_energy == pytest.approx(energy)
        assert layer.features.row_max == lengths.max() and layer.features.row_mean == lengths.mean()
        assert layer.features.row_cov == pytest.approx(lengths.std() / lengths.mean() if lengths.any() else 0)
    assert found.report.kept_energy == pytest.approx(1 - lost / total)
    assert found.report.sparsity == pytest.approx(
        1 - sum(int(m.sum()) for m in kept.values()) / found.report.size
    )


@pytest.mark.parametrize("nm", [(64, 2, 8), (3, 1, 16), (32, 3, 5)])
def test_blocks_of_rows_choose_columns_of_most_energy(nm: tuple[int, int, int]) -> None:
    weights = np.random.default_rng(0).standard_normal((100, 67)).astype(np.float32)
    found = sparsegen.prune(weights, pattern="nm", nm=nm)
    rows, n, m = nm
    expected = np.zeros_like(weights)
    for first in range(0, 100, rows):
        for left in range(0, 67, m):
            part = weights[first : first + rows, left : left + m]
            columns = np.sort(np.argsort(-np.square(part.astype(np.float64)).sum(axis=0), kind="stable")[:4])
            for row in range(len(part)):
                kept = columns[np.argsort(-np.abs(part[row, columns]), kind="stable")[:n]]
                expected[first + row, left + kept] = part[row, kept]
    np.testing.assert_array_equal(found.weights, expected)
    assert f"nm {rows}:{n}:{m}" in found.report.summary


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("nm", [(2, 4), (1, 4), (3, 10)])
def test_n_of_m_is_the_reference(nm: tuple[int, int], kind: str) -> None:
    weights = SETS[kind]
    found = sparsegen.prune(weights, pattern="nm", nm=nm)
    same_as_masked(found.weights, weights, {n: n_of_m_mask(as_matrix(a), *nm) for n, a in weights.items()})
    assert found.report.request.scope is None


def test_uniform_rows_are_equal_and_cost_little() -> None:
    weights = SETS["network"]
    reports = {p: sparsegen.prune(weights, pattern=p, sparsity=0.8, scope="layer").report for p in RANKED[:2]}
    assert all(layer.features.row_cov == 0 for layer in reports["uniform"].layers)
    assert any(layer.features.row_cov > 0.2 for layer in reports["unstructured"].layers)
    assert reports["unstructured"].kept_energy > reports["uniform"].kept_energy > 0.5


def test_a_layer_that_loses_everything_is_named() -> None:
    weights = {"large": np.ones((8, 8), np.float32), "small": np.full((2, 8), 1e-3, np.float32)}
    report = sparsegen.prune(weights, pattern="unstructured", sparsity=0.5).report
    assert report.emptied == ("small",) and report.layers[1].kept_energy == 0
    weights["empty"] = np.zeros((4, 8), np.float32)
    report = sparsegen.prune(weights, pattern="unstructured", sparsity=0.5).report
    assert not report.layers[2].kept and report.emptied == ("small",), "it had nothing to lose"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_kind_and_type_are_kept(dtype: str) -> None:
    array = np.asfortranarray(random_weights()["a"]).astype(dtype)
    before = array.copy()
    found = sparsegen.prune(array, sparsity=0.75)
    assert isinstance(found.weights, np.ndarray) and found.weights.dtype == array.dtype
    assert found.weights.flags.f_contiguous and np.array_equal(array, before), "what was given is not changed"
    assert np.array_equal(np.count_nonzero(found.weights, axis=1), np.full(24, 10))


def test_float64_is_ranked_as_float64() -> None:
    array = np.full((1, 4), 1.0)
    array[0, 2] += 1e-12  # lost in float32
    mixed = {"a": array, "b": np.zeros((1, 4), np.float32)}
    found = sparsegen.prune(mixed, pattern="unstructured", sparsity=0.875)
    assert np.flatnonzero(found.weights["a"]).tolist() == [2] and not found.weights["b"].any()


@pytest.mark.parametrize("kept", range(7))
def test_types_that_differ_are_compared_exactly(kept: int) -> None:
    """1 ± 1e-12 rounds to 1 in float32, but is another magnitude."""
    weights = {
        "a": np.array([[1.0, 2.0, 1.0]], np.float32),
        "z": np.array([[1 + 1e-12, 3.0, 1 - 1e-12]]),
    }
    falling = [("z", 1), ("a", 1), ("z", 0), ("a", 0), ("a", 2), ("z", 2)]
    pruned = sparsegen.prune(weights, pattern="unstructured", sparsity=(6.3 - kept) / 6.4 if kept < 6 else 0)
    found = {(name, int(j)) for name in weights for j in np.flatnonzero(pruned.weights[name])}
    assert found == set(falling[:kept])


def test_only_matrices_and_convolutions_of_floats_are_pruned() -> None:
    others = {
        "bias": np.ones(4, np.float32),
        "scale": np.array(1, np.float32),
        "three": np.ones((2, 2, 2), np.float32),
        "index": np.ones((4, 4), np.int64),
        "mask": np.ones((4, 4), np.bool_),
        "complex": np.ones((4, 4), np.complex64),
    }
    found = sparsegen.prune({"w": np.ones((4, 4), np.float32), **others}, sparsity=0.5)
    assert [layer.name for layer in found.report.layers] == ["w"]
    assert {c.name: c.reason for c in found.report.copied} == {
        "bias": "1-D",
        "scale": "0-D",
        "three": "3-D",
        "index": "elements of int64",
        "mask": "elements of bool",
        "complex": "elements of complex64",
    }
    assert list(found.weights) == ["w", *others] and all(
        found.weights[name] is others[name] for name in others
    )


def test_names_select() -> None:
    weights = network_weights()
    found = sparsegen.prune(weights, sparsity=0.5, tensors=["mlp.*", "head.weight"], exclude=["*.down.*"])
    assert [layer.name for layer in found.report.layers] == ["mlp.up.weight", "head.weight"]
    bracketed = {"w[0]": np.ones((2, 2)), "w0": np.ones((2, 2))}
    for glob, name in (("w[0]", "w[0]"), ("w[[]*", "w[0]"), ("w?", "w0")):
        assert name in [
            s.name for s in sparsegen.prune(bracketed, sparsity=0.5, tensors=[glob]).report.layers
        ]
    reasons = {c.name: c.reason for c in found.report.copied}
    assert reasons["mlp.down.weight"] == "excluded" and reasons["stem.weight"].startswith("not among")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_cannot_be_ranked_is_refused_with_its_place(bad: float) -> None:
    weights = network_weights()
    weights["block.conv.weight"][3, 2, 1, 0] = bad
    with pytest.raises(MatrixError, match=r"'block\.conv\.weight', index \(3, 2, 1, 0\)"):
        sparsegen.prune(weights, sparsity=0.5)
    assert sparsegen.prune(weights, sparsity=0.5, exclude=["block.conv*"]).report.layers
    with pytest.raises(MatrixError, match=r"index \(0, 1\).*1e\+200"):
        sparsegen.prune(np.array([[1.0, 1e200]]), sparsity=0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparsity": 0.5, "pattern": "diagonal"}, "none of uniform"),
        ({"sparsity": 0.5, "pattern": "unstructed"}, r"nm \(did you mean 'unstructured'\?\)"),
        ({"pattern": "2:4"}, r"pattern = '2:4' is written pattern='nm', nm=\(2, 4\)"),
        ({"sparsity": 0.5, "scope": "row"}, "none of global, layer"),
        ({}, "needs a sparsity"),
        ({"sparsity": 90}, r"0\.9 is 90 %"),
        ({"sparsity": 1.0}, "not within"),
        ({"sparsity": -0.1}, "not within"),
        ({"sparsity": float("nan")}, "not within"),
        ({"sparsity": 0.5, "block": (4, 4)}, "has no blocks"),
        ({"sparsity": 0.5, "pattern": "block", "block": (0, 4)}, "at least 1x1"),
        ({"sparsity": 0.5, "nm": (2, 4)}, "has no N:M"),
        ({"pattern": "nm", "scope": "layer"}, "no scope"),
        ({"pattern": "nm", "nm": (4, 4)}, "less than all"),
        ({"pattern": "nm", "nm": (0, 4)}, "at least 1"),
        ({"pattern": "nm", "nm": (64, 2, 4)}, "in 4 of M columns: M must be more"),
        ({"pattern": "nm", "nm": (0, 2, 8)}, r"nm\[0\]"),
        ({"pattern": "nm", "sparsity": 0.9}, r"2:4 prunes 0\.5 .* cannot prune 0\.9"),
        ({"sparsity": 0.5, "tensors": ["none*"]}, "matches none of a, b"),
        ({"sparsity": 0.5, "exclude": ["none*"]}, "matches none of a, b"),
        ({"sparsity": 0.5, "exclude": ["*"]}, "nothing to prune"),
    ],
)
def test_requests_that_cannot_be_met(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PruningError, match=message):
        sparsegen.prune(random_weights(), **arguments)


def test_a_tensor_asked_for_that_cannot_be_pruned() -> None:
    with pytest.raises(PruningError, match=r"'bias' .*bias \(1-D\)"):
        sparsegen.prune({"bias": np.ones(3), "w": np.ones((2, 2))}, sparsity=0.5, tensors=["bias"])


@pytest.mark.parametrize("weights", [[[1.0, 2.0]], "w.npz", {"a": [1.0]}, {1: np.ones((2, 2))}, None])
def test_weights_of_another_kind(weights: Any) -> None:
    with pytest.raises(MatrixError):
        sparsegen.prune(weights, sparsity=0.5)


def test_weights_without_elements() -> None:
    found = sparsegen.prune(
        {"e": np.ones((0, 4), np.float32), "f": np.ones((3, 0), np.float32)}, sparsity=0.5
    )
    assert found.report.size == 0 and found.report.sparsity == 0 and found.report.kept_energy == 1
    assert sparsegen.prune(np.ones((0, 8)), pattern="nm").report.emptied == ()
    for pattern in RANKED:
        assert sparsegen.prune(np.zeros((2, 2)), pattern=pattern, sparsity=0.5).report.kept_energy == 1


def test_blocks_larger_than_the_layer_are_the_layer() -> None:
    weights = {"a": np.ones((4, 6), np.float32), "b": np.full((4, 6), 2, np.float32)}
    for pattern in ("block", "blocked-uniform"):
        found = sparsegen.prune(weights, pattern=pattern, sparsity=0.5, block=(10**9, 10**9)).weights
        assert not found["a"].any() and found["b"].all()


def test_the_sparsity_is_the_decimal_number() -> None:
    """0.29 · 50 is 14.5 and rounds up, though the nearest float to 0.29 lies below."""
    found = sparsegen.prune(np.arange(1.0, 51).reshape(5, 10), pattern="unstructured", sparsity=0.29)
    assert found.report.kept == kept_count(0.29, 50) == 35
