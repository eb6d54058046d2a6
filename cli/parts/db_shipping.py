"""``sparsegen db publish``, ``diff`` and ``layers``: databases for others, compared, and the order they are read in."""

from __future__ import annotations

import getpass
from contextlib import closing
from pathlib import Path

import click
from rich.text import Text

from sparsegen import backends
from sparsegen.cli.parts.common import OUTPUT, Listing, Part, db_option, emit, force_option, json_option
from sparsegen.errors import DeviceUnavailableError
from sparsegen.kernels.base import Device
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.publish import refuse_existing
from sparsegen.system.quantities import microseconds
from sparsegen.tuning_db.differences import Comparison, Standing, compare
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.layers import PROJECT_DATABASE, open_published, open_to_read
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.project import is_there, is_trusted
from sparsegen.tuning_db.published import Published, Tools, publish, read_published
from sparsegen.tuning_db.seeds_reader import packaged, seeds

SEEDS = "seeds"  # the packaged results, in the place of a database
SHORT = 12  # digits of a fingerprint
SHOWN_DIFFERENCES = 20


@click.command("publish")
@click.option(
    *OUTPUT,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The layer, a .db file.",
)
@click.option("--by", default=None, help="Who publishes it; default your user's name.")
@click.option("--note", default="", help="What it is for.")
@click.option(
    "--driver", default=None, help="That the times were measured with, of devices that are not here."
)
@click.option("--compiler", default=None, help="That made the variants, of devices that are not here.")
@click.option("--winners", is_flag=True, help="Only the finalists of each workload: a smaller file.")
@db_option
@force_option
@json_option
def publish_(
    output: Path,
    by: str | None,
    note: str,
    driver: str | None,
    compiler: str | None,
    winners: bool,
    db: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write a database as a layer that is only read, for a package or a container's image.

    SPARSEGEN_LAYERS names layers that are read.
    """
    refuse_existing(output, force=force)
    refuse_own_database(output, db)

    def tools_of(device: Device) -> Tools:
        here = _tools_here(device)
        return here if here is not None else Tools(driver or "", compiler or "")

    with closing(open_to_read(db or Settings.from_environment().db)) as source:
        told = publish(source, output, by=by or _user(), note=note, winners_alone=winners, tools_of=tools_of)
    emit(as_json, {"layer": output, **told.to_dict()}, *_described(str(output), told))


def refuse_own_database(output: Path, db: str | None) -> None:
    """Raises click.BadParameter where an output would take the place of the database that it is made of."""
    source = Location.parse(db or Settings.from_environment().db).path
    if source is not None and output.exists() and source.exists() and output.samefile(source):
        raise click.BadParameter(f"{output} is the database itself; name another file", param_hint="--output")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _tools_here(device: Device) -> Tools | None:
    """Driver and compiler of this machine, if it has the device."""
    try:
        if device.key not in {found.key for found in backends.devices()}:
            return None
        compiler = backends.toolchain(device).fingerprint
    except DeviceUnavailableError:
        return None
    if device.backend != "cuda":
        return Tools(compiler=compiler)
    from sparsegen.backends.cuda import runtime

    return Tools(runtime.driver_version(), compiler)


def _described(place: str, told: Published) -> list[Part]:
    table = Listing("device", "workloads", "measurements", "driver", "MHz", "measured")
    for d in told.devices:
        clocks = "" if d.clock_low_mhz is None else f"{d.clock_low_mhz} to {d.clock_high_mhz}"
        table.add_row(
            d.key,
            str(d.workloads),
            str(d.measurements),
            d.driver or "not known",
            clocks or "not known",
            f"{d.measured_from[:10]} to {d.measured_to[:10]}",
        )
    by = f"{place}: published by {told.by} on {told.at[:10]} with sparsegen {told.version}"
    compilers = sorted({d.compiler for d in told.devices if d.compiler})
    notes = [Text(f"compiler: {compiler}") for compiler in compilers]
    return [Text(by + (f": {told.note}" if told.note else "")), table, *notes]


# --- diff --------------------------------------------------------------------------------------------------


@click.command("diff")
@click.argument("a")
@click.argument("b")
@json_option
def diff(a: str, b: str, as_json: bool) -> None:
    """Say where the choices of A and B differ, and what A's choices cost by B's times.

    A and B are paths, URLs, or the word seeds for the results that sparsegen comes with.
    """
    with closing(_layer(a)) as mine, closing(_layer(b)) as theirs:
        found = compare(mine, theirs)
    emit(as_json, {"a": a, "b": b, **found.to_dict()}, *_as_text(found, a, b))


def _layer(place: str) -> Layer:
    return seeds() if place == SEEDS else open_to_read(place)


def _as_text(found: Comparison, a: str, b: str) -> list[Part]:
    counts = ", ".join(f"{count} {standing}" for standing in Standing if (count := found.count(standing)))
    parts: list[Part] = [Text(f"A is {a}, B is {b}: {counts or 'neither holds measurements'}")]
    differing = [
        d for d in found.differences if d.standing in (Standing.SLOWER, Standing.TIED, Standing.FASTER)
    ]
    if found.geomean is not None and found.worst is not None:
        parts.append(
            Text(
                f"By B's times A's choices take {found.geomean:.3f} × the time of B's (geometric mean of "
                f"{len(found.costs)}), at worst {found.worst.cost:.3f} ×"
            )
        )
    if differing:
        table = Listing("matrix", "problem", "device", "cost", "A chooses", "B chooses", "B's time")
        for d in sorted(differing, key=lambda d: -(d.cost or 0))[:SHOWN_DIFFERENCES]:
            assert d.a is not None and d.b is not None and d.cost is not None, "both choose, and B timed A's"
            table.add_row(
                d.workload.fingerprint[:SHORT],
                str(d.workload.problem),
                d.device.key,
                f"{d.cost:.3f} ×" + (" (tie)" if d.standing is Standing.TIED else ""),
                d.a.variant.family,
                d.b.variant.family,
                microseconds(d.b.time_us),
            )
        parts.append(table)
    if len(differing) > SHOWN_DIFFERENCES:
        parts.append(Text(f"and {len(differing) - SHOWN_DIFFERENCES} more (all with --json)"))
    return parts


# --- layers ------------------------------------------------------------------------------------------------


@click.command("layers")
@db_option
@json_option
def layers(db: str | None, as_json: bool) -> None:
    """List the databases that a look-up reads, the first on top."""
    settings = Settings.from_environment()
    found: list[Json] = []
    places: list[tuple[str, str | Path]] = [
        ("user", db or settings.db),
        ("project", PROJECT_DATABASE),
        *(("published", p) for p in settings.layers),
    ]
    for kind, place in places:
        location = Location.parse(place)
        if kind == "project" and not is_trusted(PROJECT_DATABASE):
            continue
        if location.path is not None and kind != "published" and not is_there(location.path):
            continue
        opened = open_published(Path(place)) if kind == "published" else open_to_read(place)
        told = None if location.path is None else read_published(location.path)
        found.append(_layer_data(kind, str(location), opened, told))
    found.append(_layer_data("packaged", packaged().location, seeds(), None))
    table = Listing("layer", "workloads", "published by", "on", "place")
    for data in found:
        published = data["published"] or {}
        table.add_row(
            data["kind"],
            str(data["workloads"]),
            published.get("by", ""),
            published.get("at", "")[:10],
            data["location"],
        )
    emit(as_json, {"layers": found}, table)


def _layer_data(kind: str, location: str, layer: Layer, told: Published | None) -> Json:
    with closing(layer):
        count = len(layer.list_workloads())
    published = None if told is None else told.to_dict()
    return {"kind": kind, "location": location, "workloads": count, "published": published}
