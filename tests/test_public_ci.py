"""The workflow of the public CI calls targets that there are, for the Pythons that are supported; metadata agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import sparsegen

ROOT = Path(__file__).parents[1]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE)) | {
    target for line in re.findall(r"^([a-z -]+):", MAKEFILE, re.MULTILINE) for target in line.split()
}


def test_every_target_is_there() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    called = set()
    for job in jobs.values():
        for step in job["steps"]:
            words = step.get("run", "").split()
            if words[:1] == ["make"] and "matrix.target" not in step["run"]:
                called.update(words[1:])
    called.update(jobs["all-tests"]["strategy"]["matrix"]["target"])
    lines = re.findall(r"^ *(?:for target in|run) (.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    ours = {word for line in lines for word in re.findall(r"[a-z.=-]+", line)} & TARGETS
    assert {"lint", "test", "test-rest", "types", "docs"} <= ours
    assert {*ours, "dist"} <= called, "what a change must pass here, it must pass there"
    assert called <= TARGETS, called - TARGETS
    assert {"lint", "tests", "all-tests", "docs", "wheels"} == jobs.keys()


def test_the_same_pythons_are_tested_and_built_for() -> None:
    yaml = pytest.importorskip("yaml")
    jobs = yaml.safe_load(WORKFLOW)["jobs"]
    tested = jobs["tests"]["strategy"]["matrix"]["python"]
    (built,) = (
        step["with"]["python-version"] for step in jobs["wheels"]["steps"] if "python-version" in str(step)
    )
    assert built.split() == tested
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={tested[0]}"
    looked_for = re.search(r"PYTHONS:-([^}]*)}", (ROOT / ".ci" / "dist").read_text())
    assert looked_for is not None
    assert looked_for[1].split() == [f"python{version}" for version in tested]


def test_the_version_stands_once() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in config["project"] and "version" in config["project"]["dynamic"]
    assert config["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "sparsegen.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", sparsegen.__version__)
    assert not re.search(r"^version:", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


def test_type_checkers_find_types_in_an_installation() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in config["tool"]["setuptools"]["package-data"]["sparsegen"]
    assert (ROOT / "sparsegen" / "py.typed").is_file()
