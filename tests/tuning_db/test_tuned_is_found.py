"""Tuned workloads are found again: every operator, every value of every field, through every way that records take."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
from click.testing import CliRunner
from every_problem import problems_of, searched, workload_of
from tuning_samples import H100, timed, workload

from sparsegen.cli.main import cli
from sparsegen.dispatch.choice import choose
from sparsegen.dispatch.chosen import How
from sparsegen.errors import UnreadableRecordError
from sparsegen.matrix.csr import MAX_INDEX
from sparsegen.operators import (
    OPERATORS,
    DsdProblem,
    DType,
    MaskedConv2dProblem,
    SpmmProblem,
    SubmanifoldConv3dProblem,
)
from sparsegen.operators.convolution.window import Stride
from sparsegen.tuning_db import published
from sparsegen.tuning_db.exchange import export_json, import_json, merge
from sparsegen.tuning_db.layer import Layer
from sparsegen.tuning_db.published import Tools
from sparsegen.tuning_db.records import Measurement, Workload
from sparsegen.tuning_db.sqlite_reader import open_sqlite
from sparsegen.tuning_db.store import Store

LEAST_COMPUTED = 0.5  # of the problems some family computes; the rest has dtypes and layouts that none does


@cache
def recorded(operator: str) -> dict[Workload, list[Measurement]]:
    """Returns what searches of an operator's problems record, for those that some family computes."""
    listed = [workload_of(problem) for problem in problems_of(OPERATORS[operator])]
    found = {w: measured for at, w in enumerate(listed) if (measured := searched(w, at))}
    assert len(found) > LEAST_COMPUTED * len(listed), f"{len(found)} of {len(listed)}"
    return found


def require_found(layer: Layer, known: dict[Workload, list[Measurement]]) -> None:
    for asked, measured in known.items():
        choice = choose(asked, H100, layer)
        assert (choice.how, choice.config) == (How.EXACT, measured[0].variant.config), (
            f"{asked.problem}: {choice.why}"
        )


def written(place: str | Path, operator: str) -> Store:
    store = Store.open(place)
    store.add_all([m for measured in recorded(operator).values() for m in measured], [])
    return store


def directly(folder: Path, operator: str, stack: ExitStack) -> Layer:
    return stack.enter_context(written(folder / "tuning.db", operator))


def by_the_reader(folder: Path, operator: str, stack: ExitStack) -> Layer:
    written(folder / "tuning.db", operator).close()
    reader = open_sqlite(folder / "tuning.db")
    assert reader is not None
    stack.callback(reader.close)
    return reader


def exported(folder: Path, operator: str, stack: ExitStack) -> Layer:
    store = stack.enter_context(written(folder / "tuning.db", operator))
    text, left_out = export_json(store)
    assert left_out == 0
    other = stack.enter_context(Store.open(folder / "other.db"))
    import_json(other, text, "export")
    return other


def merged(folder: Path, operator: str, stack: ExitStack) -> Layer:
    store = stack.enter_context(written(folder / "tuning.db", operator))
    other = stack.enter_context(Store.open(folder / "other.db"))
    merge(other, store)
    return other


Way: TypeAlias = Callable[[Path, str, ExitStack], Layer]
each_operator = pytest.mark.parametrize("operator", list(OPERATORS))


def by_ways(*ways: Way) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("way", ways, ids=lambda way: way.__name__)


def winners(operator: str) -> dict[Workload, Measurement]:
    return {asked: measured[0] for asked, measured in recorded(operator).items()}


@pytest.mark.slow
@by_ways(directly, by_the_reader)
@each_operator
def test_what_was_tuned_is_found(
    way: Way, operator: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), ExitStack() as stack:
        require_found(way(tmp_path, operator, stack), recorded(operator))
    assert not caplog.messages


