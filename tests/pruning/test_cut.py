"""The cut on its own: groups of unequal sizes, several layers, both score types, digits and chunks."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from sparsegen.pruning import cut
from sparsegen.pruning.cut import find_cuts, weights_kept
from sparsegen.pruning.groups import Groups, largest_per_row

scores = st.sampled_from([0.0, 5e-324, 1e-40, 0.5, 1.0, 1.0 + 2**-52, 3e38, 1e120]) | st.floats(0, 1e30)
layers = st.lists(st.lists(st.tuples(scores, st.integers(1, 9)), max_size=12), min_size=1, max_size=3)


@given(layers, st.data())
def test_the_head_of_the_order_that_is_nearest(
    given_layers: list[list[tuple[float, int]]], data: st.DataObject
) -> None:
    named = [
        (
            str(i),
            Groups(np.array([s for s, _ in layer], np.float64), np.array([n for _, n in layer], np.int64)),
        )
        for i, layer in enumerate(given_layers)
    ]
    total = sum(n for layer in given_layers for _, n in layer)
    keep = data.draw(st.integers(0, total))
    cuts = find_cuts(lambda: named, keep, np.dtype(np.float64))
    kept = [cuts[name].kept(groups).tolist() for name, groups in named]
    order = sorted(
        ((-s, i, j, n) for i, layer in enumerate(given_layers) for j, (s, n) in enumerate(layer)),
    )
    through = [0, *np.cumsum([n for *_, n in order]).tolist()]
    length = min(range(len(through)), key=lambda count: (abs(through[count] - keep), count))
    expected = [[False] * len(layer) for layer in given_layers]
    for _, i, j, _ in order[:length]:
        expected[i][j] = True
    assert kept == expected


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_t(3, 1000).astype(np.float32)
    groups = Groups(np.abs(values), 1)

    def found() -> tuple[float, int]:
        one = find_cuts(lambda: [("w", groups)], 123, np.dtype(np.float32))["w"]
        return float(one.threshold[0]), int(one.kept(groups).sum())

    whole = found()
    monkeypatch.setattr(cut, "CHUNK", 7)
    assert found() == whole == (float(np.sort(np.abs(values))[-123]), 123)


def test_nothing_and_everything() -> None:
    groups = Groups(np.array([0.0, 1.0], np.float32), 1)
    for keep in (0, 2):
        one = find_cuts(lambda: [("w", groups)], keep, np.dtype(np.float32))["w"]
        assert one.kept(groups).tolist() == [bool(keep)] * 2


@given(st.floats(0, 1, exclude_max=True), st.integers(0, 10**12))
def test_weights_kept(sparsity: float, size: int) -> None:
    kept = weights_kept(sparsity, size)
    assert 0 <= kept <= size and abs(kept - (1 - sparsity) * size) <= 0.5 + 1e-3 + size * 1e-15
    assert weights_kept(0.5, 5) == 2 and weights_kept(0.29, 50) == 35


def test_the_largest_of_each_row() -> None:
    tied = np.array([[1, 2, 2, 2], [3, 1, 1, 0], [0, 0, 0, 0]], np.float32)
    assert largest_per_row(tied, 2).astype(int).tolist() == [[0, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert largest_per_row(tied, 4).all() and not largest_per_row(tied, 0).any()
