"""Keys that a query may see by position alone: causal attention, windows and sink tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from sparsegen import arguments
from sparsegen.errors import ConfigError, OperandError
from sparsegen.operators.base.fields import NoValueError, Parameter
from sparsegen.system.numpy_types import Array

OPEN = 1 << 30  # a distance that no two tokens have
_WRITTEN = re.compile(r"(full|causal)(@start)?(?::(\d+))?(?:\+(\d+))?")
_EXPECTED = (
    'no span: write "full" or "causal", with "@start" where query 0 stands beside key 0 instead of the last beside the '
    'last, ":1024" for a window of so many keys, and "+64" for so many sink tokens beside it'
)


@dataclass(frozen=True, slots=True)
class Band:
    """The keys that queries see by their places, as kernels take them: data of the call, three int32.

    Query i sees key j where ``least <= j - i <= most``, or where ``j < sinks`` and ``j - i <= most``.
    """

    least: int
    most: int
    sinks: int = 0

    @classmethod
    def of(
        cls,
        queries: int,
        keys: int,
        *,
        causal: bool = False,
        window: int = 0,
        sinks: int = 0,
        from_start: bool = False,
    ) -> Self:
        """The band of ``queries`` queries and ``keys`` keys.

        Args:
            causal: no query sees a key after its own position.
            window: keys that a causal query sees, its own the last of them; without ``causal``, the distance from which
                on keys on both sides are hidden. 0: all keys.
            sinks: first keys that are visible in addition to the window, to every query from their position on.
            from_start: query 0 stands beside key 0 (PyTorch's causal attention); by default the last query stands
                beside the last key (FlashAttention's).

        Raises:
            OperandError: a number below 0, or sinks without a window.
        """
        window = arguments.whole(window, "window", OperandError, least=0)
        sinks = arguments.whole(sinks, "sinks", OperandError, least=0)
        if sinks and not window:
            raise OperandError(
                "sinks: keys beside a window, and there is none; pass window= too, or no sinks"
            )
        shift = 0 if from_start else keys - queries
        least = shift - window + 1 if window else -OPEN
        most = shift if causal else shift + window - 1 if window else OPEN
        return cls(least, most, sinks)

    @property
    def words(self) -> Array:
        """int32, as the operand ``band`` holds them."""
        return np.array([self.least, self.most, self.sinks], np.int32)

    def seen(self, queries: slice, keys: int) -> Array:
        """bool, queries × keys: which keys these queries see."""
        i, j = np.arange(queries.start, queries.stop)[:, None], np.arange(keys)
        seen: Array = ((j - i >= self.least) | (j < self.sinks)) & (j - i <= self.most)
        return seen

    def places(self, queries: int, keys: int) -> int:
        """Number of pairs of a query and a key that it sees."""
        hidden = min(self.least - 1, self.most)  # up to which distance keys are out of sight, but for sinks
        sinks = min(self.sinks, keys)
        return (
            _places_up_to(self.most, queries, keys)
            - _places_up_to(hidden, queries, keys)
            + (_places_up_to(hidden, queries, sinks))
        )

    def seen_of_blocks(self, queries: int, keys: int, columns: int) -> Array:
        """Returns the number of keys that each query sees in each block of ``columns`` keys, int64 [queries,
        blocks].
        """
        i, ends = np.arange(queries)[:, None], np.append(np.arange(0, keys, columns), keys)
        stop = np.clip(i + self.most + 1, 0, keys)  # behind the last key that is seen
        sinks = np.minimum(self.sinks, stop)
        start = np.maximum(np.maximum(i + self.least, 0), sinks)
        before = np.minimum(ends, sinks) + np.maximum(np.minimum(ends, stop) - start, 0)
        found: Array = np.diff(before)
        return found


@dataclass(frozen=True, slots=True)
class Span(Parameter):
    """The band that calls are expected to have, and that calls without one get.

    Attributes:
        window, sinks: see `Band.of`; 0 for none.
    """

    is_causal: bool = False
    from_start: bool = False
    window: int = 0
    sinks: int = 0

    @classmethod
    def parse(cls, value: object) -> Self:
        """The span that ``"causal:1024+64"`` and the like stands for."""
        if isinstance(value, cls):
            return value
        found = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
        if found is None or (found[4] and not found[3]):
            raise NoValueError(_EXPECTED)
        return cls(found[1] == "causal", bool(found[2]), int(found[3] or 0), int(found[4] or 0))

    def __str__(self) -> str:
        kind = ("causal" if self.is_causal else "full") + ("@start" if self.from_start else "")
        return kind + (f":{self.window}" if self.window else "") + (f"+{self.sinks}" if self.sinks else "")

    @property
    def json(self) -> str:
        return str(self)

    def band(self, queries: int, keys: int) -> Band:
        """The band of ``queries`` queries and ``keys`` keys."""
        return Band.of(
            queries,
            keys,
            causal=self.is_causal,
            window=self.window,
            sinks=self.sinks,
            from_start=self.from_start,
        )

    def share(self, queries: int, keys: int) -> float:
        """The part of all pairs of a query and a key that see each other."""
        return self.band(queries, keys).places(queries, keys) / (queries * keys)


FULL = Span()


def _places_up_to(most: int, queries: int, keys: int) -> int:
    """Number of places (i, j) with j - i <= most."""
    first = min(max(-most - 1, 0), queries)  # the first query that sees a key, and the first that sees all
    all_from = min(max(keys - most - 1, first), queries)
    rising = (first + all_from - 1) * (all_from - first) // 2 + (most + 1) * (all_from - first)
    return rising + (queries - all_from) * keys


def kept_band(given: Mapping[str, object], default: Band) -> Array:
    """The operand ``band`` for every call, of what `Problem.kept` takes: a `Band`, or three whole numbers.

    Raises:
        ConfigError: it is neither.
    """
    found = given.get("band", default)
    words = found.words if isinstance(found, Band) else np.asarray(found)
    if words.shape != (3,) or words.dtype.kind not in "iu":
        raise ConfigError(f"band: expected a Band or three whole numbers (least, most, sinks), got {found!r}")
    return words.astype(np.int32)
