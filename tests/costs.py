"""Costs of tests, and which of them compile kernels or start processes; kept in costs.json by file and function.

A function that is not listed takes less than `LEAST` CPU seconds for each case, or was not recorded yet.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
        seconds: by functions, CPU seconds of all their cases that are in the first ring, child processes included.
        slow: they take `SLOW` CPU seconds, compile kernels or start processes; the file leaves out those that are long.
        long: they took `LONG` when all tests were recorded.
    """

    seconds: Mapping[str, float]
    slow: frozenset[str]
    long: frozenset[str]

    @staticmethod
    def read() -> Costs:
        kept = json.loads(FILE.read_text())
        slow, long = (
            frozenset(f"{file}::{name}" for file, of in kept.items() for name in of.get(kind, ()))
            for kind in ("slow", "long")
        )
        seconds = {
            f"{file}::{name}": s for file, of in kept.items() for name, s in of.get("seconds", {}).items()
        }
        return Costs(seconds, slow, long)

    def updated(self, found: Mapping[str, tuple[float, bool]], *, whole: bool) -> Costs:
        """Returns these costs with a run's in the place of the old ones, and without tests that are gone.

        Args:
            found: by the names of cases, their CPU seconds, and whether they compile or start processes. A function's
                cases are recorded together.
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
        quick: dict[str, float] = {f: s for f, s in self.seconds.items() if f not in cases and is_there(f)}
        for function, names in cases.items():
            taken = sum(found[name][0] for name in names if made.is_fast(name) and found[name][0] >= LEAST)
            if taken >= LEAST:
                quick[function] = round(taken, 2)
        return Costs(quick, made.slow, made.long)

    def write(self) -> None:
        kept: dict[str, dict[str, Any]] = defaultdict(dict)
        slow = [name for name in self.slow if not self.is_long(name)]
        for kind, names in (("long", self.long), ("slow", slow)):
            for name in sorted(names):
                file, _, test = name.partition("::")
                kept[file].setdefault(kind, []).append(test)
        for name, seconds in sorted(self.seconds.items()):
            file, _, test = name.partition("::")
            kept[file].setdefault("seconds", {})[test] = seconds
        text = json.dumps(dict(sorted(kept.items())), indent=0, ensure_ascii=False)
        FILE.write_text(text + "\n")

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


def name_of(item: pytest.Item) -> str:
    """Returns pytest's name of a test as from the root of the repository, wherever pytest was started."""
    return f"{item.path.relative_to(FOLDER).as_posix()}::{item.nodeid.partition('::')[2]}"


def function_of(name: str) -> str:
    """A case's name without its parameters."""
    return name.partition("[")[0]


def is_there(name: str) -> bool:
    """True if the function of a test still exists in its file."""
    file, _, test = function_of(name).partition("::")
    path = FOLDER / file
    return path.is_file() and f"def {test.rpartition('::')[2]}(" in path.read_text()
