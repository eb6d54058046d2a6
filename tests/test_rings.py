"""Tests that `make test` leaves out are in `make test-all`; and it leaves out nothing of a kind of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import costs
import pytest
import recorder
import rings
from costs import Costs
from recorder import Observer, Recorder, Unrecorded, Watch
from rings import BESIDE_TORCH, FAST, FAST_BUDGET

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
WINGS = [path.parent.name for path in sorted((ROOT / "sparsegen").glob("*/__init__.py"))]
ROOMS = sorted([*WINGS, "cli", "tuning_db"])


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
    assert recipe("test-rest").endswith(f"-m '{BESIDE_TORCH}'") and BESIDE_TORCH == "long or torch"
    assert re.search(r"^for target in .*\btest test-rest;", (ROOT / ".ci/run").read_text(), re.MULTILINE)


def test_what_needs_pytorch_or_jupyter_is_marked() -> None:
    """`make test-rest` runs all of `make test-torch` and `make test-examples`."""
    examples = [TESTS / "examples" / f"test_{name}.py" for name in ("torch_examples", "notebooks")]
    needing = [path for path in TESTS.rglob("test_*.py") if 'importorskip("torch")' in path.read_text()]
    assert len(needing) > 50
    items = [Item("some", path=path) for path in (*needing, *examples)]
    rings.sort_into_rings(items)  # type: ignore[arg-type]
    assert all("torch" in item.marks for item in items)


def test_the_shorter_rings_leave_out_what_is_marked() -> None:
    assert recipe("test").endswith("-m 'not long'")
    assert recipe("test-fast").endswith(f"-m '{FAST}' --ignore-glob 'tests/test_contract*'")


# --- the first ring: cheap, and of everything ---


def test_the_first_ring_stays_within_its_budget() -> None:
    costs = Costs.read()
    assert sum(costs.seconds.values()) < FAST_BUDGET


def fast_share(folder: Path) -> tuple[int, int]:
    """Counts the test functions below a folder with every case in the first ring, and all of them."""
    kept = Costs.read()
    slow = {costs.function_of(name) for name in kept.slow | kept.long}
    names = [
        f"{path.relative_to(TESTS).as_posix()}::{test}"
        for path in sorted(folder.rglob("test_*.py"))
        for test in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
    ]
    fast = (name not in slow and not name.startswith(costs.CONTRACT) for name in names)
    return sum(fast), len(names)


@pytest.mark.parametrize("room", ROOMS)
def test_the_first_ring_tests_every_room(room: str) -> None:
    fast, _ = fast_share(TESTS / room)
    assert fast >= 5


def test_the_first_ring_is_most_of_the_tests() -> None:
    fast, all_tests = fast_share(TESTS)
    assert fast > 0.6 * all_tests


# --- what tests take ---


@dataclass
class Item:
    """The part of a collected test by which rings are found."""

    name: str
    marks: list[str] = field(default_factory=list)
    fixturenames: tuple[str, ...] = ()
    path: Path = TESTS / "cli" / "test_some.py"
    user_properties: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def nodeid(self) -> str:
        return f"tests/cli/test_some.py::{self.name}"

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def named(**values: Any) -> dict[str, Any]:
    return {f"cli/test_some.py::{name}": value for name, value in values.items()}


def test_rings_go_by_what_tests_take_and_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "FILE", tmp_path / "costs.json")
    names = frozenset(named(**{"slow": 1, "long": 1, "mixed[b]": 1}))
    written = Costs({"cli/test_some.py": 0.05}, names, frozenset(named(**{"long": 1, "mixed[c]": 1})))
    written.write()
    assert Costs.read() == replace(written, slow=names - written.long)
    marks = {
        "long": ["long", "slow"],
        "long[a]": ["long", "slow"],
        "slow[a-b]": ["slow"],
        "quick": [],
        "mixed[a]": [],
        "mixed[b]": ["slow"],
        "mixed[c]": ["long", "slow"],
        "new": [],
    }
    items = [*map(Item, marks), Item("asan", ["sanitizer"])]
    rings.sort_into_rings(items)  # type: ignore[arg-type]
    assert [item.marks for item in items] == [*marks.values(), ["sanitizer", "slow"]]


def test_what_reads_all_sources_is_never_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "FILE", tmp_path / "costs.json")
    Costs({}, frozenset(), frozenset(f"{file}::long" for file in rings.SOURCES)).write()
    items = [Item("long", path=TESTS / file) for file in rings.SOURCES]
    rings.sort_into_rings(items)  # type: ignore[arg-type]
    assert all(item.path.is_file() and item.marks == ["slow"] for item in items)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests are there."""
    monkeypatch.setattr(costs, "is_there", lambda name: not name.endswith("gone"))


@pytest.mark.usefixtures("written")
def test_a_run_of_some_tests_replaces_what_they_took() -> None:
    known = Costs(
        {"cli/test_some.py": 0.6, "cli/test_cli_db.py": 0.2, "cli/test_no_more.py": 0.2},
        frozenset(named(**{"starts_no_more": 1, "gone": 1, "other[b]": 1, "mixed[a]": 1})),
        frozenset(named(faster=1)),
    )
    found = {
        "faster": (0.3, False),
        "starts": (0.02, True),
        "new": (0.09, False),
        "starts_no_more": (0.001, False),
        "mixed[a]": (0.04, False),
        "mixed[b]": (0.2, False),
        "mixed[c]": (0.03, False),
    }
    made = known.updated(named(**found), whole=False)
    assert made.seconds == {"cli/test_some.py": 0.16, "cli/test_cli_db.py": 0.2}
    assert made.slow == named(**{"faster": 1, "starts": 1, "other[b]": 1, "mixed[b]": 1}).keys()
    assert made.long == named(faster=1).keys(), "only a whole run takes tests out of `make test`, or back"