@pytest.mark.slow
@by_ways(exported, merged)
@each_operator
def test_what_was_tuned_wins_elsewhere(
    way: Way, operator: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = winners(operator)
    with caplog.at_level(logging.WARNING), ExitStack() as stack:
        layer = way(tmp_path, operator, stack)
        assert {asked: layer.winner(asked, H100) for asked in known} == known
    assert not caplog.messages


@pytest.mark.long
@each_operator
def test_what_was_tuned_is_found_on_postgres(operator: str, postgres: str) -> None:
    import psycopg

    known = winners(operator)
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("CREATE SCHEMA sparsegen_found")
        try:
            with Store.open(f"{postgres}?options=-csearch_path%3Dsparsegen_found") as store:
                store.add_all(known.values(), [])
                assert {asked: store.winner(asked, H100) for asked in known} == known
                assert not store.passed_over
        finally:
            admin.execute("DROP SCHEMA sparsegen_found CASCADE")


def test_a_published_layer_and_the_command_line_find_it(tmp_path: Path) -> None:
    """A convolution with a stride, whose result has another size than its images."""
    strided = workload_of(MaskedConv2dProblem(61, 47, 24, 40, stride=Stride(2, 2)))
    assert strided.features.m == 31 and strided.problem.matrix_shape == (61, 47)
    best = searched(strided, 0)[0]
    with Store.open(tmp_path / "tuning.db") as store:
        store.add_measurement(best)
        published.publish(store, tmp_path / "layer.db", by="a test", tools_of=lambda device: Tools())
    reader = open_sqlite(tmp_path / "layer.db")
    assert reader is not None and reader.winner(strided, H100) == best
    reader.close()
    shown = CliRunner().invoke(cli, ["db", "check", "--db", str(tmp_path / "tuning.db")])
    assert shown.exit_code == 0, shown.output


def test_points_of_other_channels_are_other_workloads(tmp_path: Path) -> None:
    """Their features differ, so that no row of features can stand for both."""
    narrow, wide = (workload_of(SubmanifoldConv3dProblem(1000, channels, 32)) for channels in (16, 64))
    with Store.open(tmp_path / "tuning.db") as store:
        for asked in (narrow, wide):
            store.add_measurement(best := searched(asked, 0)[0])
            assert store.winner(asked, H100) == best


def test_masks_with_more_live_elements_than_an_index_counts_are_found(tmp_path: Path) -> None:
    long = workload_of(DsdProblem(2**17, 2**17, 128, DType.FLOAT16))
    assert long.features.nnz == MAX_INDEX
    with Store.open(tmp_path / "tuning.db") as store:
        store.add_measurement(best := searched(long, 0)[0])
        assert store.winner(long, H100) == best


@pytest.mark.parametrize(
    ("unreadable", "named"),
    [
        (
            replace(timed(9.0), workload=replace(workload(), fingerprint="no digest")),
            "fingerprint = 'no digest'",
        ),
        (replace(timed(9.0), workload=replace(workload(), problem=SpmmProblem(127, 256, 64))), "m = 128"),
        (replace(timed(9.0, at=1), registers=-1), "registers = -1"),
    ],
    ids=["fingerprint", "sizes", "registers"],
)
def test_what_no_look_up_would_read_is_refused(tmp_path: Path, unreadable: Measurement, named: str) -> None:
    with Store.open(tmp_path / "tuning.db") as store:
        with pytest.raises(UnreadableRecordError, match=named):
            store.add_all([timed(3.0), unreadable], [])
        assert store.all_measurements() == [], "all or nothing"
        store.add_measurement(timed(3.0))
        assert store.winner(workload(), H100) == timed(3.0)


def test_a_damaged_row_is_named_once_in_a_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tuning.db"
    with Store.open(file) as store:
        store.add_measurement(timed(3.0))
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("UPDATE matrices SET m = 24")
    for _ in range(3):  # readers, as look-ups of several models have
        reader = open_sqlite(file)
        assert reader is not None and reader.winner(workload(), H100) is None
        assert list(reader.passed_over.values()) == ["m = 24"]
        reader.close()
    [message] = caplog.messages
    assert "matrices row 1 is passed over: m = 24" in message
