"""Bands and spans: which keys queries see by their places."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from sparsegen.errors import ConfigError, OperandError
from sparsegen.operators import Band, BlockAttentionProblem, Span
from sparsegen.operators.attention.span import kept_band

SIZES = [(1, 1), (7, 7), (5, 12), (12, 5)]


def seen_by(i: int, j: int, queries: int, keys: int, options: dict[str, Any]) -> bool:
    """True if query i sees key j, by the arguments of `Band.of`."""
    place = i if options["from_start"] else i + keys - queries
    if options["causal"] and j > place:
        return False
    window = options["window"]
    near = not window or abs(place - j) < window
    return near or (j < options["sinks"] and (options["causal"] or j - place < window))


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_bands_are_what_their_arguments_say(queries: int, keys: int) -> None:
    for causal, window, sinks, from_start in itertools.product(
        (True, False), (0, 1, 3), (0, 2), (True, False)
    ):
        if sinks and not window:
            continue
        options = {"causal": causal, "window": window, "sinks": sinks, "from_start": from_start}
        band = Band.of(queries, keys, **options)  # type: ignore[arg-type]
        seen = band.seen(slice(0, queries), keys)
        right = [[seen_by(i, j, queries, keys, options) for j in range(keys)] for i in range(queries)]
        np.testing.assert_array_equal(seen, right, str(options))
        for columns in (1, 4, 16):
            counts = np.add.reduceat(seen.astype(np.int64), np.arange(0, keys, columns), axis=1)
            np.testing.assert_array_equal(band.seen_of_blocks(queries, keys, columns), counts, str(options))


@pytest.mark.parametrize("text", ["full", "causal", "full@start", "causal:12", "causal@start:12+3", "full:7"])
def test_spans_are_written_as_they_are_read(text: str) -> None:
    span = Span.parse(text)
    assert str(span) == span.json == text and Span.parse(span) is span
    assert span.share(20, 30) == span.band(20, 30).seen(slice(0, 20), 30).mean()


@pytest.mark.parametrize("text", ["", "causal:", "causal+4", "full:-1", "causal@end", 3])
def test_what_is_no_span_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match='no span: write "full" or "causal"'):
        BlockAttentionProblem.of((4, 4), kv_heads=1, group=1, head_dim=16, span=text)


def test_sinks_need_a_window() -> None:
    with pytest.raises(OperandError, match="sinks: keys beside a window, and there is none"):
        Band.of(4, 4, sinks=2)
    with pytest.raises(OperandError, match="window = -1 is below 0"):
        Band.of(4, 4, window=-1)


def test_kept_bands_are_three_numbers() -> None:
    band = Band(-3, 0, 2)
    np.testing.assert_array_equal(kept_band({}, band), [-3, 0, 2])
    np.testing.assert_array_equal(kept_band({"band": [1, 2, 3]}, band), [1, 2, 3])
    for wrong in ([1, 2], [0.5, 1.0, 2.0], "causal"):
        with pytest.raises(ConfigError, match="expected a Band or three whole numbers"):
            kept_band({"band": wrong}, band)
