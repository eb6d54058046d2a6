"""Pins: choices that are fixed in a file, which a repository holds and people review.

By default ``.sparsegen/pins.json`` in the working folder, one pin a line. Dispatch obeys them whatever was measured.
The file (`pins_file`) says which variant runs, so it is read by the same rules as a project's database (docs/trust.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.settings import Settings
from sparsegen.system.compared import Compared
from sparsegen.tuning_db.records import Workload

PROJECT_PINS = Path(".sparsegen") / "pins.json"
LONGEST_NOTE = 500  # characters

Key = tuple[Problem, str, str]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Pin(Compared):
    """A variant that is to run for one workload on one device.

    Attributes:
        device: its key.
        note: why, for people.
    """

    problem: Problem
    fingerprint: str
    device: str
    config: Config
    note: str = ""
    pinned_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def key(self) -> Key:
        """The key that it pins: there is one pin for each."""
        return self.problem, self.fingerprint, self.device


@dataclass(frozen=True, eq=False, repr=False)
class Pins(Compared):
    """Pins by what they are for, and the file that they are from.

    Attributes:
        place: None where there is no file.
    """

    by_key: dict[Key, Pin] = field(default_factory=dict)
    place: Path | None = None

    def __len__(self) -> int:
        return len(self.by_key)

    def __iter__(self) -> Iterator[Pin]:
        return iter(self.by_key.values())

    def find(self, workload: Workload, device: Device) -> Pin | None:
        """The pin of a workload on a device, or None."""
        return self.by_key.get((workload.problem, workload.fingerprint, device.key)) if self.by_key else None

    def with_pins(self, pins: Iterable[Pin]) -> Pins:
        """Returns the pins with these added; each replaces the one with the same key."""
        return Pins(self.by_key | {pin.key: pin for pin in pins}, self.place)

    def without(self, pins: Iterable[Pin]) -> Pins:
        """All others."""
        gone = {pin.key for pin in pins}
        return Pins({key: pin for key, pin in self.by_key.items() if key not in gone}, self.place)


def pins_path(settings: Settings) -> Path:
    """Returns the path of the pins: `Settings.pins`, else the project's."""
    return settings.pins or PROJECT_PINS
