"""The site's API reference holds every public name with a docstring that says all of it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import sparsegen
from sparsegen import masks

ROOT = Path(__file__).parents[1]
FIRST_PAGE = 25  # names that it has at most


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def pages() -> dict[str, str]:
    made: dict[str, str] = generator().pages()
    return made


def entries(page: str) -> dict[str, str]:
    """Returns a page's entry of each name."""
    parts = re.split(r"^#{2,3} `([\w.]+)`$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    """No address, set's order or path of this machine is in it."""
    subprocess.run([sys.executable, "docs/make_api.py", str(tmp_path)], cwd=ROOT, check=True)
    for page, text in pages().items():
        assert (tmp_path / page).read_text(encoding="utf-8") == text
        assert "0x" not in text.replace("0x1b", "") and str(ROOT) not in text


def test_every_public_name_is_there_once() -> None:
    names = [name for page in pages().values() for name in entries(page)]
    assert len(names) == len(set(names))
    public = [f"sparsegen.{name}" for name in sparsegen.__all__ if name != "__version__"]
    public += [f"sparsegen.masks.{name}" for name in masks.__all__]
    assert set(public) <= set(names)


def test_every_name_for_pytorch_is_there() -> None:
    pytest.importorskip("torch")
    torch = importlib.import_module("sparsegen.integrations.torch")
    names = set(entries(pages()["api/torch.md"]))
    package = "sparsegen.integrations.torch"
    exported = {f"{package}.{name}" for name in torch.__all__ if name != "masks"}
    made = {
        f"{package}.masks.{n}" for n in torch.masks.__all__ if hasattr(getattr(torch.masks, n), "__doc__")
    }
    missing = (exported | made) - names
    assert {name.rpartition(".")[2] for name in missing} <= {"Per", "Pooling"}, (
        "types, which have no docstrings"
    )


def test_the_first_page_stays_short() -> None:
    assert len(entries(pages()["api.md"])) <= FIRST_PAGE


@pytest.mark.parametrize(
    "page", ["api.md", "api/operators.md", "api/pruning.md", "api/masks.md", "api/torch.md"]
)
def test_every_entry_has_a_sentence(page: str) -> None:
    found = entries(pages()[page])
    assert found
    without = [
        name for name, text in found.items() if not re.search(r"^[^`\-\s].*[.:]", _prose(text), re.MULTILINE)
    ]
    assert without == []


def _prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
