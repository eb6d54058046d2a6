"""How several processes share out a run's tests (pytest-xdist).

A file's tests stay in one process, as they share fixtures. A variant of the contract tests goes by itself, so that all
processes end at about the same time. One process has the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # one of several processes
DISTRIBUTION = "loadscope"  # what --dist says


def scope_of(test: str, root: Path, *, has_gpu: bool) -> str:
    """What stays in one process with a test, of which ``test`` is pytest's name, relative to ``root``."""
    file, _, name = test.partition("::")
    if has_gpu and "pytest.mark.gpu" in (root / file).read_text():
        return "gpu"
    return test if Path(file).name == "test_contract.py" and "[" in name else file


def scheduler(config: pytest.Config, log: Any, why_no_gpu: Callable[[], str]) -> Any:
    """xdist's, with these scopes. (Its own marks for groups are lost on pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid, config.rootpath, has_gpu=not why_no_gpu())

    return FilesTogether(config, log)
