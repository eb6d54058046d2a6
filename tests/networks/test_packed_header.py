"""Headers of packed networks whose checksum is right and whose content is not: each is a `SavedOperatorError`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparsegen.errors import SavedOperatorError
from sparsegen.networks.files.packed_file import FIRST_LINE, MAGIC, load_packed, save_packed
from sparsegen.networks.files.packed_header import header_of, padded
from sparsegen.networks.model.radixnet import radixnet
from sparsegen.networks.packed.packed_network import PackedNetwork
from sparsegen.networks.sparse_network import SparseNetwork

ODD = (None, True, -1, 2**31, 10**30, 0.5, "x", "\x1b[31m", [], {}, [[]], {"a": 1})


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedNetwork:
    folder = tmp_path_factory.mktemp("packed")
    return SparseNetwork(radixnet(64, 3), device="emulator", db=str(folder / "db")).pack(20, memory=60_000)


@pytest.fixture
def saved(packed: PackedNetwork, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A file, and its header."""
    path = tmp_path / "net.packed"
    save_packed(packed, path)
    found = path.read_bytes()
    length = int(found[len(MAGIC) : FIRST_LINE].split()[0])
    return path, json.loads(found[FIRST_LINE : FIRST_LINE + length])


def write(path: Path, header: bytes, length: int | None = None) -> None:
    """The file with another header, whose checksum is right."""
    images = path.read_bytes()
    begin = padded(FIRST_LINE + int(images[len(MAGIC) : FIRST_LINE].split()[0]))
    told = MAGIC + f"{len(header) if length is None else length} {zlib.crc32(header)}".encode()
    head = told.ljust(FIRST_LINE - 1) + b"\n" + header
    path.write_bytes(head.ljust(padded(len(head))) + images[begin:])


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a document."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, below in steps:
        yield (*above, step)
        yield from places(below, (*above, step))


def alike(found: Any, told: Any) -> bool:
    """True if two documents are equal, where a whole number may have become a floating-point one."""
    if isinstance(found, float) and type(told) is int:
        return found == float(told)
    if isinstance(found, dict) and isinstance(told, dict):
        return found.keys() == told.keys() and all(alike(found[name], told[name]) for name in found)
    return type(found) is type(told) and bool(found == told)


def changed(document: Any, way: tuple[Any, ...], change: Callable[[Any, Any], None]) -> bytes:
    copy = json.loads(json.dumps(document))
    above = copy
    for step in way[:-1]:
        above = above[step]
    change(above, way[-1])
    return json.dumps(copy).encode()


def test_it_is_what_was_packed(saved: tuple[Path, dict[str, Any]], packed: PackedNetwork) -> None:
    path, header = saved
    assert header_of(load_packed(path)) == header
    write(path, json.dumps(header).encode())
    assert header_of(load_packed(path)) == header
    assert load_packed(path).plan == packed.plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clip": float("nan")}, "NaN is not a number"),
        ({"clip": 0.0}, "a finite number > 0"),
        ({"neurons": -1}, "an integer"),
        ({"neurons": True}, "an integer"),
        ({"neurons": 32}, "neurons of segment 1"),
        ({"outputs": 32}, "outputs of segment"),
        ({"family": "csr_spmm"}, "computes sparse_network"),
        ({"family": "none"}, "no kernel family"),
        ({"dtype": "float64"}, "one of float32"),
        ({"dtype": "bfloat16"}, "dtype of segment 1"),
        ({"activation": "gelu"}, "one of"),
        ({"readout": "neurons"}, "readout of segment"),
        ({"edges": 1}, "edges as of its segments"),
        ({"inputs": 65}, "no more inputs than neurons"),
        ({"packing_version": 10**6}, "by another version of"),
        ({"segments": []}, "segments, as many as the plan has"),
    ],
)
def test_values_that_do_not_fit(
    saved: tuple[Path, dict[str, Any]], change: dict[str, Any], words: str
) -> None:
    path, header = saved
    write(path, json.dumps(header | change).encode())
    with pytest.raises(SavedOperatorError, match=words):
        load_packed(path)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("batch", 0, "integer in"),
        ("batch", -1, "integer in"),
        ("batch", 7, "inputs of a batch"),
        ("slots", 0, "integer"),
    ],
)
def test_plans_that_cannot_be(saved: tuple[Path, dict[str, Any]], name: str, value: int, words: str) -> None:
    path, header = saved
    write(path, changed(header, ("plan", name), lambda above, step: above.update({step: value})))
    with pytest.raises(SavedOperatorError, match=words):
        load_packed(path)


@pytest.mark.parametrize(
    ("way", "value", "words"),
    [
        (("sizes", "neurons"), 10**6, "the size neurons of segment 1"),
        (("sizes", "layers"), 0, "the size layers of segment 1"),
        (("problem", "m"), 0, "segment 1"),
        (("layers",), [1, 2], "layers of segment 1"),
        (("layers",), [3, 1], "the first layer"),
        (("nbytes",), 2**40, "images that end at byte"),
        (("checksums",), [1, 2, 3, 4], "the checksums of"),
    ],
)
def test_segments_that_cannot_be(
    saved: tuple[Path, dict[str, Any]], way: tuple[str, ...], value: Any, words: str
) -> None:
    path, header = saved
    place = ("segments", 0, *way)
    write(path, changed(header, place, lambda above, step: above.update({step: value})))
    with pytest.raises(SavedOperatorError, match=words):
        load_packed(path)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_every_value_is_checked(saved: tuple[Path, dict[str, Any]], odd: Any) -> None:
    """Any value at any place is refused in our words, or is valid there."""
    path, header = saved

    def put(above: Any, step: Any) -> None:
        above[step] = odd

    for way in places(header):
        write(path, changed(header, way, put))
        try:
            found = header_of(load_packed(path))
        except SavedOperatorError as error:
            assert str(error).startswith(str(path)) and str(error).isprintable()
            continue
        told = json.loads(changed(header, way, put))
        if way == ("config",):
            assert set(found["config"]) == set(header["config"]) and odd == {}, "tunables have their defaults"
            continue
        assert alike(found, told), way


def test_every_member_is_needed(saved: tuple[Path, dict[str, Any]]) -> None:
    path, header = saved
    for way in places(header):
        if way[-2:-1] in (("sizes",), ("scratch",), ("places",), ("config",)) or isinstance(way[-1], int):
            continue
        if way[-2:-1] == ("problem",) and way[-1] not in ("operator", "m", "k", "n"):
            continue  # a field with a default may be missing
        write(path, changed(header, way, lambda above, step: above.pop(step)))
        with pytest.raises(SavedOperatorError):
            load_packed(path)


@pytest.mark.parametrize("length", [0, -1, 10**6, 99999999999, 99999999999999999999999])
def test_lengths_that_the_file_has_not(saved: tuple[Path, dict[str, Any]], length: int) -> None:
    path, header = saved
    write(path, json.dumps(header).encode(), length)
    with pytest.raises(SavedOperatorError, match="ends before its header"):
        load_packed(path)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[]", b"\xff", b"{}", b"null", b'{"a": 1, "a": 2}'])
def test_headers_that_are_none(saved: tuple[Path, dict[str, Any]], text: bytes) -> None:
    path, _ = saved
    write(path, text)
    with pytest.raises(SavedOperatorError):
        load_packed(path)
