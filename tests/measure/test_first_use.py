"""A variant is held against the reference where it first runs, once; what is wrong is recorded and replaced."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import sparsegen
from sparsegen import backends
from sparsegen.errors import DeviceMemoryError, KernelFault, LaunchError, WrongResultError
from sparsegen.measure import preparing
from sparsegen.measure.preparing import DRAWN, FewDraws
from sparsegen.operators import ItemValues, SpmmProblem
from sparsegen.tuning_db.records import Measurement, Outcome, Sample, Workload
from sparsegen.tuning_db.store import Store
from sparsegen.verify.guarded import GUARD_BYTES, GuardedBuffer
from sparsegen.verify.variants import CheckedCall

M, K, N = 12, 20, 8


@pytest.fixture
def matrix() -> sparsegen.CsrMatrix:
    return sparsegen.as_csr(scipy.sparse.random(M, K, 0.3, format="csr", random_state=0, dtype=np.float32))


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own, for a process that has found nothing out yet."""
    monkeypatch.setattr(preparing, "_verified", set())
    return tmp_path / "tuning.db"


def prepare(matrix: Any, database: Path, **options: Any) -> Any:
    given = {"n": N, "verify": "first-use"} | options
    return sparsegen.prepare(matrix, device="emulator", db=database, **given)


def wrong_for(monkeypatch: pytest.MonkeyPatch, *families: str) -> list[str]:
    """Have the results of some families be wrong, of "" all; returns the families that were checked, as they are."""
    asked: list[str] = []
    honest = CheckedCall.__init__

    def checked(self: CheckedCall, variant: Any, *arguments: Any) -> None:
        honest(self, variant, *arguments)
        name = variant.compiled.rendered.family.name
        asked.append(name)
        if name in families or "" in families:
            self.worst = 7.0

    monkeypatch.setattr(CheckedCall, "__init__", checked)
    return asked


