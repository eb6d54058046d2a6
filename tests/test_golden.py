"""Golden sources (goldens.py): `pytest tests/test_golden.py --update-golden` rewrites them."""

from __future__ import annotations

from pathlib import Path

import pytest
from goldens import FIRST, FOLDER, GOLDENS, MARKS, Golden, renderings, shared, shared_path, shared_text

from sparsegen.kernels import families


def check(path: Path, text: str, request: pytest.FixtureRequest) -> None:
    """Hold a text against its file, or write it."""
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.is_file(), "no golden source yet: run pytest --update-golden and read what it wrote"
    assert text == path.read_text(), "if that is meant: pytest --update-golden, and read the diff"


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_source_is_the_golden_one(golden: Golden, request: pytest.FixtureRequest) -> None:
    check(golden.path, golden.text(), request)


def test_shared_files_are_the_golden_ones(request: pytest.FixtureRequest) -> None:
    for name in renderings():
        check(shared_path(name), shared_text(name), request)


@pytest.mark.parametrize("golden", FIRST.values(), ids=str)
def test_marks_change_nothing_else(golden: Golden) -> None:
    assert MARKS.sub("", golden.marked()) == golden.source()


def test_every_shared_file_has_a_golden_source() -> None:
    """Macros stand where they are called."""
    assert set(renderings()) == shared()


def test_every_family_and_template_has_a_golden_source() -> None:
    assert {golden.family.name for golden in GOLDENS} == set(families())
    assert {family.template for family in families().values()} == set(FIRST)


def test_no_golden_source_is_left_over(request: pytest.FixtureRequest) -> None:
    known = {golden.path for golden in GOLDENS} | {shared_path(name) for name in renderings()}
    files = {path for path in FOLDER.rglob("*") if path.is_file()}
    if request.config.getoption("--update-golden"):
        for path in files - known:
            path.unlink()
    assert {path for path in FOLDER.rglob("*") if path.is_file()} == known
