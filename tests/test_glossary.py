"""The words of docs/architecture.md's glossary, and no others for the same things: in code, templates and pages."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEMPLATES = sorted(Path(str(files("sparsegen.templates"))).rglob("*.j2"))
PLACES = ("sparsegen", "cli", "tuning_db", "benchmarks", "docs", "examples")
OLD_EVERYWHERE = {
    r"\w*contenders?(_\w+)?": "baseline",
    r"\w*parcels?(_\w+)?": "inputs",
    r"verdicts?|_verdict\w*": "result, or what it says: faster, outcome, state",
    r"fates?": "state",
    r"grounds": "source",
    r"(the )?(house|hall|wing)s?": "package",
    r"(one|an|single|each|all|several) items? (of|in) (a|the) batch": "batch element",
    r"one_item|items_in_grid|item_reference": "batch element",
    r"chosenway|choose_way|attention_way|sparsegen\.way": "implementation",
}
STORED = {"contender"}  # the column's and the member's name in databases and exports, which stay readable
OLD = {
    r"bring(s|ing)?|brought|bring_\w+": "load",
    r"copy engine": "TMA",
    r"emptied|\w+_emptied|wait_filled": "full and empty barriers",
    r"(Stage|Tile)?Notes?|notes?": "descriptor",
    r"mail": "tile queue",
    r"sheets?": "segment",
    r"laid down|lays? down|lay_down": "stage",
    r"blocks (that )?stay": "persistent kernel",
    r"warpgroup_\w*turned": "swap_ab",
    r"(?!itemsize|items\(\))k?items?\w*|\w+_items?\w*": "batch element; of other work a round or a task",
    r"nobody|somebody": "the thread, warp or block that is meant",
}


@pytest.mark.parametrize("old", OLD)
def test_no_template_has_old_words(old: str) -> None:
    pattern = re.compile(rf"\b({old})\b", re.IGNORECASE)
    found = [
        f"{path.name}: {match[0]!r}"
        for path in TEMPLATES
        for match in pattern.finditer(path.read_text("utf-8"))
    ]
    assert not found, f"say {OLD[old]!r} instead"


@pytest.mark.parametrize("old", OLD_EVERYWHERE)
def test_no_page_or_module_has_old_words(old: str) -> None:
    pattern = re.compile(rf"\b({old})\b", re.IGNORECASE)
    paths = [path for place in PLACES for kind in ("*.py", "*.md") for path in (ROOT / place).rglob(kind)]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]!r}"
        for path in paths
        if "results" not in path.parts or path.suffix == ".py"
        for match in pattern.finditer(path.read_text("utf-8"))
        if not (path.parent.name == "tuning_db" and match[0] in STORED)
    ]
    assert not found, f"say {OLD_EVERYWHERE[old]!r} instead"
