"""Hook of `mkdocs.yml`: it adds to the pages below docs/.

The front page is the README. The API reference is made from docstrings (`docs/make_api.py`). Files of the repository
that pages link to become pages below ``repository/``, and links lead there; a folder becomes its own README, or where
it has none its path in the repository. A link that leads nowhere stays as it is, for ``mkdocs build --strict`` to
refuse.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # this source tree, whatever is installed

import make_api  # noqa: E402

DOCS, FRONT = "docs", "README.md"
BELOW = "repository"  # where the site has what lies outside of docs/
# A badge of the place where the repository is hosted.
BADGE = re.compile(r"^<img [^>]*badge\.svg\">\n\n", re.MULTILINE)
RESULTS = f"{BELOW}/benchmarks/results/"  # tables of single rows, which would bury what people search for
BOOSTS = {"glossary.md": 4.0, "notes/": 0.3, f"{BELOW}/": 0.3}  # of places among the answers of a search
NOTEBOOK = ".ipynb"
LANGUAGES = {".c": "c", ".h": "c", ".py": "python", ".txt": "text", "": "text"}
SHOWN = (".md", NOTEBOOK, *LANGUAGES)  # files that become pages
# Code, which is left alone, or a link or picture: its words and where it leads.
PART = re.compile(r"^```.*?^```|`[^`\n]*`|(!?\[[^\]]*\])\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    texts = {"index.md": (ROOT / FRONT).read_text(encoding="utf-8"), **make_api.pages()}
    texts |= {f"{BELOW}/{page(path)}": text_of(path) for path in linked(start_pages())}
    for place, text in texts.items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    boost = next((value for start, value in BOOSTS.items() if place.startswith(start)), 1.0)
    page.meta["search"] = {"exclude": True} if place.startswith(RESULTS) else {"boost": boost}
    return relinked(BADGE.sub("", markdown), source_of(place))


def start_pages() -> list[str]:
    """The pages that are there by themselves, as paths in the repository."""
    return [FRONT, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / DOCS).rglob("*.md")))]


def linked(pages: Iterable[str]) -> list[str]:
    """Files outside of docs/ that pages link to, and what these link to in turn."""
    found: dict[str, None] = {}
    waiting = list(pages)
    while waiting:
        source = waiting.pop()
        for part in PART.finditer((ROOT / source).read_text(encoding="utf-8")):
            target = readable(target_of(part[2], source)) if part[2] else None
            if target and not is_own(target) and target not in found:
                found[target] = None
                if target.endswith(".md"):
                    waiting.append(target)
    return sorted(found)


def target_of(link: str, source: str) -> str:
    """Returns the target of a link, as a path in the repository; empty for other addresses and places on the same
    page.
    """
    path = link.partition("#")[0]
    if not path or re.match(r"[a-z]+:", link):
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), path))


def readable(target: str) -> str | None:
    """The file that the site shows of a target; None where it has nothing to show."""
    if (ROOT / target / FRONT).is_file():
        target = f"{target}/{FRONT}"
    path = ROOT / target
    return target if path.is_file() and path.suffix in SHOWN else None


def is_own(target: str) -> bool:
    """True if the site has a page or picture of its own for a target."""
    return target == FRONT or target.startswith(f"{DOCS}/")


def page(target: str) -> str:
    return target if target.endswith(".md") else f"{target}.md"


def text_of(target: str) -> str:
    """A file as a page."""
    text = (ROOT / target).read_text(encoding="utf-8")
    if target.endswith(".md"):
        return text
    path = Path(target)
    if path.suffix == NOTEBOOK:
        return "\n\n".join(part for cell in json.loads(text)["cells"] for part in parts_of(cell)) + "\n"
    return f"# {path.name}\n\n`{target}`\n\n{_fenced(text, LANGUAGES[path.suffix])}\n"


def parts_of(cell: dict[str, Any]) -> Iterator[str]:
    """A notebook's cell as Markdown, and what it printed and drew."""
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else _fenced(source, "python")
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if "image/png" in data:
            yield f"![](data:image/png;base64,{''.join(data['image/png'].split())})"
        elif "text/html" in data:
            yield "".join(data["text/html"])
        else:
            yield _fenced("".join(output.get("text", data.get("text/plain", ""))), "text")


def _fenced(text: str, language: str) -> str:
    return f"~~~~{language}\n{text.rstrip()}\n~~~~"


def place_of(target: str) -> str:
    """Returns the site's path of a file of the repository."""
    if target == FRONT:
        return "index.md"
    return target.removeprefix(f"{DOCS}/") if is_own(target) else f"{BELOW}/{page(target)}"


def source_of(place: str) -> str:
    """The inverse of `place_of`, for pages."""
    if place == "index.md":
        return FRONT
    return place.removeprefix(f"{BELOW}/") if place.startswith(f"{BELOW}/") else f"{DOCS}/{place}"


def relinked(markdown: str, source: str) -> str:
    """A page's text with links to where the site has what they lead to."""

    def moved(part: re.Match[str]) -> str:
        target = target_of(part[2], source) if part[2] else ""
        if not target:
            return part[0]
        shown = target if is_own(target) else readable(target)
        if shown is None:
            there = (ROOT / target).exists()
            return f"{part[1][1:-1]} (`{target}`)" if there else part[0]
        here = posixpath.dirname(place_of(source))
        _, mark, anchor = part[2].partition("#")
        return f"{part[1]}({posixpath.relpath(place_of(shown), here or '.')}{mark}{anchor})"

    return PART.sub(moved, markdown)
