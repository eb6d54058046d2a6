"""Files of pins, read and written: look-ups import this where there is such a file."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from sparsegen.errors import PinsError
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_text, reported
from sparsegen.tuning_db.config_reader import read_config
from sparsegen.tuning_db.json_reader import HEX, Node, parse_json, read_text
from sparsegen.tuning_db.pins import LONGEST_NOTE, Key, Pin, Pins
from sparsegen.tuning_db.problem_reader import problem_dict, read_problem
from sparsegen.tuning_db.project import is_there

FORMAT, VERSION = "sparsegen-pins", 1
LARGEST_FILE = 64 * 2**20  # bytes


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


def write_pins(pins: Pins, path: Path) -> None:
    """Replace the file, whole or not at all; equal pins make equal text.

    Raises:
        OutputError: it cannot be written.
    """
    ordered = sorted(pins, key=lambda p: (p.device, str(p.problem), p.fingerprint))
    lines = ",".join("\n" + json.dumps(pin_dict(pin)) for pin in ordered)
    text = f'{{"format": "{FORMAT}", "version": {VERSION}, "pins": [{lines}\n]}}\n'
    with reported(path, "name another file with --pins"):
        publish_text(path, text)


def pin_dict(pin: Pin) -> Json:
    """A pin as JSON values."""
    return {
        "problem": problem_dict(pin.problem),
        "fingerprint": pin.fingerprint,
        "device": pin.device,
        "family": pin.config.family_name,
        "config": pin.config.to_dict(),
        "note": pin.note,
        "pinned_at": pin.pinned_at.isoformat(),
    }
