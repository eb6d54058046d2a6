"""Samples that tests write to databases and to their exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuning_samples import baseline, failed, timed, workload

from sparsegen.tuning_db.exchange import Content, dump
from sparsegen.tuning_db.records import Outcome
from sparsegen.tuning_db.store import Store

RECORDS = Content(
    (
        timed(12.5, tile_n=32, final=True),
        timed(3.0, workload(n=128, tag="b"), at=1, row_order="sorted"),
        failed(Outcome.WRONG, "error 3.1 × bound\nat [2, 7]", at=2, tile_n=128),
    ),
    (baseline(20.0),),
)


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(dump(RECORDS))
    return loaded


def fill(path: Path, count: int = 3) -> None:
    with Store.open(path) as store:
        for i in range(count):
            store.add_measurement(timed(1.0 + i, at=i))
