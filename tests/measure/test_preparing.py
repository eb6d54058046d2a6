"""Preparation of a choice by `prepare`: the variant or the dense product, probed if estimates do not tell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import sparsegen
from sparsegen import backends
from sparsegen.dispatch.chosen import Choice, How
from sparsegen.dispatch.dense_or_sparse import Source, Time
from sparsegen.errors import DeviceUnavailableError, LaunchError
from sparsegen.measure import preparing, race
from sparsegen.tuning_db.records import Called
from sparsegen.tuning_db.store import Store

torch = pytest.importorskip("torch")
M, K, N = 12, 20, 8
DEVICE = backends.emulator_device()


@pytest.fixture
def matrix() -> sparsegen.CsrMatrix:
    return sparsegen.as_csr(scipy.sparse.random(M, K, 0.3, format="csr", random_state=0, dtype=np.float32))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Fakes a probe; yields its times and the number of probes."""
    told: dict[str, Any] = {"us": (5.0, 4.0), "calls": 0}

    def found(*arguments: Any) -> tuple[float, float]:
        told["calls"] += 1
        if isinstance(told["us"], Exception):
            raise told["us"]
        return told["us"]  # type: ignore[no-any-return]

    monkeypatch.setattr(race, "pair_us", found)
    monkeypatch.setattr(race, "_unrecorded", {})
    yield told


def prepare(matrix: sparsegen.CsrMatrix, database: Path, **options: Any) -> Any:
    return sparsegen.prepare(matrix, n=N, device="emulator", db=database, **options)


@pytest.fixture
def overlapping(matrix: sparsegen.CsrMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates of dense and sparse between which nothing decides."""
    from sparsegen.dispatch.choice import _Search

    expected_us, made = 100.0, _Search.choice

    def told(self: Any, config: Any, how: How, why: str, **more: Any) -> Choice:
        """The emulator has no expected times of its own."""
        return replace(
            made(self, config, how, why, **more), predicted_us=expected_us if how is How.DEFAULT else None
        )

    near = Time.of_dense(0.9 * expected_us, Source.NEAR)
    monkeypatch.setattr(_Search, "choice", told)
    monkeypatch.setattr(_Search, "estimated_dense", lambda self, neighbours: near)


def test_the_dense_product_runs_on_request_and_says_what_it_takes(
    matrix: sparsegen.CsrMatrix, database: Path
) -> None:
    op = prepare(matrix, database, dense="always", epilogue="bias_relu", bias=np.ones(M, np.float32))
    b = np.random.default_rng(0).standard_normal((K, N)).astype(np.float32)
    assert np.allclose(op(b), np.maximum(matrix.to_dense() @ b + 1, 0), atol=1e-5)
    assert op.variant is None and op.nbytes == 4 * M * K
    assert f"which takes {4 * M * K} bytes (its nonzeros alone" in op.explain()


def test_a_probe_decides_once(
    matrix: sparsegen.CsrMatrix, database: Path, times: dict[str, Any], overlapping: None
) -> None:
    first = prepare(matrix, database)
    assert first.variant is None and times["calls"] == 1
    assert "dense takes 4 µs (measured): dense wins" in first.explain() and first.choice.probed_us == 5.0
    with Store.open(database) as store:
        (found,) = store.all_probes()
        assert (found.sparse_us, found.dense_us, found.workload.fingerprint) == (
            5.0,
            4.0,
            matrix.fingerprint(),
        )
        assert not store.all_measurements()
    again = prepare(matrix, database)
    assert again.variant is None and times["calls"] == 1, "it is in the database"
    assert prepare(matrix, database, dense="never").variant is not None
    assert again.choice.how is How.DEFAULT and not again.choice.is_hit


def test_sparse_that_wins_keeps_no_dense_weight(
    matrix: sparsegen.CsrMatrix, database: Path, times: dict[str, Any], overlapping: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import weakref

    from sparsegen.plan.dense_weight import DenseWeight

    made: list[weakref.ref[DenseWeight]] = []
    init = DenseWeight.__init__

    def noted(self: DenseWeight, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(DenseWeight, "__init__", noted)
    times["us"] = (3.0, 4.0)
    op = prepare(matrix, database)
    assert op.variant is not None and "sparse wins" in op.explain() and len(made) == 1
    assert made[0]() is None, "it was freed"


def test_where_nothing_may_be_timed_estimates_decide(
    matrix: sparsegen.CsrMatrix, database: Path, times: dict[str, Any], overlapping: None,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    assert "as far as estimates tell" in prepare(matrix, database, probe=False).explain()
    with monkeypatch.context() as capturing:
        capturing.setattr(preparing, "is_capturing", lambda: True)
        prepare(matrix, database)
    assert times["calls"] == 0
    times["us"] = LaunchError("no memory")
    assert "as far as estimates tell" in prepare(matrix, database).explain()
    assert "decided by estimates" in caplog.text
    with Store.open(database) as store:
        assert not store.all_probes()


def test_a_database_that_cannot_be_written_costs_one_probe(
    matrix: sparsegen.CsrMatrix, tmp_path: Path, times: dict[str, Any], overlapping: None,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("no folder")
    for _ in range(2):
        assert prepare(matrix, tmp_path / "file" / "tuning.db").variant is None
    assert times["calls"] == 1 and "forgotten with this process" in caplog.text


def test_dense_needs_pytorch(
    matrix: sparsegen.CsrMatrix, database: Path, times: dict[str, Any], overlapping: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "torch")
        op = prepare(matrix, database)
        assert op.variant is not None and times["calls"] == 0
        assert "but PyTorch, which multiplies, is not imported in this process: sparse runs" in (op.explain())
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceUnavailableError, match=r"dense = always, but PyTorch, .* is not installed"):
        prepare(matrix, database, dense="always")


def test_both_are_timed_in_turn(matrix: sparsegen.CsrMatrix, database: Path) -> None:
    """On the emulator, whose times are the host's."""
    sparse, dense = (prepare(matrix, database, dense=policy) for policy in ("never", "always"))
    order: list[str] = []
    for name, op in (("sparse", sparse), ("dense", dense)):
        run = op.launcher.run
        op.launcher.run = lambda *given, name=name, run=run: (order.append(name), run(*given))[1]
    enter = race.on_operands(sparse.launcher, dense.launcher, sparse.problem, matrix)
    for called in Called:
        order.clear()
        found = race.pair_us(enter, preparing.shared_executor(DEVICE), called, race.L2.COLD, 2)
        assert min(found) > 0
        turns = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
        assert turns == ["sparse", "dense"] * race.ROUNDS
