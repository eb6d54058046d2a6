"""Wrong values for arguments of one kind, which tests of public functions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparsegen.errors import SparsegenError

NUMBER = ("0.5", b"1", [0.5], {}, True, 1j, np.complex64(1), np.ones(2), object(), 10**400)
WHOLE = (
    2.5,
    2.0,
    "2",
    b"2",
    [2],
    {},
    True,
    np.float32(2),
    np.bool_(True),
    np.ones(2),
    2j,
    -1,
    10**30,
    object(),
)
SEED = tuple(one for one in WHOLE if type(one) is not int or one < 0)  # as large as you like
FLAG = ("false", 2, 0.5, [], [True], {}, object(), np.ones(2))
WORD = ("nonsense", 7, 0.5, [1], {}, b"row", object(), np.ones(2))
TEXT = (7, 0.5, [1], {}, b"x", object(), np.ones(2))
TEXTS = ("csr_spmm", 7, [1], [None], 0.5, object(), b"x")
PAIR = (7, "32", "ab", (1,), (1, 2, 3), (1.5, 2), ("1", "2"), (True, 2), (-1, 2), {1, 2}, object())
PLACE = (7, 0.5, b"x", [1], {}, object(), "a\0b", True)
DEVICE = (3, 0.5, [], {}, b"cuda", "nowhere", object(), True, np.ones(2))
NAMES = (
    [1],
    7,
    "x",
    {1: 2},
    {"nonsense": 1},
    {"tile_n": "nonsense"},
    {"tile_n": [1]},
    {"tile_n": object()},
    object(),
)
# Values of a parameter of a problem: a block, a density, a filter.
PARAMETER = "nonsense", b"row", {}, object(), np.ones(2), -3, True
ARRAY = (7, "x", None, [1], {}, object(), np.ones(3), np.array([["a"]]))
FLAG_OR_NONE = tuple(word for word in FLAG if word is not None)
SIDES = (*WHOLE, 0, (1,), (1, 2, 3), "ab", (1.5, 2))
MATRIX = (7, "x", None, [1], {}, object(), np.ones(3), np.array([["a"]]))


def is_refused_in_words(call: Callable[..., Any], given: Mapping[str, Any]) -> bool:
    """True if a call with these arguments raises one of our errors, with more than a word."""
    try:
        call(**given)
    except SparsegenError as refused:
        return len(str(refused)) > 10
    return False
