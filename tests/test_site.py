"""The site of the documentation: what is made for it, where its links lead, and that all of them lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from patience import LONG

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


@cache
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("README.md", "[a](docs/tuning.md#budgets)", "[a](tuning.md#budgets)"),
        ("README.md", "![a](docs/study.svg)", "![a](study.svg)"),
        ("docs/start.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/notes/decode.md", "[a](../../CONTRIBUTING.md)", "[a](../repository/CONTRIBUTING.md)"),
        ("CONTRIBUTING.md", "[a](docs/architecture.md)", "[a](../architecture.md)"),
        ("examples/README.md", "[a](quickstart.py)", "[a](quickstart.py.md)"),
        ("examples/README.md", "[a](pruned_mlp_layer.npz)", "a (`examples/pruned_mlp_layer.npz`)"),
        ("docs/benchmarks.md", "[a](../benchmarks/)", "[a](repository/benchmarks/README.md)"),
        (
            "docs/start.md",
            "[a](#requirements) [b](https://x.org/y)",
            "[a](#requirements) [b](https://x.org/y)",
        ),
        ("docs/start.md", "[a](nowhere.md) [b](../no.py)", "[a](nowhere.md) [b](../no.py)"),
        (
            "docs/start.md",
            "`x[0](y)`\n```\n[a](../README.md)\n```\n",
            "`x[0](y)`\n```\n[a](../README.md)\n```\n",
        ),
    ],
)
def test_links_lead_to_where_the_site_has_it(source: str, text: str, expected: str) -> None:
    assert site().relinked(text, source) == expected


def test_what_pages_link_to_becomes_a_page() -> None:
    linked = site().linked(site().start_pages())
    assert {"CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "examples/quickstart.py"} <= set(linked)
    for target in linked:
        assert site().source_of(site().place_of(target)) == site().page(target)
        assert (
            site().text_of(target).startswith("# ") or "\n# " in site().text_of(target) or target == "LICENSE"
        )


def test_the_readme_fits_on_a_page() -> None:
    """The page has a summary, a table and the way it works; everything else has a page of its own."""
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(re.findall(r"^\|---", text, re.MULTILINE)) == 1, "one table"


def test_the_badge_is_of_a_workflow_and_stays_out_of_the_site() -> None:
    text = README.read_text(encoding="utf-8")
    (workflow,) = re.findall(r'src="\.\./\.\./actions/workflows/(.*)/badge\.svg"', text)
    assert (ROOT / ".github" / "workflows" / workflow).is_file()
    assert "badge" not in site().BADGE.sub("", text)


def test_a_notebook_is_a_page_with_its_outputs() -> None:
    notebooks = [target for target in site().linked(site().start_pages()) if target.endswith(".ipynb")]
    assert len(notebooks) == 6
    study = site().text_of("examples/notebooks/search_as_a_study.ipynb")
    assert "~~~~python\nimport " in study and "~~~~text\n" in study
    assert "\n\n![](data:image/png;base64,iVBORw0KGgo" in study


def test_the_picture_of_kinds_is_what_its_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from docs import make_kinds_picture as kinds

    assert kinds.PICTURE.read_text(encoding="utf-8") == kinds.document()


@pytest.mark.slow
@pytest.mark.long
def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Where it wins" in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'id="sparsegenprepare"' in (tmp_path / "api.html").read_text(encoding="utf-8")
    assert not list(tmp_path.rglob("__pycache__"))
    assert 'id="matrixerror"' in (tmp_path / "errors.html").read_text(encoding="utf-8")
    loaded = [
        f"{path.name}: {address}"
        for path in tmp_path.rglob("*.html")
        for address in re.findall(
            r"<(?:script|img|link)[^>]*(?:src|href)=\"(https?://[^\"]+)", path.read_text(encoding="utf-8")
        )
    ]
    assert loaded == [], "the site needs no network"


def test_every_page_has_its_place() -> None:
    """A page that the navigation lacks is found by searching alone."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    places = set(re.findall(r"[\w/.-]+\.md", nav))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - places == set()
