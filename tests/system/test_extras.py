"""Messages that say how to install an extra."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from sparsegen import source_tree
from sparsegen.system.extras import install_command, packages

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_messages_name_packages_that_indexes_have() -> None:
    assert install_command("cuda") == "pip install 'pycuda>=2026.1' 'nvidia-ml-py>=12'"
    assert "numpy>=1.26" in packages("")
    with pytest.raises(KeyError):
        packages("nonsense")


def test_an_installation_says_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its metadata has the requirements with markers; a stranger's pyproject.toml beside it is not read."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    monkeypatch.setattr(source_tree, "ROOT", tmp_path)
    written = [
        *DECLARED["dependencies"],
        *(f'{p}; extra == "{e}"' for e, ps in DECLARED["optional-dependencies"].items() for p in ps),
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: written)
    for extra, wanted in {"": DECLARED["dependencies"], **DECLARED["optional-dependencies"]}.items():
        assert packages(extra) == wanted
    with pytest.raises(KeyError):
        packages("nonsense")


def test_a_bundle_is_no_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(source_tree, "ROOT", tmp_path)
    monkeypatch.setattr(source_tree, "PACKAGE", "sparsegen-that-nobody-installed")
    assert install_command("cuda") == "install the packages that sparsegen's pyproject.toml lists as 'cuda'"


def test_no_message_or_page_says_that_an_index_has_sparsegen() -> None:
    """Until one has: then this test goes."""
    files = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]
    for folder in ("sparsegen", "cli", "tuning_db", "examples", "benchmarks"):
        files += ROOT.glob(f"{folder}/**/*.py")
    found = [file for file in files if re.search(r"pip install (-\S+ )*['\"]?sparsegen\b", file.read_text())]
    assert found == []
