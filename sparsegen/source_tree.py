"""Finds the packages that lie beside this one in the source tree, and below it once they are installed.

pyproject.toml maps the folders ``cli/``, ``templates/`` and ``tuning_db/`` at the repository's root into this package.
A Python that starts at the root finds the folder ``sparsegen/`` there before any installed copy, and in it they are
missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

PACKAGE = __name__.partition(".")[0]
ROOT = Path(__file__).parents[1]
MAPPED = frozenset(f"{PACKAGE}.{folder}" for folder in ("cli", "templates", "tuning_db"))


class SourceTreeFinder:
    """Looks for the mapped packages at the root, and for nothing else there."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(ROOT)], target) if fullname in MAPPED else None


def make_importable() -> None:
    """Let the mapped packages be imported, before another checkout's that is installed for editing."""
    if not any(isinstance(finder, SourceTreeFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, SourceTreeFinder())
