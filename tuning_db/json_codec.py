"""Dataclasses as JSON objects: of a class each field by its name, by a reader of its own that checks every value.

Result files of ``sparsegen bench`` and exports of tuning databases are both read so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from sparsegen.kernels.config import Value
from sparsegen.matrix.features import Features
from sparsegen.operators import MAX_INDEX
from sparsegen.tuning_db.json_reader import Node

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Read = Callable[[Node], T]

LARGEST_ERROR = 1e300  # in place of an infinite one, which JSON does not have
BIG = 2**63 - 1

number, moment = Node.number, Node.moment
above = partial(Node.number, above=True)
size = partial(Node.integer, low=0, high=MAX_INDEX)
count = partial(Node.integer, low=1, high=MAX_INDEX)
whole = partial(Node.integer, low=0, high=BIG)


def record(kind: type[T], readers: Mapping[str, Read[Any]], also: tuple[str, ...] = ()) -> Read[T]:
    """A reader of objects whose members are fields of a dataclass; those with a default may be missing, or null.

    Args:
        also: members that are read elsewhere, and may be missing.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]  # a dataclass
    given = [f.name for f in fields if f.name in readers and f.default is not dataclasses.MISSING]
    required = tuple(name for name in readers if name not in given)

    def read(node: Node) -> T:
        members = node.fields(required, (*given, *also))
        return kind(**{n: readers[n](members[n]) for n in required}, **present(members, readers, given))

    return read


def present(
    members: Mapping[str, Node], readers: Mapping[str, Read[Any]], names: Iterable[str]
) -> dict[str, Any]:
    """The values of those members that are neither missing nor null."""
    return {n: readers[n](members[n]) for n in names if n in members and members[n].value is not None}


def optional(node: Node | None, read: Read[T]) -> T | None:
    """The value of a member, or None where it is missing or null."""
    return read(node) if node is not None and node.value is not None else None


def text(longest: int, pattern: str | None = None) -> Read[str]:
    """A reader of printable text; see `Node.text`."""
    return partial(Node.text, longest=longest, pattern=pattern)


def word(kind: type[E]) -> Read[E]:
    """A reader of one of an enumeration's words."""

    def read(node: Node) -> E:
        if node.value not in list(kind):
            node.refuse(f"one of {', '.join(kind)}")
        return kind(node.value)

    return read


def listed(read: Read[T]) -> Read[tuple[T, ...]]:
    """A reader of arrays."""
    return lambda node: tuple(map(read, node.items()))


def capability(node: Node) -> tuple[int, int]:
    """A compute capability."""
    parts = [part.integer(0, 1000) for part in node.items()]
    if len(parts) != 2:
        node.refuse("two integers")
    return parts[0], parts[1]


def config_values(node: Node) -> dict[str, Value]:
    """Values of tunables by name; whether a family declares them is not asked."""
    members = node.members()
    for member in members.values():
        if type(member.value) not in (int, bool, str):
            member.refuse("an integer, true, false or a word")
    return {name: member.value for name, member in members.items()}


def finite(error: float) -> float:
    """An error that JSON can hold; NaN, too, becomes the largest."""
    return error if error < LARGEST_ERROR else LARGEST_ERROR


DEVICE: Mapping[str, Read[Any]] = {
    "key": text(200, ".+"),
    "name": text(200),
    "backend": text(40, "[a-z]+"),
    "compute_capability": capability,
    "multiprocessors": size,
    "l2_bytes": whole,
}
FEATURES = record(
    Features,
    dict.fromkeys(("m", "k", "nnz", "row_max"), size)
    | dict.fromkeys(("row_mean", "row_cov", "block_fill"), number),
)
