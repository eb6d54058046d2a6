"""What tests take: CPU seconds, and which of them compile kernels or start processes; kept in costs.json.

A test that is not there takes less than `LEAST`, or was not recorded yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FILE = FOLDER / "costs.json"
CONTRACT = "test_contract"  # how the files of contract tests are called
LEAST, SLOW, LONG = 0.01, 0.1, 0.5  # CPU seconds


@dataclass(frozen=True)
class Costs:
    """What is known of tests, by their names.

    Attributes:
        seconds: CPU seconds, child processes included.
        starting: they compile kernels or start processes.
        long: they took `LONG` when all tests were recorded.
    """

    seconds: Mapping[str, float]
    starting: frozenset[str]
    long: frozenset[str]

    @staticmethod
    def read() -> Costs:
        kept = json.loads(FILE.read_text())
        return Costs(kept["seconds"], frozenset(kept["starting"]), frozenset(kept["long"]))

    def updated(self, found: Mapping[str, tuple[float, bool]], *, whole: bool) -> Costs:
        """With what a run found instead of what was known of these tests, and without tests that are gone.

        Only a ``whole`` run, of all tests, says what a test takes that compiles or starts processes, as the first one
        to need a kernel compiles it; and only such a run says which tests are long.
        """
        starting = (self.starting - found.keys()) | {name for name, (_, starts) in found.items() if starts}
        new = {name: round(s, 2) for name, (s, starts) in found.items() if whole or not starts}
        long = (self.long - found.keys()) | {n for n, s in new.items() if s >= LONG} if whole else self.long
        return Costs(
            {name: s for name, s in {**self.seconds, **new}.items() if s >= LEAST and is_there(name)},
            frozenset(filter(is_there, starting)),
            frozenset(filter(is_there, long)),
        )

    def write(self) -> None:
        kept = {
            "long": sorted(self.long),
            "starting": sorted(self.starting),
            "seconds": dict(sorted(self.seconds.items())),
        }
        FILE.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")

    def is_fast(self, name: str) -> bool:
        """Whether a test is in the first ring, for what it takes and does; contract tests never are."""
        if name.startswith(CONTRACT) or name in self.starting or name in self.long:
            return False
        return self.seconds.get(name, 0.0) < SLOW


def name_of(item: pytest.Item) -> str:
    """As pytest names it when it is started at the root of the repository, wherever that was."""
    return f"{item.path.relative_to(FOLDER).as_posix()}::{item.nodeid.partition('::')[2]}"


def is_there(name: str) -> bool:
    """Whether the function of a test still stands in its file."""
    file, _, test = name.partition("::")
    function = test.partition("[")[0].rpartition("::")[2]
    path = FOLDER / file
    return path.is_file() and f"def {function}(" in path.read_text()
