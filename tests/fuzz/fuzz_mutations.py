"""Damage to files: bytes, values of JSON documents, and headers made of words that readers look for."""

from __future__ import annotations

import copy
import json
from typing import Any

import hypothesis.strategies as st

WORDS = (
    *(b"0", b"1", b"-1", b"2147483647", b"2147483648", b"18446744073709551616", b"9" * 40, b"1e999", b"nan", b"inf"),
    *(b"\n", b" ", b"\t", b"\r", b"\0", b",", b"%", b"'", b'"', b"(", b")", b"[", b"]", b"{", b"}", b"\xff"),
    *(b"True", b"None", b"general", b"symmetric", b"pattern", b"array", b"<f4", b"|O", b"shape", b"F32", b"BF16"),
    *(b"\x1b[31m", b"V0", b"-0", b"1_0"),
)  # fmt: skip
ODD = (
    *(None, True, False, 0, 1, -1, 2, 2**31 - 1, 2**31, 2**63, 10**30, 10**400, 0.5, -0.5, 1e308, 1e-320),
    *("", "x", "self", "spmm", "float32", "\x1b[31m", "\0", "é" * 300, "2026-11-22T00:00:00+00:00", "0" * 64),
    *([], {}, [[]], [1, 2], {"self": 1}, [[[[[[1]]]]]]),
)  # fmt: skip


@st.composite
def damaged_bytes(draw: st.DrawFn, corpus: dict[str, bytes]) -> tuple[str, bytes]:
    """One of the files, by name, with up to six bytes or pieces of it changed, taken out or put in."""
    name = draw(st.sampled_from(sorted(corpus)))
    content = bytearray(corpus[name])
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 8))
        match draw(st.sampled_from(("set", "flip", "cut", "word", "copy", "end"))):
            case "set":
                content[at : at + length] = draw(st.binary(min_size=length, max_size=length))
            case "flip" if at < len(content):
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[at : at + length]
            case "word":
                content[at : at + length] = draw(st.sampled_from(WORDS))
            case "copy":
                there = draw(st.integers(0, len(content)))
                content[at:at] = content[there : there + length]
            case "end":
                del content[at:]
    return name, bytes(content)


@st.composite
def damaged_json(draw: st.DrawFn, document: Any) -> str:
    """The document with one to three values replaced, taken out, doubled or renamed, anywhere in it."""
    root = {"root": copy.deepcopy(document)}
    for _ in range(draw(st.integers(1, 3))):
        above, key = root, "root"
        while isinstance(above[key], dict | list) and above[key] and draw(st.integers(0, 9)):
            above = above[key]
            key = draw(st.sampled_from(sorted(above) if isinstance(above, dict) else range(len(above))))
        match draw(st.sampled_from(("odd", "number", "text", "out", "twice", "name"))):
            case "odd":
                above[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
            case "number":
                above[key] = draw(st.integers(-3, 2**33) | st.floats(allow_nan=False, allow_infinity=False))
            case "text":
                above[key] = draw(st.text(max_size=20))
            case "out" if above is not root:
                del above[key]
            case "twice" if isinstance(above, list):
                above.append(copy.deepcopy(above[key]))
            case "name" if isinstance(above, dict) and above is not root:
                above[draw(st.text(max_size=8) | st.sampled_from(("self", "cls", "version")))] = above[key]
    return json.dumps(root["root"])


def sizes() -> st.SearchStrategy[int]:
    """Sizes as headers declare them: small, wrong, and at the limits of integers."""
    odd = (-1, 0, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 10**30, 10**60)
    return st.integers(0, 6) | st.sampled_from(odd)


@st.composite
def matrix_market(draw: st.DrawFn) -> tuple[str, bytes]:
    """A Matrix Market file whose header is near the grammar and whose entries may not be."""
    form = draw(st.sampled_from(("coordinate", "array")))
    field = draw(st.sampled_from(("real", "integer", "pattern", "complex", "double")))
    symmetry = draw(st.sampled_from(("general", "symmetric", "skew-symmetric", "hermitian")))
    lines = [f"%%MatrixMarket matrix {form} {field} {symmetry}"]
    lines += draw(st.lists(st.sampled_from(("% comment", "", "%")), max_size=2))
    lines.append(" ".join(str(draw(sizes())) for _ in range(draw(st.sampled_from((3, 3, 3, 2, 4))))))
    word = st.integers(-1, 7).map(str) | st.sampled_from(
        ("1.5", "nan", "1e999", "x", "", "9" * 30, "1_0", "٣")
    )
    entry = st.lists(word, min_size=0, max_size=4).map(" ".join)
    return "mtx", "\n".join([*lines, *draw(st.lists(entry, max_size=6))]).encode()


@st.composite
def smtx(draw: st.DrawFn) -> tuple[str, bytes]:
    """A DLMC file whose three lines may contradict each other."""
    head = ", ".join(str(draw(sizes())) for _ in range(3))
    numbers = st.lists(sizes() | st.integers(0, 4), max_size=6).map(lambda found: " ".join(map(str, found)))
    return "smtx", "\n".join(
        [head, draw(numbers), draw(numbers), *draw(st.lists(numbers, max_size=1))]
    ).encode()


@st.composite
def npy(draw: st.DrawFn) -> tuple[str, bytes]:
    """A .npy file whose header is a Python literal of the right names and of any values."""
    descr = draw(
        st.sampled_from(
            ("<f4", ">f8", "|b1", "<i8", "<u2", "<c8", "|O", "|V0", "|S0", "<U9999999", "<M8[s]", "bogus")
        )
        | st.sampled_from(((), [], [("a", "<f4")], [("a", "<f4", (10**9,))], {}, None, ("<f4", (2,)), True))
    )
    size = sizes() | st.sampled_from((True, None, "3", 2.5, (1,)))
    shape: Any = draw(st.lists(size, max_size=4).map(tuple) | size | st.just((1,) * 40))
    header = {"descr": descr, "fortran_order": draw(st.sampled_from((True, False, 0, "x"))), "shape": shape}
    if draw(st.booleans()):
        header.pop(draw(st.sampled_from(sorted(header))))
    text = (repr(header) + draw(st.sampled_from(("", " ", "(" * 60, "#", "\0")))).encode() + b"\n"
    version = draw(st.sampled_from((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00")))
    length = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return "npy", b"\x93NUMPY" + version + length + text + draw(st.binary(max_size=64))


@st.composite
def safetensors(draw: st.DrawFn) -> tuple[str, bytes]:
    """A safetensors file whose header is JSON of the right names and of any values."""
    data = draw(st.binary(max_size=64))
    entries = {}
    for name in draw(
        st.lists(st.sampled_from(("w", "b", "\x1b[31m", "", "__metadata__")), max_size=3, unique=True)
    ):
        shape: Any = draw(st.lists(sizes(), max_size=4) | st.sampled_from(([1] * 40, 3, [True, True], [2.5])))
        begin, end = draw(sizes()), draw(sizes() | st.just(len(data)))
        kind = draw(st.sampled_from(("F32", "BF16", "F16", "I64", "BOOL", "F8_E4M3", 7, None)))
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries).encode()
    return "safetensors", draw(st.sampled_from((len(text), len(text), 2**60))).to_bytes(
        8, "little"
    ) + text + data