@pytest.mark.usefixtures("written")
def test_a_run_of_all_tests_says_which_are_long() -> None:
    known = Costs({}, frozenset(), frozenset(named(faster=1, of_a_gpu=1)))
    found = {
        "faster": (0.3, False),
        "new": (0.49, False),
        "both[a]": (8.0, True),
        "both[b]": (0.5, False),
        "one[a]": (0.03, False),
        "one[b]": (0.6, False),
        "most[a]": (0.6, True),
        "most[b]": (0.6, True),
        "most[c]": (0.04, False),
    }
    made = known.updated(named(**found), whole=True)
    assert made.long == named(**{"both": 1, "one[b]": 1, "most": 1, "of_a_gpu": 1}).keys()
    assert made.slow == named(**{"faster": 1, "new": 1, "both": 1, "one[b]": 1, "most": 1}).keys()
    assert made.seconds == {"cli/test_some.py": 0.03}


def test_only_tests_that_are_there_are_kept() -> None:
    assert costs.is_there("test_rings.py::test_only_tests_that_are_there_are_kept")
    assert costs.is_there("test_rings.py::test_the_first_ring_tests_every_room[cli]")
    assert not costs.is_there("test_rings.py::test_that_was_renamed")
    assert not costs.is_there("test_no_file.py::test_only_tests_that_are_there_are_kept")


# --- how it is noticed ---


class Compiler:
    def compile(self, source: str) -> str:
        return source.upper()


@pytest.fixture
def audited(monkeypatch: pytest.MonkeyPatch) -> Callable[[Watch], Callable[[str], None]]:
    """Installs a watch over `Compiler` alone; what it gives stands for Python's events."""
    monkeypatch.setattr(recorder, "COMPILERS", ((Compiler, "compile"),))
    monkeypatch.setattr(Compiler, "compile", Compiler.compile)

    def install(watch: Watch) -> Callable[[str], None]:
        hooks: list[Callable[[str, Any], None]] = []
        monkeypatch.setattr(recorder.sys, "addaudithook", hooks.append)
        watch.install()
        return lambda event: hooks[0](event, ())

    return install


Install = Callable[[Watch], Callable[[str], None]]


def test_compiles_and_processes_are_counted(audited: Install) -> None:
    watch = Watch(refuses=False)
    happens = audited(watch)
    watch.in_test = True
    assert Compiler().compile("source") == "SOURCE"
    happens("subprocess.Popen")
    happens("open")
    assert watch.seen == 2


def test_the_first_ring_skips_them(audited: Install) -> None:
    watch = Watch(refuses=True)
    happens = audited(watch)
    happens("os.fork")  # pytest's own
    watch.in_test = True
    with pytest.raises(pytest.skip.Exception, match="record-costs"):
        Compiler().compile("source")
    with pytest.raises(pytest.skip.Exception, match="compiles or starts processes"):
        happens("os.posix_spawn")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(Compiler().compile, "source").result() == "SOURCE", "others may wait for it"
    assert watch.seen == 4


def drive(hook: Any, value: Any = None) -> None:
    """Runs a wrapper to its end."""
    with pytest.raises(StopIteration):
        hook.send(value)


def test_tests_that_share_a_fixture_count_as_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 1.5, 1.5, 1.6, 2.0, 2.1])
    monkeypatch.setattr(recorder, "cpu_seconds", lambda: next(seconds))
    watch = Watch(refuses=False)
    observer, kept = Observer(watch), Recorder(whole=True)
    ends = SimpleNamespace(when="teardown")
    found = []
    for item in (Item("first", [], ("server",)), Item("second", [], ("server",)), Item("alone")):
        whole = observer.pytest_runtest_protocol(item)  # type: ignore[arg-type]
        next(whole)
        if item.name == "first":
            made = observer.pytest_fixture_setup(  # type: ignore[arg-type]
                SimpleNamespace(scope="module", baseid="tests/cli/test_some.py", argname="server")
            )
            next(made)
            watch.notice()
            drive(made)
        report = observer.pytest_runtest_makereport(item, ends)  # type: ignore[arg-type]
        next(report)
        drive(report)
        drive(whole)
        kept.pytest_runtest_logreport(
            SimpleNamespace(user_properties=item.user_properties, when="teardown")  # type: ignore[arg-type]
        )
    monkeypatch.setattr(Costs, "read", lambda: Costs({}, frozenset(), frozenset()))
    monkeypatch.setattr(costs, "is_there", lambda name: True)
    monkeypatch.setattr(Costs, "write", lambda self: found.append(self))
    kept.pytest_sessionfinish()
    expected = Costs({}, frozenset(named(first=1, second=1, alone=1)), frozenset(named(first=1)))
    assert found == [expected]


def test_what_is_not_of_the_first_ring_is_named_at_its_end() -> None:
    ended = Unrecorded()
    assert list(ended.lines()) == []
    for name, seconds, starts in (("quick", 0.05, False), ("compiles", 0.01, True), ("slow", 1.8, False)):
        property_of = (recorder.PROPERTY, (f"cli/test_some.py::{name}", seconds, starts))
        ended.pytest_runtest_logreport(
            SimpleNamespace(user_properties=[property_of], when="teardown")  # type: ignore[arg-type]
        )
    told = list(ended.lines())
    assert told[0].startswith("2 tests are not of the fast ring and took 1.8 s of CPU time")
    assert told[0].endswith("pytest --record-costs tests/cli/test_some.py")
    assert [line.split("::")[1] for line in told[1:]] == ["compiles", "slow"]
