"""Dataclasses with a common comparison compare, hash and print as those that have their own."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, replace

import pytest

from sparsegen.system.compared import Compared


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Point(Compared):
    x: int
    y: tuple[int, ...] = ()
    note: str = field(default="", compare=False)
    secret: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Named(Compared):
    name: str


@dataclass(frozen=True, eq=False, repr=False)
class Other(Named):
    more: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class Nothing(Compared):
    pass


def test_fields_that_are_compared_tell_objects_apart() -> None:
    point = Point(1, (2,), "a")
    assert point == Point(1, (2,), "b") and hash(point) == hash(Point(1, (2,), "b"))
    assert point != Point(2, (2,), "a") and point != Point(1, (3,), "a") and point != (1, (2,))
    assert len({point, Point(1, (2,), "b"), replace(point, x=5)}) == 2
    assert Nothing() == Nothing() and hash(Nothing()) == hash(Nothing())


def test_a_subclass_equals_none_of_its_base() -> None:
    assert Named("a") == Named("a") != Other("a")
    assert Other("a", 1) != Other("a", 2) and hash(Other("a", 1)) != hash(Other("a", 2))


def test_text_and_copies_are_a_dataclass_s() -> None:
    point = Point(1, (2,), "a", "b")
    assert repr(point) == "Point(x=1, y=(2,), note='a')" and repr(Nothing()) == "Nothing()"
    assert pickle.loads(pickle.dumps(point)) == point and asdict(point)["secret"] == "b"
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]


def test_what_has_no_hash_has_none() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point([]))  # type: ignore[arg-type]
