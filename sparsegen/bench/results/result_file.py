"""Result files: JSON that is validated when read and replaced whole when written, and CSV for spreadsheets.

Their schema is ``sparsegen-bench/4``.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, fields
from pathlib import Path

from sparsegen.bench.results.result_reader import NAME, VERSION, load
from sparsegen.bench.results.results import Cell, ImplementationTime, Results, Row
from sparsegen.errors import ResultsError
from sparsegen.kernels.config import Config
from sparsegen.system.json_object import Json
from sparsegen.system.publish import publish_text
from sparsegen.tuning_db.json_codec import finite
from sparsegen.tuning_db.json_reader import read_text
from sparsegen.tuning_db.problem_reader import problem_dict

__all__ = ["dump", "load", "read", "to_csv", "write"]

LARGEST_FILE = 256 * 2**20  # bytes; the whole of the suites takes about 3 MB
# Members of a row that are left out where there is nothing to say.
OPTIONAL = "reference", "state", "measured"

# --- write -------------------------------------------------------------------------------------------------


def write(results: Results, path: Path) -> None:
    """Replace the file as a whole: a process that is killed leaves the old file or the new one.

    Raises:
        ResultsError: the file or its folder cannot be written.
    """
    try:
        publish_text(path, dump(results))
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error


def dump(results: Results) -> str:
    """The document, one row a line: equal results make equal text."""
    head: Json = {
        "schema": f"{NAME}/{VERSION}",
        "device": asdict(results.device),
        "versions": dict(results.versions),
        "protocol": asdict(results.protocol),
        "rates": None if results.rates is None else asdict(results.rates),
        "invocations": [
            {"command": i.command, "started": i.started.isoformat(), "seconds": i.seconds}
            for i in results.invocations
        ],
    }
    parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    rows = ",".join("\n" + json.dumps(_row_dict(row)) for row in results.rows)
    return "{" + ",\n".join(parts) + f',\n"rows": [{rows}\n]}}\n'


def _row_dict(row: Row) -> Json:
    document = {f.name: getattr(row, f.name) for f in fields(row)}
    document["problem"] = problem_dict(row.problem)
    document["features"] = row.features.stored()
    document["floor"] = asdict(row.floor) | {"us": row.floor.us}
    if row.floor.computed == 1.0:
        del document["floor"]["computed"]
    document["cells"] = [_cell_dict(cell) for cell in row.cells]
    document["measured"] = None if row.measured is None else row.measured.isoformat()
    return {name: value for name, value in document.items() if name not in OPTIONAL or value}


def _cell_dict(cell: Cell) -> Json:
    document: Json = {
        "baseline": cell.baseline,
        "kind": cell.kind,
        "arithmetic": cell.arithmetic,
        "status": cell.status,
        "detail": cell.detail,
        "reason": cell.reason or None,
        "variant": _variant_dict(cell.variant),
        "digest": cell.digest or None,
        **(asdict(cell.timing) if cell.timing is not None else {}),
        "preparation_ms": cell.preparation_ms,
        "memory_bytes": cell.memory_bytes,
        "worst_error": None if cell.worst_error is None else finite(cell.worst_error),
        "tried": cell.tried,
        "implementations": [_implementation_dict(implementation) for implementation in cell.implementations]
        or None,
    }
    return {name: value for name, value in document.items() if value is not None or name == "reason"}


def _implementation_dict(one: ImplementationTime) -> Json:
    document: Json = {
        "detail": one.detail,
        "us": one.us,
        "reason": one.reason or None,
    }
    document["variant"] = _variant_dict(one.variant)
    return {name: value for name, value in document.items() if value is not None}


def _variant_dict(variant: Config | None) -> Json | None:
    return None if variant is None else {"family": variant.family_name, "config": variant.to_dict()}


# --- read --------------------------------------------------------------------------------------------------


def read(path: Path) -> Results:
    """The results of a file, every value checked.

    Raises:
        ResultsError: it names the file and the place in it; so does an operator that this sparsegen does not have.
        ResultsNewerError: a newer sparsegen wrote it.
    """
    return load(read_text(path, LARGEST_FILE, ResultsError), str(path))


# --- CSV ---------------------------------------------------------------------------------------------------

ROW_COLUMNS = ("suite", "case", "operator", "m", "k", "n", "dtype", "layout", "nnz", "fingerprint")
CELL_COLUMNS = ("baseline", "kind", "arithmetic", "status", "detail", "reason")
TIME_COLUMNS = ("us", "low_us", "high_us", "samples", "clock_mhz", "throttle_reasons")
COST_COLUMNS = ("preparation_ms", "memory_bytes", "worst_error", "tried")


def to_csv(results: Results) -> str:
    """One line for each cell, in the file's order; empty where there is no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    head = (
        "device",
        *ROW_COLUMNS,
        "floor_us",
        "break_even_calls",
        *CELL_COLUMNS,
        *TIME_COLUMNS,
        *COST_COLUMNS,
    )
    writer.writerow(head)
    for row in results.rows:
        for cell in row.cells:
            timed = [None if cell.timing is None else getattr(cell.timing, name) for name in TIME_COLUMNS]
            writer.writerow(
                [
                    results.device.key,
                    *(getattr(row, name) for name in ROW_COLUMNS),
                    row.floor.us,
                    row.break_even_calls(),
                    *(getattr(cell, name) for name in CELL_COLUMNS),
                    *timed,
                    *(getattr(cell, name) for name in COST_COLUMNS),
                ]
            )
    return out.getvalue()
