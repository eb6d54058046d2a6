"""Outputs that the documentation shows are what the commands print, where that is the same on every machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sparsegen.cli.main import cli

ROOT = Path(__file__).parents[1]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELIDED = "..."  # a line that stands for any number of them
DIGEST = re.compile(r"templates [0-9a-f]{12}")  # changes with every template
# Commands that measure nothing, look nothing up that was measured, and name no place of a machine.
SAME_EVERYWHERE = (
    "sparsegen families panel_spmm",
    "sparsegen lookup --matrix missing.npz --json",
    "sparsegen lookup --matrix examples/pruned_mlp_layer.npz -n 64 --dtype float16 --on-miss error",
    "sparsegen mask ",
    "sparsegen network generate ",
    "sparsegen prune examples/pruned_mlp_layer.npz --pattern ",
    "sparsegen source --m ",
    "sparsegen verify --matrix examples/pruned_mlp_layer.npz -n 64 --family panel_spmm",
)


def shown(page: Path) -> Iterator[tuple[str, str]]:
    """The commands of a page that print the same everywhere, in order, and what the page shows of their output."""
    for block in CONSOLE.findall(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            if line.startswith(SAME_EVERYWHERE) and output.strip():
                yield line, output


def pattern(output: str) -> str:
    """A regular expression for what a page shows."""
    lines = DIGEST.sub("templates 000000000000", output.rstrip()).splitlines()
    return "".join(r"(?:.*\n)*?" if line == ELIDED else re.escape(line) + r"\n" for line in lines)


PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if list(shown(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_outputs_are_those_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    settings = {"SPARSEGEN_DB": str(tmp_path / "tuning.db"), "SPARSEGEN_DEVICE": "emulator"}
    for line, output in shown(page):
        printed = CliRunner(env=settings).invoke(cli, shlex.split(line)[1:]).output.rstrip() + "\n"
        printed = DIGEST.sub("templates 000000000000", printed)
        assert re.fullmatch(pattern(output), printed), f"{page.name}: $ {line}\n{printed}"


def test_pages_with_outputs_are_found() -> None:
    assert {page.name for page in PAGES} >= {"cli.md"}
