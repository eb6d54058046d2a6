"""Attempts of the fuzz tests: how they are made, and the number of each target's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

Fuzz = Callable[[st.SearchStrategy[Any], Callable[[Any], None]], None]
ATTEMPTS: dict[str, int] = {}
