"""Rings of tests: `make test-fast`, `make test`, all.

The first ring has the tests that take less than `SLOW` CPU seconds, compile no kernel and start no process; the second
those that took less than `LONG` when all tests were recorded, and those that read all `SOURCES`; the last has all. The
costs of tests are in costs.json (costs.py); a test that is not there is in all rings. The contract tests, which do the
same to hundreds of variants, are not in the first, and say themselves which variants are in the second
(contract_ring.py).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from costs import Costs, name_of

FAST = "not long and not slow"  # what pytest's -m says of the first ring
LEFT_OUT = "long"  # and of what `make test` leaves out
BESIDE_TORCH = "long or torch"  # and of that and what needs PyTorch or Jupyter
NEEDS = re.compile(r'importorskip\("(torch|nbformat)"\)')
SOURCES = (  # any change may meet what these refuse
    "test_architecture.py",
    "test_docstring_openings.py",
    "test_docstrings.py",
    "test_tables.py",
    "test_words.py",
)
FAST_BUDGET = 57.0  # CPU seconds that the tests of the first ring may take together


def sort_into_rings(items: list[pytest.Item]) -> None:
    """Mark tests as ``slow`` and ``long``, and those of files that need PyTorch or Jupyter as ``torch``."""
    costs = Costs.read()
    for item in items:
        name = name_of(item)
        if costs.is_long(name) and item.path.name not in SOURCES:
            item.add_marker(pytest.mark.long)
        if not costs.is_fast(name) or item.get_closest_marker("sanitizer"):
            item.add_marker(pytest.mark.slow)
        if _needs_torch(item.path):
            item.add_marker(pytest.mark.torch)


@cache
def _needs_torch(file: Path) -> bool:
    return file.is_file() and NEEDS.search(file.read_text()) is not None
