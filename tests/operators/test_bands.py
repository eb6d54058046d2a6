"""Bands: how many places they hold, against the places themselves."""

from __future__ import annotations

import itertools

import pytest

from sparsegen.operators.attention.span import Band, Span


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 12), (12, 7), (9, 9)])
def test_places(queries: int, keys: int) -> None:
    for causal, window, from_start in itertools.product((False, True), (0, 1, 3, 8, 40), (False, True)):
        for sinks in (0, 1, 5, 30) if window else (0,):
            band = Band.of(queries, keys, causal=causal, window=window, sinks=sinks, from_start=from_start)
            seen = band.seen(slice(0, queries), keys)
            assert band.places(queries, keys) == seen.sum(), band
            assert band.seen_of_blocks(queries, keys, 4).sum() == seen.sum(), band
            assert Span(causal, from_start, window, sinks).share(queries, keys) == seen.mean()
