"""State of sparsegen that measures: the commit of its checkout, or the version if there is none."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

from sparsegen import __version__
from sparsegen.settings import Settings

CHANGED = "+changes"  # behind the commit of a checkout that differs from it
SECONDS = 10.0  # time limit of git


def state() -> str:
    """The state of the source that runs, for result files.

    That is ``SPARSEGEN_COMMIT`` where it is set, for copies without git's history; else the commit of the checkout that
    this file belongs to, with `CHANGED` behind it where a tracked file differs; else ``version`` and the version.
    """
    return Settings.from_environment().commit or _of_checkout() or f"version {__version__}"


@cache
def _of_checkout() -> str | None:
    """Commit of the checkout; None if git does not know this file: an installed copy may lie within another
    checkout.
    """
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    commit = _git(here.parent, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(here.parent, "status", "--porcelain", "--untracked-files=no", ":/")
    return commit + (CHANGED if changes != "" else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of git; None if it is not there or fails."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
