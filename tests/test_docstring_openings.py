"""Docstrings begin with a verb or a noun: no question word, pronoun or preposition takes a subject's place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sparsegen", "cli", "tuning_db", "benchmarks", "tests", "examples", "docs")
OPENING = re.compile(
    r"(What|Whether|How|Where|When|Which|Who|Whom|Whose|Whoever|Whatever|Why|Of|By|As|That|With|"
    r"Nothing|Nobody|Somebody|Everybody|Anybody)\b"
)
# A test's docstring may name the condition that it tests, and a device.
PREPOSITION = re.compile(
    r"(From|To|In|At|On|Out|For|So|Until|Without|Behind|Beside|Before|After|Between|Among|Over|Into|Under|Likewise|"
    r"Those|They|These|Its?)\b"
)
PHRASE = re.compile(r"\b(nobody|somebody|so many|at the most)\b", re.IGNORECASE)
OF_WHICH = re.compile(r"(\w+),? of which\b")
# "some of which": a sentence's own subject.
COUNTED = {"each", "most", "some", "none", "all", "any", "both", "half"}


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a module, on one line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, " ".join(text.split())


def refused(source: str, *, of_tests: bool = False) -> list[str]:
    """The docstrings of a module that are refused, with their lines."""
    return [f"{line}: {text}" for line, text in docstrings(source) if is_refused(text, of_tests=of_tests)]


def is_refused(text: str, *, of_tests: bool = False) -> bool:
    """True for a wrong opening, or a phrase without a subject anywhere in a docstring."""
    opens_wrong = OPENING.match(text) or (not of_tests and PREPOSITION.match(text))
    of_which = any(word not in COUNTED for word in OF_WHICH.findall(text))
    return bool(opens_wrong or PHRASE.search(text) or of_which)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_name_their_subject(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = {
        path.relative_to(ROOT).as_posix(): wrong
        for path in files
        if (wrong := refused(path.read_text(encoding="utf-8"), of_tests=package == "tests"))
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "What a layer takes.",
        "Whether it runs.",
        "How many there are.",
        "Of each row its nonzeros.",
        "Nothing to ready.",
        "Those of all layers.",
        "A launch of so many blocks.",
        "The watch of nobody.",
        "Ten at the most.",
        "Two buffers, of which one is free.",
        "The largest tiles of which three fit.",
    ],
)
def test_what_names_no_subject_is_found(text: str) -> None:
    source = f'class A:\n    def blocks(self):\n        """{text}"""\n'
    assert refused(source) == [f"3: {text}"]


def test_sentences_pass() -> None:
    assert not refused('"""Returns the rows, most of which are empty."""')
    assert not refused('"""True if it runs. What is missing is named."""')
    assert refused('"""On an H100: 34 µs."""') and not refused('"""On an H100: 34 µs."""', of_tests=True)
