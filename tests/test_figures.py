"""Figures stand in the README by a rule: each in a table that `benchmarks.make_tables` makes, and none in its prose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsegen.system import compressed

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MADE = re.compile(r"<!-- ([a-z0-9-]+):begin -->.*?<!-- \1:end -->", re.DOTALL)
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# A time, a ratio or a rate; sizes such as 128 × 128 and 8192 × 2048 are none.
FIGURE = re.compile(r"\d[\d.,]* ?(?:µs|ms|GB/s|TB/s|G?FLOP/s)|\d\.\d+ ×|\d[\d.]*\]? times|\d ×(?! \d)")
LARGEST = 1 << 30  # bytes of a raw result
OURS = ("/home/you/",)  # what pages write in the place of a user's home
# Folders of a machine; what a page shows of a system's own, such as /proc and /usr, is everybody's.
FOLDER = re.compile(r"(?<![\w.~/])/(?:tmp|root|home|mnt|work|workspace)/[\w.-]+/[\w./-]*\w")


def prose(text: str) -> str:
    """A page without what is made and without what commands print."""
    return CODE.sub("", MADE.sub("", text))


@pytest.mark.parametrize(
    ("text", "is_figure"),
    [
        ("takes 1.7 times as long", True),
        ("the gain is 1.34 ×, and", True),
        ("in 13.4 µs", True),
        ("20 to 490 × faster", True),
        ("blocks of 128 × 128", False),
        ("tried 64 variants", False),
        ("```\ntime 13.4 µs\n```", False),
        ("<!-- a-b:begin -->\n1.5 ×\n<!-- a-b:end -->", False),
    ],
)
def test_what_a_figure_is(text: str, is_figure: bool) -> None:
    assert bool(FIGURE.search(prose(text))) is is_figure


def test_the_readme_has_no_figure_that_was_typed() -> None:
    text = prose((ROOT / "README.md").read_text(encoding="utf-8"))
    assert FIGURE.findall(text) == []


def text_of(path: Path) -> str:
    """The text of a file, also one that xz compresses."""
    if not compressed.is_compressed(path):
        return path.read_text(encoding="utf-8")
    return compressed.decompress(path.read_bytes(), LARGEST).decode("utf-8")


def test_a_folder_is_found_in_a_compressed_file(tmp_path: Path) -> None:
    (tmp_path / "a.json.xz").write_bytes(compressed.compress('{"command": "bench /home/somebody/a.npz"}'))
    assert FOLDER.findall(text_of(tmp_path / "a.json.xz")) == ["/home/somebody/a.npz"]


@pytest.mark.parametrize("folder", ["benchmarks/results", "docs", "examples", "tuning_db/seeds"])
def test_no_page_or_result_has_a_folder_of_the_measuring_machine(folder: str) -> None:
    found, read = {}, 0
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / folder).rglob("*")]:
        if path.suffix in (".md", ".json", ".txt", ".html", ".svg", compressed.SUFFIX):
            places = [place for place in FOLDER.findall(text_of(path)) if not place.startswith(OURS)]
            read += folder in str(path)
            if places:
                found[str(path.relative_to(ROOT))] = places[:3]
    assert found == {} and read
