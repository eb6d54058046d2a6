"""Public docstrings begin with a sentence (PEP 257)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sparsegen", "cli", "tuning_db")
ONE_WORD = re.compile(r"(Args|Raises|Returns|Attributes):|\S+$")
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_docstrings(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Name, line and docstring of what a module makes public, methods too."""
    rooms: list[ast.Module | ast.ClassDef] = [tree]
    for room in rooms:
        for node in room.body:
            if isinstance(node, Documented) and not node.name.startswith("_"):
                text = ast.get_docstring(node)
                if text:
                    yield node.name, node.lineno, text
                if isinstance(node, ast.ClassDef):
                    rooms.append(node)


def incomplete(source: str) -> list[str]:
    """Returns the docstrings that begin without a sentence of their own."""
    found = public_docstrings(ast.parse(source))
    return [
        f"{line} {name}: {text.partition(chr(10))[0]}" for name, line, text in found if is_incomplete(text)
    ]


def is_incomplete(text: str) -> bool:
    summary = " ".join(text.partition("\n\n")[0].split())
    return not re.search(r"[.:]$", summary) or ONE_WORD.match(summary) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_summaries_are_sentences(package: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): missing
        for path in sorted((ROOT / package).rglob("*.py"))
        if (missing := incomplete(path.read_text(encoding="utf-8")))
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "Raises:\n    ConfigError: a word that is none.",
        "Text.",
        "The number of neurons",
    ],
)
def test_what_is_no_sentence_is_found(text: str) -> None:
    [found] = incomplete(f'class A:\n    def neurons(self):\n        """{text}"""\n')
    assert found.startswith("2 neurons: ")


def test_sentences_pass() -> None:
    assert not is_incomplete("The number of neurons of the last layer.")
    assert not is_incomplete("Write a file, in one step:\n\nit is there whole or not.")
    assert not is_incomplete("See `Executor.load`.")
