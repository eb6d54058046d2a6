"""``sparsegen db study``: recorded searches as Optuna studies."""

from __future__ import annotations

import sys

import click
from rich.text import Text

from sparsegen.cli.parts.common import Fingerprint, Listing, db_option, emit, json_option
from sparsegen.errors import DatabaseError
from sparsegen.settings import Settings
from sparsegen.tuning_db.store import Store


@click.command("study")
@click.argument("matrix", type=Fingerprint())
@click.option(
    "--storage",
    required=True,
    metavar="URL",
    help="Optuna's storage, such as sqlite:///studies.db; studies that were written before are replaced.",
)
@db_option
@json_option
def command(matrix: str, storage: str, db: str | None, as_json: bool) -> None:
    """Write what was recorded of MATRIX as Optuna studies, one for each problem and device.

    MATRIX is the first digits of a fingerprint (see `sparsegen db list`). optuna-dashboard and `optuna.visualization`
    open the storage.
    """
    with Store.open(db or Settings.from_environment().db, read_only=True) as store:
        found = [t for t in store.list_workloads() if t.workload.fingerprint.startswith(matrix)]
        if not found:
            raise DatabaseError(
                f"no matrix in {store.location} has a fingerprint that begins with {matrix!r}"
            )
        recorded = [(t, store.measurements(t.workload, t.device)) for t in found]
    from sparsegen.tuning.replay import recorded_study  # imports Optuna

    opened = recorded_study.open_storage(storage)
    written = []
    total = sum(len(measurements) for _, measurements in recorded)
    with click.progressbar(length=total, label="trials", file=sys.stderr) as bar:
        for tuned, measurements in recorded:
            written.append(
                recorded_study.write(
                    opened, tuned.workload, tuned.device, measurements, lambda number, trials: bar.update(1)
                )
            )
    table = Listing("study", "trials", "left out")
    for study in written:
        table.add_row(study.name, str(study.trials), str(study.left_out))
    data = {
        "studies": [{"name": s.name, "trials": s.trials, "left_out": s.left_out} for s in written],
    }
    emit(as_json, data, table, Text("open it with: optuna-dashboard STORAGE, or optuna.load_study(...)"))
