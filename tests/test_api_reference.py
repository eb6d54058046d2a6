"""The API reference is what its generator writes, and holds every public name."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import sparsegen
from sparsegen import errors, masks

ROOT = Path(__file__).parents[1]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh() -> None:
    written = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == generator().page(), "run `python docs/make_api.py`"


def test_it_is_the_same_in_another_process() -> None:
    """No address, set's order or path of this machine is in it."""
    code = "import sys; sys.path[:0] = ['.', 'docs']; import make_api; sys.stdout.write(make_api.page())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == generator().page()
    assert "0x" not in done.stdout.replace("0x1b", "") and str(ROOT) not in done.stdout


def test_every_public_name_is_there() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in sparsegen.__all__:
        assert name == "__version__" or f"`sparsegen.{name}`" in page or f"| `{name}` |" in page, name
    assert all(f"`sparsegen.masks.{name}`" in page for name in masks.__all__)
    declared = [
        name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")
    ]
    assert all(f"| `{name}` |" in page for name in declared)
