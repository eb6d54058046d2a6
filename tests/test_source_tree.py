"""Every start from the repository's root works: with an installed copy beside it, and with no installation at all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

import sparsegen
from sparsegen.settings import Settings
from sparsegen.source_tree import MAPPED, ROOT, SourceTreeFinder

REPOSITORY = Path(__file__).parents[1]

# What is imported and from where: code, templates, files beside code, names by way of the facade.
IMPORTS = """
import pickle
from importlib.resources import files
from pathlib import Path
import sparsegen
import sparsegen.cli.main, sparsegen.templates, sparsegen.tuning_db.store
from sparsegen import render
assert sparsegen.prepare.__module__ == "sparsegen.api"
package = Path(sparsegen.__file__).parent
holder = package if (package / "cli").exists() else package.parent
for folder in ("cli", "templates", "tuning_db"):
    module = getattr(sparsegen, folder)
    assert Path(module.__file__) == holder / folder / "__init__.py", module.__file__
assert (files("sparsegen.templates") / "lib").is_dir()
assert list((files("sparsegen.tuning_db") / "seeds").iterdir())
problem = sparsegen.SpmmProblem(3, 4, 5)
assert pickle.loads(pickle.dumps(problem)) == problem
print(package.parent)
"""


@dataclass(frozen=True)
class Python:
    """Interpreters that find the libraries, perhaps an installed sparsegen, and no editable one.

    Without ``site`` no .pth file is read, so that the installation that runs these tests plays no part.
    """

    packages: tuple[Path, ...]
    scratch: Path
    cache: Path

    def __call__(self, *arguments: str, cwd: Path = REPOSITORY, text: str | None = None) -> str:
        paths = [*map(str, self.packages), *(p for p in sys.path if "site-packages" in p)]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.scratch),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPARSEGEN_DEVICE": "emulator",
            "SPARSEGEN_CACHE": str(self.cache),
            "SPARSEGEN_DB": str(self.scratch / "tuning.db"),
        }
        run = subprocess.run(
            [sys.executable, "-S", *arguments],
            cwd=cwd,
            env=environment,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        return run.stdout


PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_package_is_installed() -> None:
    found = {
        ".".join((package, *place.parent.relative_to(REPOSITORY / folder).parts))
        for package, folder in PROJECT["package-dir"].items()
        for place in (REPOSITORY / folder).rglob("__init__.py")
    }
    assert found == set(PROJECT["packages"]), "pyproject.toml lists every package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a wheel holds: the packages where pyproject.toml maps them."""
    target = tmp_path_factory.mktemp("installed")
    for package, folder in PROJECT["package-dir"].items():
        place = target.joinpath(*package.split("."))
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder, place, dirs_exist_ok=True, ignore=ignored)
    return target


@pytest.fixture(params=["beside an installation", "alone"])
def python(
    request: pytest.FixtureRequest, installed: Path, tmp_path: Path, emulator_settings: Settings
) -> Python:
    packages = (installed,) if request.param == "beside an installation" else ()
    return Python(packages, tmp_path, emulator_settings.cache)


def test_the_finder_knows_every_mapped_package() -> None:
    """A folder of the root that pyproject.toml maps into the package has to bear the package's own name."""
    mapped = PROJECT["package-dir"].items() - {("sparsegen", "sparsegen")}
    assert {package for package, _ in mapped} == MAPPED
    assert all(package == f"sparsegen.{folder}" for package, folder in mapped)
    finder = SourceTreeFinder()
    assert all(finder.find_spec(name, None) for name in MAPPED)
    assert not any(
        finder.find_spec(name, None) for name in ("sparsegen.tests", "sparsegen.api", "tests", "cli")
    )


def test_an_installation_needs_no_finder(
    installed: Path, tmp_path: Path, emulator_settings: Settings
) -> None:
    python = Python((installed,), tmp_path, emulator_settings.cache)
    assert python("-c", IMPORTS, cwd=tmp_path).strip() == str(installed)
    asked = "import sys, sparsegen, sparsegen.cli; print('sparsegen.source_tree' in sys.modules)"
    assert python("-c", asked, cwd=tmp_path).strip() == "False"


def test_code_at_the_root_finds_the_source_tree_whole(python: Python) -> None:
    assert python("-c", IMPORTS).strip() == str(ROOT)


def test_an_interactive_python_at_the_root(python: Python) -> None:
    shown = python("-i", text="import sparsegen\nprint(sparsegen.tune.__module__, sparsegen.__file__)\n")
    assert shown.split() == ["sparsegen.api", str(ROOT / "sparsegen" / "__init__.py")]


def test_the_command_line_at_the_root(python: Python) -> None:
    assert sparsegen.__version__ in python("-m", "sparsegen", "--version")
    assert "csr_spmm" in python("-m", "sparsegen", "families")


def test_a_script_elsewhere_that_runs_at_the_root(
    installed: Path, tmp_path: Path, emulator_settings: Settings
) -> None:
    python = Python((installed,), tmp_path, emulator_settings.cache)
    (tmp_path / "script.py").write_text(IMPORTS)
    assert python(str(tmp_path / "script.py")).strip() == str(installed)


def test_the_readme_example_at_the_root(python: Python) -> None:
    """Its search in a child process too, and after the folder was left, as notebooks do."""
    text = (REPOSITORY / "README.md").read_text()
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "sparsegen.tune(layer" in c)
    asked = "sparsegen.tune(layer, n=64)"
    assert asked in code
    few = "sparsegen.tune(layer, n=64, families=['csr_spmm'], trials=1, baselines=False)"
    shown = python("-c", code.replace(asked, f"import os; os.chdir({str(python.scratch)!r}); {few}"))
    assert "csr_spmm (exact)" in shown
