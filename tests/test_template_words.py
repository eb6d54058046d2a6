"""Templates speak of loads, barriers, descriptors and persistent kernels, in the field's words alone."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

TEMPLATES = sorted(Path(str(files("sparsegen.templates"))).rglob("*.j2"))
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
