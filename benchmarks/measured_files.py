"""Measurements of the files that hold some: databases, exports, packaged results, results of ``sparsegen bench``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import seed_documents
from sparsegen.bench.results import result_file
from sparsegen.bench.results.results import TUNED, UNTUNED, Cell, Results, Row
from sparsegen.kernels import read_config
from sparsegen.kernels.base import Device
from sparsegen.tuning.prediction.targets import named_target
from sparsegen.tuning_db import exchange, seed_file
from sparsegen.tuning_db.exchange import Content
from sparsegen.tuning_db.json_reader import read_text
from sparsegen.tuning_db.records import Baseline, MeasuredAs, Measurement, Outcome, Sample, Variant, Workload
from sparsegen.tuning_db.store import Store

DENSE = "cublas"  # the only other time that dispatch reads


def content_of(file: Path) -> Content:
    """Everything that a file holds.

    Of results of ``sparsegen bench`` these are the tuned and the untuned variant of each row, and its dense product.

    Args:
        file: a database, or JSON in any of the three forms, compressed by xz (``.xz``) or not.

    Raises:
        SparsegenError: it cannot be read.
        ValueError: results are of a device that has no description.
    """
    if ".json" not in file.suffixes:
        with Store.open(file, read_only=True) as store:
            return exchange.read_database(store)
    text = read_text(file, exchange.LARGEST_FILE)
    document = json.loads(text)
    if "rows" in document:
        return _of_results(result_file.read(file))
    if document.get("format") == seed_file.FORMAT:
        document = seed_documents.unpack(document)
    # An import refuses tunables that are gone since.
    document["measurements"] = [
        m for m in document["measurements"] if read_config(m["family"], m["config"]).is_known
    ]
    return exchange.load(json.dumps(document), file.name)


def _of_results(results: Results) -> Content:
    target = named_target(results.device.key)
    if target is None:
        raise ValueError(f"{results.device.key} has no description, which says what such a device may hold")
    kind, driver = MeasuredAs(results.protocol.l2), results.device.driver
    measured, compared = [], []
    for row in results.rows:
        workload = Workload(row.problem, row.fingerprint, row.features)
        moment = row.measured or datetime.min.replace(tzinfo=UTC)
        measured += list(_measurements(row, workload, target.device, kind, driver, moment))
        dense = row.cell(DENSE)
        if dense is not None and dense.timing is not None:
            sample = _sample(dense, kind)
            compared.append(Baseline(workload, target.device, DENSE, "", sample, moment))
    return Content(tuple(measured), tuple(compared))


def _measurements(
    row: Row, workload: Workload, device: Device, kind: MeasuredAs, driver: str, moment: datetime
) -> Iterator[Measurement]:
    """The row's tuned and untuned variant, once where they are one: they were timed in turn."""
    cells = (row.cell(name) for name in (UNTUNED, TUNED))
    timed = (cell for cell in cells if cell is not None and cell.timing is not None)
    found = {cell.variant: cell for cell in timed if cell.variant is not None and cell.variant.is_known}
    for config, cell in found.items():
        yield Measurement(
            workload,
            device,
            Variant(config, cell.digest),
            Outcome.OK,
            _sample(cell, kind),
            worst_error=cell.worst_error,
            final=True,
            measured_at=moment,
            driver=driver,
        )


def _sample(cell: Cell, kind: MeasuredAs) -> Sample:
    timing = cell.timing
    assert timing is not None
    return Sample(
        timing.us,
        timing.low_us,
        timing.high_us,
        timing.samples,
        kind,
        timing.clock_mhz,
        timing.throttle_reasons,
    )
