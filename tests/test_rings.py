"""What `make test` leaves out, `make test-all` runs; and it leaves out nothing of a kind of its own."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rings
from contract_cases import sample
from contract_ring import all_variants, cover, in_rings, short_ring, shown, with_new_values

from sparsegen.kernels import families

ROOT = Path(__file__).parents[1]
each_family = pytest.mark.parametrize("name", families())


def recipe(target: str) -> str:
    """The command of a target of the Makefile, with what `PYTEST` stands for."""
    text = (ROOT / "Makefile").read_text()
    found = re.search(rf"^{target}:.*\n\t(.*)\n", text, re.MULTILINE)
    pytest_command = re.search(r"^PYTEST := (.*)\n", text, re.MULTILINE)
    assert found is not None and pytest_command is not None
    return found[1].replace("$(PYTEST)", pytest_command[1])


def test_the_longest_ring_leaves_nothing_out() -> None:
    words = recipe("test-all").split()
    assert words[1:3] == ["-m", "pytest"]
    assert not {"-m", "-k", "--ignore", "--deselect", "tests"} & set(words[3:])
    assert recipe("test").replace("'not long'", "long") == recipe("test-long")
    assert re.search(r"^for target in .*\btest test-long\b", (ROOT / ".ci/run").read_text(), re.MULTILINE)


def test_the_shorter_rings_leave_out_what_is_marked() -> None:
    assert recipe("test").endswith("-m 'not long'")
    assert recipe("test-fast").endswith("-m 'not long and not slow'")


def test_a_cover_shows_all_and_none_of_it_is_in_vain() -> None:
    items = ["ab", "bc", "abcd", "de", "xyz", "x", "zyx", ""]
    chosen = cover(items, frozenset)
    assert chosen == ["abcd", "de", "xyz"]
    assert cover([], frozenset) == []


@each_family
def test_the_short_ring_shows_all_of_a_family(name: str) -> None:
    """Every line of code, trait and matrix that any variant of the sample has."""
    everything = frozenset[Any]().union(*map(shown, sample(name)))
    assert frozenset[Any]().union(*map(shown, short_ring(name))) == everything
    assert {"dtype", "batch", "matrix", "line"} <= {entry[0] for entry in everything}
    assert set(short_ring(name)) <= set(sample(name))


@each_family
def test_values_are_renewed_in_the_short_ring_too(name: str) -> None:
    assert set(short_ring(name)) & set(with_new_values())


def test_every_variant_is_in_a_ring() -> None:
    parameters = list(in_rings(all_variants()))
    short = {variant for name in families() for variant in short_ring(name)}
    assert [p.values[0] for p in parameters] == all_variants()
    assert {p.values[0] for p in parameters if not p.marks} == short
    assert len(short) < len(parameters) / 2, "else there is no need of rings"


@dataclass
class Item:
    """As much of a collected test as rings are found by."""

    name: str
    marks: list[str] = field(default_factory=list)
    fixturenames: tuple[str, ...] = ()
    path: Path = rings.FOLDER / "cli" / "test_some.py"

    @property
    def nodeid(self) -> str:
        return f"tests/cli/test_some.py::{self.name}"

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def test_rings_go_by_what_tests_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"cli/test_some.py::long": 2.0, "cli/test_some.py::slow": 0.5}))
    monkeypatch.setattr(rings, "COSTS", costs)
    group = "xdist_group"
    items = [
        Item("long"),
        Item("slow"),
        Item("new"),
        Item("asan", ["sanitizer"]),
        Item("v", [], ("compiled",)),
    ]
    rings.sort_into_rings(items)  # type: ignore[arg-type]
    assert [item.marks for item in items] == [
        ["long", "slow", group], ["slow", group], [group], ["sanitizer", "slow", group], []
    ]  # fmt: skip


def test_costs_are_recorded_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"cli/test_some.py::other": 2.0, "cli/test_some.py::faster": 2.0}))
    monkeypatch.setattr(rings, "COSTS", costs)
    seconds = iter([0.0, 1.5, 1.5, 1.6])
    monkeypatch.setattr(rings, "os", SimpleNamespace(times=lambda: (next(seconds), 0.0, 0.0, 0.0, 99.0)))
    recorder = rings.Recorder()
    for name in ("test", "faster"):
        turn = recorder.pytest_runtest_protocol(Item(name))  # type: ignore[arg-type]
        next(turn)
        with pytest.raises(StopIteration):
            turn.send(True)
    recorder.pytest_sessionfinish()
    assert json.loads(costs.read_text()) == {"cli/test_some.py::other": 2.0, "cli/test_some.py::test": 1.5}