def test_it_is_checked_once_and_said(
    matrix: sparsegen.CsrMatrix, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = wrong_for(monkeypatch)
    op = prepare(matrix, database)
    assert "verified on this first use in" in op.explain() and asked == [op.variant.family]
    with Store.open(database) as store:
        (check,) = store.all_checks()
        assert (
            check.outcome is Outcome.OK and check.variant == op.variant and 0 <= (check.worst_error or 0) <= 1
        )
        assert check.seconds > 0
    assert "with this driver before" in prepare(matrix, database).explain() and len(asked) == 1
    preparing._verified.clear()
    assert "with this driver before" in prepare(matrix, database).explain(), "another process reads it"
    assert len(asked) == 1


def test_a_measurement_by_this_driver_is_as_good(
    matrix: sparsegen.CsrMatrix, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = wrong_for(monkeypatch)
    op = prepare(matrix, database, verify="never")
    assert not asked and "verified" not in op.explain()
    workload = Workload.of(op.problem, matrix)
    measured = Measurement(
        workload,
        backends.emulator_device(),
        op.variant,
        Outcome.OK,
        Sample(5.0, 5.0, 5.0, 9),
        worst_error=0.2,
    )
    with Store.open(database) as store:
        store.add_measurement(replace(measured, driver="580.1"))
    monkeypatch.setattr(backends, "driver_version", lambda device: "580.1")
    assert "with this driver before" in prepare(matrix, database).explain() and not asked
    monkeypatch.setattr(backends, "driver_version", lambda device: "581.0")
    prepare(matrix, database)
    assert asked == [op.variant.family], "another driver"


def test_what_is_wrong_is_recorded_and_replaced(
    matrix: sparsegen.CsrMatrix, database: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    first = prepare(matrix, database, verify="never").variant
    asked = wrong_for(monkeypatch, first.family)
    with caplog.at_level(logging.WARNING):
        op = prepare(matrix, database)
    assert op.variant.family != first.family and asked == [first.family, op.variant.family]
    assert f"{first.family} (" in caplog.text and "gives wrong results" in caplog.text
    b = np.random.default_rng(0).standard_normal((K, N)).astype(np.float32)
    assert np.allclose(op(b), matrix.to_dense() @ b, atol=1e-5)
    with Store.open(database) as store:
        assert [c.outcome for c in store.all_checks()] == [Outcome.WRONG, Outcome.OK]
    assert prepare(matrix, database, verify="never").variant == op.variant, "never again, checked or not"
    assert len(asked) == 2


def test_a_database_that_cannot_be_written_keeps_nothing_from_being_replaced(
    matrix: sparsegen.CsrMatrix, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("no folder")
    first = prepare(matrix, database, verify="never").variant
    wrong_for(monkeypatch, first.family)
    op = prepare(matrix, tmp_path / "file" / "tuning.db")
    assert op.variant.family != first.family and "forgotten with this process" in caplog.text


def test_a_named_variant_and_a_machine_that_is_wrong_end_in_an_error(
    matrix: sparsegen.CsrMatrix, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = wrong_for(monkeypatch, "")
    with pytest.raises(WrongResultError, match=r"csr_spmm \(.*\) gives wrong results on emulator"):
        prepare(matrix, database, family="csr_spmm")
    with pytest.raises(WrongResultError, match="gives wrong results"):
        prepare(matrix, database)
    assert len(asked) == 1 + preparing.MOST_FAILED and len(set(asked)) > 1


def test_a_crash_is_the_variants_where_the_device_lives_on(
    matrix: sparsegen.CsrMatrix, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(matrix, database, verify="never").variant
    honest = CheckedCall.__init__

    def crashing(self: CheckedCall, variant: Any, *arguments: Any) -> None:
        if variant.compiled.rendered.family.name == first.family:
            raise KernelFault("out of bounds")
        honest(self, variant, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(CheckedCall, "__init__", crashing)
        assert prepare(matrix, database).variant.family != first.family
    with Store.open(database) as store:
        assert store.all_checks()[0].outcome is Outcome.CRASHED
    preparation = preparing.Preparation(
        matrix, Workload.of(SpmmProblem(*matrix.shape, 8), matrix),
        replace(backends.emulator_device(), backend="cuda"), str(database), None, None, {}, None, None,
        True, True, None,
    )  # fmt: skip
    with (
        Store.open(database) as store,
        pytest.raises(LaunchError, match="a new process takes another variant"),
    ):
        choice = prepare(matrix, database).choice
        preparation._refuse(store.all_checks()[0], choice, 1)


@pytest.mark.parametrize("columns", [64, 256, 257, 1024])
def test_large_operands_repeat_few_numbers_and_no_row(columns: int) -> None:
    rows = 4 * preparing.DRAWN // columns
    drawn = preparing.FewDraws(np.random.PCG64(1)).standard_normal((rows, columns), dtype=np.float32)
    assert drawn.shape == (rows, columns) and drawn.dtype == np.float32
    assert np.unique(drawn, axis=0).shape == drawn.shape
    assert abs(float(drawn.mean())) < 0.02 and abs(float(drawn.std()) - 1) < 0.02
    small = preparing.FewDraws(np.random.PCG64(1)).standard_normal((3, 5))
    np.testing.assert_array_equal(small, np.random.Generator(np.random.PCG64(1)).standard_normal((3, 5)))


def test_what_would_take_long_is_not_checked(
    matrix: sparsegen.CsrMatrix, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = wrong_for(monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "MOST_HOST_FLOP", 10.0)
        assert "the reference would take too long" in prepare(matrix, database).explain()
    with monkeypatch.context() as patched:
        patched.setattr(preparing, "is_capturing", lambda: True)
        prepare(matrix, database)
    assert not asked
    problem = SpmmProblem(4096, 4096, 4096)
    huge = sparsegen.as_csr(scipy.sparse.random(4096, 4096, 0.01, format="csr", random_state=0))
    assert preparing.can_be_checked(problem, huge, "cuda")
    assert not preparing.can_be_checked(problem, huge, "emulator")
    monkeypatch.setattr(
        CheckedCall, "__init__", lambda *a: (_ for _ in ()).throw(DeviceMemoryError("cannot allocate"))
    )
    assert "there is not enough memory" in prepare(matrix, database).explain()
    with Store.open(database) as store:
        assert not store.all_checks()


@pytest.mark.parametrize("transpose", [False, True])
def test_values_of_the_items_are_as_before(
    matrix: sparsegen.CsrMatrix, database: Path, transpose: bool
) -> None:
    op = prepare(matrix, database, batch=2, item_values=ItemValues.OWN, transpose=transpose)
    assert "verified on this first use" in op.explain()
    weight = matrix.to_dense().T if transpose else matrix.to_dense()
    b = np.random.default_rng(0).standard_normal((2, weight.shape[1], N)).astype(np.float32)
    assert np.allclose(op(b), weight @ b, atol=1e-5)


def test_large_operands_repeat_a_million_numbers() -> None:
    drawn = FewDraws(np.random.PCG64(1)).standard_normal((1500, 1000), dtype=np.float32)
    flat = drawn.reshape(-1)
    assert drawn.dtype == np.float32 and np.array_equal(flat[:100], flat[DRAWN : DRAWN + 100])
    assert not np.array_equal(drawn[0], drawn[1]) and abs(float(flat.mean())) < 0.01
    small = FewDraws(np.random.PCG64(1)).standard_normal((3, 4))
    assert np.array_equal(small, np.random.Generator(np.random.PCG64(1)).standard_normal((3, 4)))


def test_guards_say_where_something_was_written() -> None:
    executor = backends.open_executor(backends.emulator_device())
    guarded = GuardedBuffer(executor, 40)
    assert guarded.trespass() == "" and guarded.nbytes == 40 and guarded.address % 256 == 0
    executor.fill(guarded, 1)
    assert guarded.trespass() == "", "its own bytes are free"
    from sparsegen.system.device_memory import Address

    executor.fill(Address(guarded.address + 40 + 3, 2), 0)
    assert guarded.trespass() == "2 bytes behind the result were written, the nearest 4 bytes outside of it"
    guarded.watch()
    executor.fill(Address(guarded.address - 1, 1), 0)
    assert guarded.trespass() == "1 bytes before the result were written, the nearest 1 bytes outside of it"
    guarded.watch()
    executor.fill(Address(guarded.address - GUARD_BYTES, 1), 0)
    assert f"the nearest {GUARD_BYTES} bytes" in guarded.trespass()


def test_networks_are_checked_on_some_inputs(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsegen.networks.model.radixnet import radixnet
    from sparsegen.operators import DType, SparseNetworkProblem, sparse_network

    monkeypatch.setattr(sparse_network, "LEAST_CHECKED", 3)
    monkeypatch.setattr(sparse_network, "MOST_CHECKED", 64 * 5)
    matrix = radixnet(64, 2).stacked(DType.FLOAT16)
    problem = SparseNetworkProblem(*matrix.shape, 40, DType.FLOAT16)
    op = sparsegen.prepare(matrix, problem, device="emulator", db=database, verify="first-use")
    assert "verified on this first use in" in op.explain()
    with Store.open(database) as store:
        (check,) = store.all_checks()
    assert check.workload.problem == replace(problem, n=5) and check.variant == op.variant
    assert op(np.ones((40, 64), np.float16)).shape == (40, 64)


def test_attention_over_pages_is_checked_on_fewer_tokens(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsegen.operators import Chosen, DType, PagedAttentionProblem, PageSize
    from sparsegen.operators.attention import paged_attention

    monkeypatch.setattr(paged_attention, "MOST_CHECKED", 64)
    problem = PagedAttentionProblem(
        1, 160, 1, 2, 64, DType.FLOAT16, page=PageSize(16), chosen=Chosen.ALL, batch=4
    )
    sparsegen.prepare(None, problem, device="emulator", db=database, verify="first-use")
    with Store.open(database) as store:
        (check,) = store.all_checks()
    few = replace(problem, keys=64, batch=3)
    assert check.workload == Workload.of(few, few.without_pattern)
