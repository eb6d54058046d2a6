"""``sparsegen db pin``, ``unpin`` and ``pins``: choices that stay, in a file that a repository can hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.text import Text

from sparsegen.cli.parts.common import (
    F,
    Fingerprint,
    Listing,
    config_option,
    db_option,
    emit,
    family_names,
    json_option,
    parse_config,
)
from sparsegen.errors import DatabaseError, PinsError
from sparsegen.kernels import require_family
from sparsegen.kernels.config import Config
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.tuning_db import ranking
from sparsegen.tuning_db.layers import Layers, open_layers
from sparsegen.tuning_db.pins import LONGEST_NOTE, Pin, Pins, pins_path
from sparsegen.tuning_db.pins_file import pin_dict, read_pins, write_pins
from sparsegen.tuning_db.records import Tuned

SHORT = 12  # digits of a fingerprint in a table


def pins_option(function: F) -> F:
    """``pins``: Path | None."""
    return click.option(
        "--pins",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file of pins; default SPARSEGEN_PINS, else .sparsegen/pins.json here.",
    )(function)


def device_key_option(function: F) -> F:
    """``device``: str, a key or empty."""
    return click.option(
        "--device", default="", metavar="KEY", help="Only on this device (see `sparsegen db list`)."
    )(function)


def _file(pins: Path | None) -> Path:
    return pins or pins_path(Settings.from_environment())


@click.command("pin")
@click.argument("matrix", type=Fingerprint())
@click.option(
    "--family", default="", shell_complete=family_names, help="Pin this family's variant, not the winner."
)
@config_option
@device_key_option
@click.option("--note", default="", help="Why, for those who review the file.")
@pins_option
@db_option
@json_option
def pin(
    matrix: str,
    family: str,
    config: tuple[str, ...],
    device: str,
    note: str,
    pins: Path | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Fix what runs for MATRIX, the first digits of a fingerprint: today's winner, or the variant that is named.

    Dispatch obeys the file whatever is measured later; keep it with the code.
    """
    if config and not family:
        raise click.UsageError("--config needs --family")
    if len(note) > LONGEST_NOTE:
        raise click.BadParameter(f"at most {LONGEST_NOTE} characters", param_hint="--note")
    with open_layers(Settings.from_environment(), db) as layers:
        tuned = [
            t
            for t in layers.list_workloads()
            if t.workload.fingerprint.startswith(matrix) and device in ("", t.device.key)
        ]
        if not tuned:
            raise DatabaseError(
                f"nothing is known of a matrix {matrix!r}" + (f" on {device}" if device else "")
            )
        choose = _named(family, config) if family else _winner(layers)
        made = [Pin(t.workload.problem, t.workload.fingerprint, t.device.key, choose(t), note) for t in tuned]
    file = _file(pins)
    write_pins(read_pins(file).with_pins(made), file)
    _emit(as_json, file, made, f"pinned in {file}")


def _named(name: str, pairs: tuple[str, ...]) -> Callable[[Tuned], Config]:
    values = parse_config(pairs)

    def choose(tuned: Tuned) -> Config:
        problem = tuned.workload.problem
        known = require_family(name, problem)
        heuristic = known.heuristic(problem, tuned.workload.features, tuned.device).to_dict()
        config: Config = known.config(**{**heuristic, **values})
        known.require_valid(problem, config, tuned.device)
        return config

    return choose


def _winner(layers: Layers) -> Callable[[Tuned], Config]:
    def choose(tuned: Tuned) -> Config:
        best = ranking.best(layers.measurements(tuned.workload, tuned.device))
        if best is None or not best.variant.config.is_known:
            raise DatabaseError(
                f"no variant of {tuned.workload.problem} on {tuned.device.name} may run; name a --family"
            )
        return best.variant.config

    return choose


@click.command("unpin")
@click.argument("matrix", type=Fingerprint())
@device_key_option
@pins_option
@json_option
def unpin(matrix: str, device: str, pins: Path | None, as_json: bool) -> None:
    """Free the choice for MATRIX, the first digits of a fingerprint."""
    file = _file(pins)
    known = read_pins(file)
    gone = [p for p in known if p.fingerprint.startswith(matrix) and device in ("", p.device)]
    if not gone:
        raise PinsError(f"{file} pins nothing for a matrix {matrix!r}; see `sparsegen db pins`")
    write_pins(known.without(gone), file)
    _emit(as_json, file, gone, f"no longer pinned in {file}")


@click.command("pins")
@pins_option
@json_option
def list_pins(pins: Path | None, as_json: bool) -> None:
    """List the pins."""
    file = _file(pins)
    known: Pins = read_pins(file)
    _emit(as_json, file, list(known), f"{file} pins nothing" if not len(known) else str(file))


def _emit(as_json: bool, file: Path, pins: list[Pin], text: str) -> None:
    table = Listing("matrix", "problem", "device", "variant", "note")
    for p in pins:
        table.add_row(p.fingerprint[:SHORT], str(p.problem), p.device, str(p.config), p.note)
    data: Json = {"file": file, "pins": [pin_dict(p) for p in pins]}
    emit(as_json, data, Text(text), *([table] if pins else []))
