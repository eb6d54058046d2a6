"""Costs of tests, and which of them compile kernels or start processes; kept in costs.json, a line a file, by function.

A function that is not listed is quick, or was not recorded yet; of those quick ones the file says what all take.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
FILE = FOLDER / "costs.json"
CONTRACT = "test_contract"  # how the files of contract tests are called
LEAST, SLOW, LONG = 0.03, 0.1, 0.5  # CPU seconds


@dataclass(frozen=True)
class Costs:
    """Costs of tests: by the name of a function if most of its cases are alike, else by the names of cases.

    Attributes:
        seconds: by files, CPU seconds of the cases that are in the first ring and take `LEAST`, with child processes.
        slow: they take `SLOW` CPU seconds, compile kernels or start processes; the file leaves out those that are long
            and the contract tests, none of which is in the first ring.
        long: they took `LONG` when all tests were recorded.
    """

    seconds: Mapping[str, float]
    slow: frozenset[str]
    long: frozenset[str]

    @staticmethod
    def read() -> Costs:
        kept = json.loads(FILE.read_text())
        slow, long = (
            frozenset(f"{file}::{name}" for file, of in kept.items() for name in _listed(of.get(kind, ())))
            for kind in ("slow", "long")
        )
        return Costs({file: of["seconds"] for file, of in kept.items() if "seconds" in of}, slow, long)

    def updated(self, found: Mapping[str, tuple[float, bool]], *, whole: bool) -> Costs:
        """Returns these costs with a run's in the place of the old ones, and without tests that are gone.

        Args:
            found: by the names of cases, their CPU seconds, and whether they compile or start processes. A file's tests
                are recorded together.
            whole: it was a run of all tests. Only such a run says which tests are long: in others the first test to
                need a kernel compiles it.
        """
        cases: dict[str, list[str]] = defaultdict(list)
        for name in found:
            cases[function_of(name)].append(name)
        slow = {name for name, (seconds, starts) in found.items() if starts or seconds >= SLOW}
        long = {name for name, (seconds, _) in found.items() if seconds >= LONG}
        made = Costs(
            {},
            _replaced(self.slow, cases, slow),
            _replaced(self.long, cases, long) if whole else frozenset(filter(is_there, self.long)),
        )
        quick = {file: s for file, s in self.seconds.items() if (FOLDER / file).is_file()}
        quick |= dict.fromkeys(map(file_of, found), 0.0)
        for name, (seconds, _) in found.items():
            if made.is_fast(name) and seconds >= LEAST:
                quick[file_of(name)] += seconds
        return Costs({file: round(s, 2) for file, s in quick.items() if s}, made.slow, made.long)

    def write(self) -> None:
        kept: dict[str, dict[str, Any]] = defaultdict(dict)
        slow = {name for name in self.slow if not (name.startswith(CONTRACT) or self.is_long(name))}
        for kind, names in (("long", self.long), ("slow", slow)):
            for file, tests in _by_first(names, "::").items():
                kept[file][kind] = _grouped(tests)
        for file, seconds in self.seconds.items():
            kept[file]["seconds"] = seconds
        lines = (f"{json.dumps(file)}: {json.dumps(of, ensure_ascii=False)}" for file, of in sorted(kept.items()))
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")

    def is_long(self, name: str) -> bool:
        """True if a test is not in `make test`."""
        return name in self.long or function_of(name) in self.long

    def is_fast(self, name: str) -> bool:
        """True if a test is in the first ring, by its costs; contract tests never are."""
        is_slow = name in self.slow or function_of(name) in self.slow
        return not (name.startswith(CONTRACT) or is_slow or self.is_long(name))


def _replaced(known: Iterable[str], cases: Mapping[str, Sequence[str]], chosen: set[str]) -> frozenset[str]:
    """Names of tests with those that were chosen of the recorded functions, instead of what was known of these."""
    kept = {name for name in known if function_of(name) not in cases and is_there(name)}
    for function, names in cases.items():
        some = chosen.intersection(names)
        kept |= {function} if 2 * len(some) > len(names) else some
    return frozenset(filter(is_there, kept))


def _by_first(names: Iterable[str], mark: str) -> dict[str, list[str]]:
    """The sorted ends of names, by what stands before the mark."""
    ends: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        first, _, end = name.partition(mark)
        ends[first].append(end)
    return ends


def _grouped(tests: Iterable[str]) -> list[str | list[str]]:
    """Groups cases under their function: its name alone, or a list of it and of those that are meant."""
    cases = _by_first(tests, "[")
    return [function if "" in of else [function, *of] for function, of in cases.items()]


def _listed(tests: Iterable[str | list[str]]) -> Iterator[str]:
    """The names that `_grouped` has put together."""
    for test in tests:
        if isinstance(test, str):
            yield test
        else:
            yield from (f"{test[0]}[{case}" for case in test[1:])


def name_of(item: pytest.Item) -> str:
    """Returns pytest's name of a test as from the root of the repository, wherever pytest was started."""
    return f"{item.path.relative_to(FOLDER).as_posix()}::{item.nodeid.partition('::')[2]}"


def function_of(name: str) -> str:
    """A case's name without its parameters."""
    return name.partition("[")[0]


def file_of(name: str) -> str:
    """A test's file, below the folder of tests."""
    return name.partition("::")[0]


def is_there(name: str) -> bool:
    """True if the function of a test still exists in its file."""
    file, _, test = function_of(name).partition("::")
    path = FOLDER / file
    return path.is_file() and f"def {test.rpartition('::')[2]}(" in path.read_text()
