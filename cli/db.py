"""``sparsegen db``: list, show, exchange, check and migrate tuning databases, and forget; `db_study` is a file more."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from sparsegen.cli.parts import db_study
from sparsegen.cli.parts.common import (
    OUTPUT,
    Fingerprint,
    Listing,
    Part,
    db_option,
    emit,
    family_names,
    force_option,
    json_option,
)
from sparsegen.cli.parts.db_pins import list_pins, pin, unpin
from sparsegen.cli.parts.db_shipping import diff, layers, publish_, refuse_own_database
from sparsegen.errors import DatabaseCorruptError, DatabaseError
from sparsegen.settings import Settings
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_text, refuse_existing, reported
from sparsegen.system.quantities import microseconds
from sparsegen.tuning.jobs.results import add_result, is_result, read_verified
from sparsegen.tuning_db import exchange, ranking
from sparsegen.tuning_db.check import check as check_store
from sparsegen.tuning_db.forgetting import Forgotten, Selection
from sparsegen.tuning_db.location import Location
from sparsegen.tuning_db.record_json import baseline_dict, measurement_dict, workload_dict
from sparsegen.tuning_db.records import Baseline, Measurement, Outcome, Tuned
from sparsegen.tuning_db.schema_versions import HEAD
from sparsegen.tuning_db.store import Added, Store

SHOWN_VARIANTS = 10
CUT_OFF = "the last line was cut off, as a run that was killed leaves it, and was passed over"
SHORT = 12  # digits of a fingerprint in a table


def open_store(db: str | None, *, read_only: bool) -> Store:
    return Store.open(db or Settings.from_environment().db, read_only=read_only)


@click.group()
def command() -> None:
    """List, show, compare, publish, exchange, check and migrate tuning databases; pin choices, forget."""


for subcommand in (publish_, diff, layers, pin, unpin, list_pins):
    command.add_command(subcommand)


command.add_command(db_study.command)


# --- reading -----------------------------------------------------------------------------------------------


@command.command("list")
@db_option
@json_option
def list_workloads(db: str | None, as_json: bool) -> None:
    """List what was tuned, with the best time of each workload."""
    with open_store(db, read_only=True) as store:
        listed = [(tuned, store.winner(tuned.workload, tuned.device)) for tuned in store.list_workloads()]
        location = store.location
    table = Listing("matrix", "problem", "nonzeros", "device", "measured", "best", "family")
    for tuned, winner in listed:
        table.add_row(
            tuned.workload.fingerprint[:SHORT],
            str(tuned.workload.problem),
            str(tuned.workload.features.nnz),
            tuned.device.key,
            str(tuned.ok) + (f", {failed} failed" if (failed := tuned.measurements - tuned.ok) else ""),
            "none" if winner is None or winner.sample is None else microseconds(winner.sample.median_us),
            "" if winner is None else winner.variant.family,
        )
    data = {"location": location, "workloads": [workload_data(tuned, winner) for tuned, winner in listed]}
    emit(as_json, data, table if listed else Text(f"{location} holds no measurements"))


@command.command()
@click.argument("matrix", type=Fingerprint())
@db_option
@json_option
def show(matrix: str, db: str | None, as_json: bool) -> None:
    """Show what is known of MATRIX, the first digits of a fingerprint (see `sparsegen db list`)."""
    with open_store(db, read_only=True) as store:
        found = [t for t in store.list_workloads() if t.workload.fingerprint.startswith(matrix)]
        if not found:
            raise DatabaseError(
                f"no matrix in {store.location} has a fingerprint that begins with {matrix!r}"
            )
        details = [
            (t, store.measurements(t.workload, t.device), store.baselines(t.workload, t.device))
            for t in found
        ]
    printed: list[Part] = []
    for tuned, measurements, baselines in details:
        printed += describe_workload(tuned, measurements, baselines)
    data = {
        "workloads": [
            {
                **workload_data(tuned, ranking.best(measurements)),
                "ranking": [_ranked_data(r) for r in ranking.ranked(measurements)],
                "failures": [measurement_dict(m) for m in measurements if m.outcome is not Outcome.OK],
                "baselines": [baseline_dict(b) for b in baselines],
            }
            for tuned, measurements, baselines in details
        ]
    }
    emit(as_json, data, *printed)


def describe_workload(tuned: Tuned, measurements: list[Measurement], baselines: list[Baseline]) -> list[Part]:
    """A heading, the best variants, how the others failed, and the baselines."""
    order = ranking.ranked(measurements)
    table = Listing("time", "spread", "registers", "error/bound", "variant")
    for ranked in order[:SHOWN_VARIANTS]:
        m = ranked.measurement
        assert m.sample is not None, "only OK measurements are ranked"
        values = m.variant.config.settings.replace(" ", ", ")
        table.add_row(
            microseconds(ranked.time_us) + (" (final)" if m.final else ""),
            f"{microseconds(m.sample.low_us)} to {microseconds(m.sample.high_us)}",
            "" if m.registers is None else str(m.registers),
            "" if m.worst_error is None else f"{m.worst_error:.2g}",
            f"{m.variant.family}: {values}",
        )
    lines: list[Part] = [Text(f"{tuned.workload.problem} on {tuned.device.name}"), table]
    if len(order) > SHOWN_VARIANTS:
        lines.append(Text(f"and {len(order) - SHOWN_VARIANTS} slower ones (all with --json)"))
    failures = [m for m in measurements if m.outcome is not Outcome.OK]
    for outcome in Outcome:
        count = sum(m.outcome is outcome for m in failures)
        if count:
            example = next(m.reason for m in failures if m.outcome is outcome).partition("\n")[0]
            lines.append(Text(f"{count} {outcome}, such as: {example}"))
    lines += [Text(f"{b.name} ({b.version}): {microseconds(b.sample.median_us)}") for b in baselines]
    return lines


@command.command()
@db_option
@json_option
def check(db: str | None, as_json: bool) -> None:
    """Look for damage, and for records that sparsegen would not write."""
    location = str(Location.parse(db or Settings.from_environment().db))
    try:
        with open_store(db, read_only=True) as store:
            problems = check_store(store)
    except DatabaseCorruptError as error:  # too damaged to be opened: that is a finding, too
        problems = [str(error)]
    found = "\n".join(problems) or "no problem found"
    text = found if found.startswith(location) else f"{location}: {found}"  # errors name the place themselves
    emit(as_json, {"location": location, "problems": problems}, Text(text))
    if problems:
        raise click.exceptions.Exit(DatabaseError.exit_code)


# --- exchange ----------------------------------------------------------------------------------------------


@command.command()
@db_option
@click.option(*OUTPUT, type=click.Path(path_type=Path, dir_okay=False), help="Default: stdout.")
@force_option
@json_option
def export(db: str | None, output: Path | None, force: bool, as_json: bool) -> None:
    """Write the whole database as JSON, for `import` elsewhere and for version control."""
    if output is not None:
        refuse_existing(output, force=force)
        refuse_own_database(output, db)
    with open_store(db, read_only=True) as store:
        text, left_out = exchange.export_json(store)
    if output is None:
        click.echo(text, nl=False)
        return
    with reported(output):
        publish_text(output, text)
    note = f"; {left_out} measurements of unknown families or values were left out" if left_out else ""
    emit(as_json, {"output": output, "left_out": left_out}, Text(f"written to {output}{note}"))


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    help="FILE is the result of this job's bundle (see `sparsegen job`), against which it is checked.",
)
@db_option
@json_option
def import_(file: Path, bundle: Path | None, db: str | None, as_json: bool) -> None:
    """Add what an export, or the result of a job, holds. All is checked first; on any error nothing is added."""
    if bundle is None:
        if is_result(file):
            raise click.UsageError(f"{file} is the result of a job: name its bundle with --bundle")
        content = exchange.read_export(file)
        with open_store(db, read_only=False) as store:
            report(as_json, store, exchange.add(store, content, str(file)))
        return
    found = read_verified(file, bundle)
    with open_store(db, read_only=False) as store:
        report(as_json, store, add_result(store, found, file), *(CUT_OFF,) * found.is_cut_off)


@command.command()
@click.argument("other")
@db_option
@json_option
def merge(other: str, db: str | None, as_json: bool) -> None:
    """Add what the database OTHER (a path or URL) holds, by the same rules as an import."""
    with Store.open(other, read_only=True) as source:
        content = exchange.read_database(source)
    with open_store(db, read_only=False) as store:
        report(as_json, store, exchange.add(store, content, source.location))


def report(as_json: bool, store: Store, added: Added, *notes: str) -> None:
    data = {"location": store.location} | _counts(added)
    text = f"added {_amount(added)} to {store.location}"
    emit(as_json, data | ({"notes": notes} if notes else {}), Text("\n".join((text, *notes))))


@command.command()
@click.argument("matrix", type=Fingerprint(), required=False)
@click.option("--failed", is_flag=True, help="Only what failed: it is tried again by the next search.")
@click.option(
    "--family", default="", shell_complete=family_names, help="Only measurements of this kernel family."
)
@click.option("--device", default="", metavar="KEY", help="Only on this device (see `sparsegen db list`).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@db_option
@json_option
def forget(
    matrix: str | None, failed: bool, family: str, device: str, yes: bool, db: str | None, as_json: bool
) -> None:
    """Delete what is known of MATRIX, the first digits of a fingerprint, or what the options say."""
    selection = Selection(matrix or "", family, device, failed)
    if selection == Selection():
        raise click.UsageError("say what to forget: MATRIX, --failed, --family or --device")
    with open_store(db, read_only=True) as store:  # creates no database
        found = store.count(selection)
    with open_store(db, read_only=False) as store:
        if any(_counts(found).values()) and not yes:
            if as_json:
                raise click.UsageError("forget --json needs --yes")
            click.confirm(f"Forget {_amount(found)} in {store.location}?", abort=True)
        forgotten = store.forget(selection)
        location = store.location
    data = {"location": location} | _counts(forgotten)
    emit(as_json, data, Text(f"forgot {_amount(forgotten)} in {location}"))


def _counts(found: Added | Forgotten) -> dict[str, int]:
    return {
        "measurements": found.measurements,
        "baselines": found.baselines,
        "predictions": found.predictions,
    }


def _amount(found: Added | Forgotten) -> str:
    predictions = f" and {found.predictions} predictions" if found.predictions else ""
    return f"{found.measurements} measurements and {found.baselines} baselines{predictions}"


@command.command()
@db_option
@json_option
def migrate(db: str | None, as_json: bool) -> None:
    """Bring a database to this version's schema; a new one is made where there is none."""
    with open_store(db, read_only=False) as store:
        before, location = store.found_schema, store.location
    data = {"location": location, "from": before, "to": HEAD}
    was = "was up to date" if before == HEAD else f"migrated from {before or 'nothing'}"
    emit(as_json, data, Text(f"{location}: schema {HEAD}, {was}"))


# --- records as JSON values
# ----------------------------------------------------------------------------------


def _ranked_data(ranked: ranking.Ranked) -> Json:
    interval = [ranked.interval.low_us, ranked.interval.high_us]
    return measurement_dict(ranked.measurement) | {"interval_us": interval}


def workload_data(tuned: Tuned, winner: Measurement | None) -> Json:
    return {
        **workload_dict(tuned.workload),
        "device": tuned.device.key,
        "measurements": tuned.measurements,
        "ok": tuned.ok,
        "last_measured_at": tuned.last_measured_at.isoformat(),
        "winner": None if winner is None else measurement_dict(winner),
    }
