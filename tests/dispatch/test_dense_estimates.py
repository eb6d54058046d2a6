"""Dispatch's time of the dense product: the newest one there is, else one scaled to the requested work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tuning_samples import H100, baseline, timed, workload

from sparsegen.dispatch.choice import Choice, How, choose
from sparsegen.dispatch.dense_time import Known, dense_time_us
from sparsegen.operators import SpmmProblem
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.layers import MemoryLayer, open_to_read
from sparsegen.tuning_db.records import Baseline, Measurement, Workload
from sparsegen.tuning_db.store import Store


def ask(of: Workload, layer: Layer) -> Choice:
    return choose(of, H100, layer)


def test_of_one_product_the_model_says_how_it_grows() -> None:
    known, asked = workload(64), workload(512)
    layer = MemoryLayer([timed(10, known)], [baseline(8, known)])
    choice = ask(asked, layer)
    assert isinstance(known.problem, SpmmProblem) and isinstance(asked.problem, SpmmProblem)
    assert choice.how is How.NEAREST
    assert choice.dense_us == dense_time_us(asked.problem, H100, [Known(known.problem, 8)])
    assert choice.dense_us < 16, "far less than eight times as much for eight times the work"


Kind = Callable[[Path, Measurement, list[Baseline]], AbstractContextManager[Layer]]


@contextmanager
def memory(folder: Path, measured: Measurement, baselines: list[Baseline]) -> Iterator[Layer]:
    yield MemoryLayer([measured], baselines)


@contextmanager
def store(folder: Path, measured: Measurement, baselines: list[Baseline]) -> Iterator[Layer]:
    with Store.open(folder / "tuning.db") as opened:
        opened.add_measurement(measured)
        for one in baselines:
            opened.add_baseline(one)
        yield opened


@contextmanager
def file(folder: Path, measured: Measurement, baselines: list[Baseline]) -> Iterator[Layer]:
    with store(folder, measured, baselines):
        pass
    layer = open_to_read(folder / "tuning.db")
    yield layer
    layer.close()


@pytest.mark.parametrize("kind", [memory, store, file], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_newest_dense_time_counts(kind: Kind, order: tuple[int, ...], tmp_path: Path) -> None:
    """In whatever order they were written."""
    times = [30.0, 10.0, 20.0]
    written = [
        replace(one, measured_at=one.measured_at + timedelta(days=day))
        for day, one in ((i, baseline(times[i])) for i in order)
    ]
    with kind(tmp_path, timed(15), written) as layer:
        choice = ask(workload(), layer)
    assert (choice.how, choice.dense_us) == (How.EXACT, 20.0)
