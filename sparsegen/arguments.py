"""Conversion of users' arguments to what the inside works with: here, at the border, and nowhere further in.

Each function takes a value and the argument's name, and raises ``error`` with what was expected and what was given.
Numbers and truth values may be NumPy's or another library's; what they become is Python's own, which never overflows.
Truth values are no numbers.
"""

from __future__ import annotations

import numbers
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sparsegen.errors import ConfigError, SparsegenError

Error = type[SparsegenError]
E = TypeVar("E", bound=StrEnum)
MOST_NEAR = 3  # names that a message asks for
# How alike they are at least, as `difflib` counts. Words are nearer to each other: float64 is not meant for float16.
ALIKE, ALIKE_AMONG_WORDS = 0.6, 0.9

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000 ** (i + 1) for i, prefix in enumerate("kmgt")},
    **{prefix: 1024 ** (i + 1) for i, prefix in enumerate("kmgt")},
    **{f"{prefix}ib": 1024 ** (i + 1) for i, prefix in enumerate("kmgt")},
}
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[kmgt]i?)?b|[kmgt]|)", re.IGNORECASE | re.ASCII)


def whole(
    value: Any, name: str, error: Error = ConfigError, *, least: int | None = None, most: int | None = None
) -> int:
    """A whole number, perhaps one that is at least or at most so large."""
    try:
        if type(value) is not int and _is_truth(value):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise _unexpected(value, name, "no whole number", error) from None
    if least is not None and found < least:
        raise error(f"{name} = {found} is below {least}")
    if most is not None and found > most:
        raise error(f"{name} = {found} is above {most}")
    return found


def number(value: Any, name: str, error: Error = ConfigError) -> float:
    """A real number, which may be infinite or NaN: whether that makes sense is the caller's to say."""
    is_complex = isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real)
    if _is_truth(value) or is_complex or isinstance(value, str | bytes) or getattr(value, "ndim", 0) != 0:
        raise _unexpected(value, name, "no number", error)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _unexpected(value, name, "no number", error) from None


def factor(value: object, name: str, error: Error = ConfigError) -> float:
    """A number that operands are multiplied by: finite, also as a float32."""
    found = value if type(value) is float else number(value, name, error)
    if not abs(found) <= _LARGEST_FLOAT32:
        raise error(f"{name} = {found:g}: expected a finite number that float32 holds")
    return found


def nbytes(value: object, name: str, error: Error = ConfigError) -> int:
    """An amount of memory, above 0: whole bytes, or text such as ``"8 GiB"``, ``"8G"`` (the same), ``"500MB"``."""
    if not isinstance(value, str):
        return whole(value, name, error, least=1)
    match = _AMOUNT.fullmatch(value.strip())
    found = round(float(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if found < 1:
        raise error(f"{name} = {value!r}: expected bytes, or text like '8 GiB' or '500 MB'")
    return found


def flag(value: Any, name: str, error: Error = ConfigError) -> bool:
    """True or False, or 1 or 0; the word "false" is neither."""
    if value is True or value is False:
        return value
    if _is_truth(value):
        return bool(value)
    try:
        return {0: False, 1: True}[operator.index(value)]
    except (TypeError, KeyError):
        raise _unexpected(value, name, "neither True nor False", error) from None


def text(value: object, name: str, error: Error = ConfigError) -> str:
    """The value as text; raises ``error`` where it is none."""
    if not isinstance(value, str):
        raise _unexpected(value, name, "no text", error)
    return value


def word(kind: type[E], value: object, name: str, error: Error = ConfigError, *, advice: str = "") -> E:
    """An enumeration's member, which a word names.

    Args:
        advice: other values that the caller may have meant, after the list of words.
    """
    if type(value) is kind:
        return value
    try:
        if isinstance(value, str):  # arrays would be compared element by element
            return kind(value)
    except ValueError:
        pass
    question = _question(value, kind, ALIKE_AMONG_WORDS) if isinstance(value, str) else ""
    raise _unexpected(value, name, f"none of {', '.join(kind)}{question}{advice}", error)


def unknown(name: str, known: Iterable[str]) -> str:
    """A name that is not known, for a message: which may be meant, and which there are."""
    names = tuple(known)
    return f"{name!r}{_question(name, names, ALIKE)}; there are {', '.join(names)}"


def _question(name: str, known: Iterable[str], alike: float) -> str:
    """Asks whether a name near to this one is meant; empty if none is near."""
    import difflib  # only refusals need it

    names, meant = [str(one) for one in known], name.lower()
    begun = [one for one in names if meant and one.startswith(meant)]
    near = [meant] if meant in begun else begun[:MOST_NEAR]
    near = near or difflib.get_close_matches(meant, names, n=1, cutoff=alike)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def texts(value: object, name: str, error: Error = ConfigError) -> tuple[str, ...]:
    """Several texts; one alone would be taken for its letters, and is refused."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | set | frozenset):
        raise _unexpected(value, name, "no list of texts", error)
    return tuple(text(one, f"one of {name}", error) for one in value)


def pair(value: Any, name: str, error: Error = ConfigError) -> tuple[int, int]:
    """Two whole numbers."""
    if not _is_row(value) or isinstance(value, str | bytes) or len(value) != 2:
        raise _unexpected(value, name, "not two whole numbers", error)
    return whole(value[0], f"{name}[0]", error), whole(value[1], f"{name}[1]", error)


def sides(
    value: object, name: str, error: Error = ConfigError, *, least: int | None = None
) -> tuple[int, int]:
    """Two whole numbers, or one that stands for both."""
    first, second = pair(value, name, error) if _is_row(value) else (value, value)
    return whole(first, name, error, least=least), whole(second, name, error, least=least)


def _is_row(value: object) -> bool:
    """True if it holds values in one dimension."""
    return value.ndim == 1 if isinstance(value, np.ndarray) else isinstance(value, Sequence)


def location(value: object, name: str, error: Error = ConfigError) -> str | Path:
    """A path, or text that is one or a URL."""
    if not isinstance(value, str | Path) or "\0" in str(value) or not _is_name(value):
        raise _unexpected(value, name, "no path (text or pathlib.Path)", error)
    return value


def _is_name(value: str | Path) -> bool:
    """True if the file system's encoding has all of its characters."""
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def by_name(value: object, name: str, error: Error = ConfigError) -> Mapping[str, Any]:
    """Values by name."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _unexpected(value, name, "no dictionary with names for keys", error)
    return value


def array(value: object, name: str, error: Error = ConfigError) -> np.ndarray[Any, Any]:
    """An array of NumPy, of whatever NumPy makes one of."""
    try:
        return np.asarray(value)
    except (
        TypeError,
        ValueError,
        RuntimeError,
    ):  # lists of unequal lengths; tensors of a GPU, sparse, of bfloat16
        raise _unexpected(value, name, "no array that NumPy takes", error) from None


def instance(value: object, kind: type, name: str, error: Error = ConfigError) -> None:
    """Refuses objects of another class."""
    if not isinstance(value, kind):
        raise _unexpected(value, name, f"no {kind.__name__}", error)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _unexpected(value: object, name: str, what: str, error: Error) -> SparsegenError:
    shown = repr(value)
    if len(shown) > 100:  # an array, or what was meant for another argument
        shown = f"an object of type {type(value).__name__}"
    return error(f"{name} = {shown} is {what}")
