"""State of the source in a result file."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparsegen import __version__
from sparsegen.bench.run import state as module
from sparsegen.bench.run.state import state

COMMIT = "SPARSEGEN_COMMIT"


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the module believes to lie in."""
    monkeypatch.delenv(COMMIT, raising=False)
    file = tmp_path / "package" / "state.py"
    file.parent.mkdir()
    file.write_text("# a copy\n")
    monkeypatch.setattr(module, "__file__", str(file))
    module._of_checkout.cache_clear()
    yield file.parent
    module._of_checkout.cache_clear()


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
def test_the_commit_and_whether_it_was_changed(copy: Path) -> None:
    git(copy, "init", "-q")
    git(copy, "add", ".")
    git(copy, "commit", "-qm", "first")
    commit = git(copy, "rev-parse", "HEAD")
    assert state() == commit and len(commit) == 40
    (copy / "notes.txt").write_text("untracked files change nothing\n")
    module._of_checkout.cache_clear()
    assert state() == commit
    (copy / "state.py").write_text("# changed\n")
    module._of_checkout.cache_clear()
    assert state() == f"{commit}+changes"


@needs_git
def test_somebody_else_s_checkout_says_nothing(copy: Path) -> None:
    (copy.parent / "readme").write_text("of another project\n")
    git(copy.parent, "init", "-q")
    git(copy.parent, "add", "readme")
    git(copy.parent, "commit", "-qm", "theirs")
    assert state() == f"version {__version__}"


def test_without_git(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert state() == f"version {__version__}"


def test_a_copy_may_be_told_its_commit(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT, "1234abcd")
    assert state() == "1234abcd"
