"""Pins: choices that are fixed in a file, which a repository holds and people review.

By default ``.sparsegen/pins.json`` in the working folder, one pin a line. Dispatch obeys them whatever was measured.
The file says which variant runs, so it is read by the same rules as a project's database (docs/trust.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sparsegen.errors import PinsError
from sparsegen.kernels.base import Device
from sparsegen.kernels.config import Config
from sparsegen.operators import Problem
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_text, reported
from sparsegen.tuning_db.config_reader import read_config
from sparsegen.tuning_db.json_reader import HEX, Node, parse_json, read_text
from sparsegen.tuning_db.problem_reader import problem_dict, read_problem
from sparsegen.tuning_db.project import is_there, is_trusted
from sparsegen.tuning_db.records import Workload

FORMAT, VERSION = "sparsegen-pins", 1
PROJECT_PINS = Path(".sparsegen") / "pins.json"
LARGEST_FILE = 64 * 2**20  # bytes
LONGEST_NOTE = 500  # characters

Key = tuple[Problem, str, str]


@dataclass(frozen=True, slots=True)
class Pin:
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

    def to_dict(self) -> Json:
        """JSON values."""
        return {
            "problem": problem_dict(self.problem),
            "fingerprint": self.fingerprint,
            "device": self.device,
            "family": self.config.family_name,
            "config": self.config.to_dict(),
            "note": self.note,
            "pinned_at": self.pinned_at.isoformat(),
        }


@dataclass(frozen=True)
class Pins:
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

    def write(self, path: Path) -> None:
        """Replace the file, whole or not at all; equal pins make equal text.

        Raises:
            OutputError: it cannot be written.
        """
        ordered = sorted(self, key=lambda p: (p.device, str(p.problem), p.fingerprint))
        lines = ",".join("\n" + json.dumps(pin.to_dict()) for pin in ordered)
        text = f'{{"format": "{FORMAT}", "version": {VERSION}, "pins": [{lines}\n]}}\n'
        with reported(path, "name another file with --pins"):
            publish_text(path, text)


def read_pins(path: Path) -> Pins:
    """The pins of a file, every value checked; none where there is no file.

    Raises:
        PinsError: it is not such a file, or a pin is of no variant that this sparsegen has; it names the place.
    """
    if not is_there(path):
        return Pins(place=path)
    root = parse_json(read_text(path, LARGEST_FILE, PinsError), str(path), PinsError)
    f = root.fields(("format", "version", "pins"))
    if f["format"].value != FORMAT or f["version"].value != VERSION:
        root.refuse(f'"format" {FORMAT} and "version" {VERSION}')
    found: dict[Key, Pin] = {}
    for node in f["pins"].items():
        pin = _pin(node)
        if pin.key in found:
            node.refuse("one pin for a workload and device")
        found[pin.key] = pin
    return Pins(found, path)


def _pin(node: Node) -> Pin:
    f = node.fields(("problem", "fingerprint", "device", "family", "config"), ("note", "pinned_at"))
    problem = read_problem(f["problem"])
    return Pin(
        problem=problem,
        fingerprint=f["fingerprint"].text(64, HEX),
        device=f["device"].text(200, ".+"),
        config=read_config(f["family"], f["config"], problem),
        note=f["note"].text(LONGEST_NOTE) if "note" in f else "",
        pinned_at=f["pinned_at"].moment() if "pinned_at" in f else datetime.now(UTC),
    )


def pins_path(settings: Settings) -> Path:
    """Returns the path of the pins: `Settings.pins`, else the project's."""
    return settings.pins or PROJECT_PINS


def open_pins(settings: Settings) -> Pins:
    """The pins that hold here. The project's are passed over, with a warning, where others could have written them.

    Raises:
        PinsError: see `read_pins`.
    """
    path = pins_path(settings)
    if settings.pins is None and not is_trusted(path):
        return Pins()
    return read_pins(path)
