"""Code of docs/attention.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sparsegen.integrations.torch import masks  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "attention.md").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs() -> None:
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "attention.md", "exec"), names)
    assert names["mask"].blocks().sum(-1).eq(2).all() and names["q"].grad.abs().sum() > 0
    assert names["out"].shape == names["q"].shape


def test_the_page_names_every_mask() -> None:
    for name in masks.__all__:
        assert name in PAGE or name in ("Per", "Pooling") or name.startswith("to_"), name
