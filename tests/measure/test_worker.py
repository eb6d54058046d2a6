"""The measuring worker and its supervisor: what is right is timed, and every fault is survived and named."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import LONG, patience
from tuning_fakes import DEVICE, MATRIX, PROBLEM, TOY, FakeToolchain, ToyConfig, render_toy, time_of

from sparsegen import backends
from sparsegen.errors import LaunchError, SparsegenError
from sparsegen.measure.session import Session
from sparsegen.measure.supervised import device_turn
from sparsegen.measure.worker import Measure, target_of
from sparsegen.plan.variants import RenderedVariant
from sparsegen.system.child import ChildDiedError, ChildProcess, ChildTimeoutError
from sparsegen.tuning_db.records import Outcome


def request(folder: Path, samples: int = 12, limit_us: float = float("inf"), **config: Any) -> Measure:
    chosen = ToyConfig(**config)
    rendered = RenderedVariant(TOY, PROBLEM, chosen, render_toy(TOY, PROBLEM, chosen), "ab" * 32)
    return Measure(
        rendered.compile(FakeToolchain(folder)), samples=samples, first_samples=3, limit_us=limit_us
    )


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    opened = Session(
        MATRIX,
        PROBLEM,
        DEVICE,
        locks=tmp_path,
        open_executor="tuning_fakes:open_executor",
        variant_seconds=patience(2.0),
    )
    yield opened
    opened.close()


def test_a_right_variant_is_verified_and_timed(session: Session, tmp_path: Path) -> None:
    attempt = session.measure(request(tmp_path, size=8, width=4))
    assert attempt.outcome is Outcome.OK
    measured = attempt.measured
    assert measured.timing is not None
    assert measured.timing.samples_us == (time_of({"size": 8, "width": 4}),) * 12
    assert measured.worst_error is not None and 0.0 <= measured.worst_error <= 1.0
    assert measured.packed_bytes == MATRIX.nnz * 8 + (MATRIX.shape[0] + 1) * 4


def test_a_slow_variant_gets_only_the_first_samples(session: Session, tmp_path: Path) -> None:
    measured = session.measure(request(tmp_path, size=1, width=1, limit_us=11.0)).measured
    assert measured.timing is not None and len(measured.timing.samples_us) == 3


def test_a_wrong_variant_names_the_place(session: Session, tmp_path: Path) -> None:
    attempt = session.measure(request(tmp_path, behaviour="wrong"))
    assert attempt.outcome is Outcome.WRONG
    assert attempt.measured.timing is None
    assert attempt.measured.worst_error is not None and attempt.measured.worst_error > 1.0
    assert "1 of 192 values" in attempt.measured.reason and "c[3, 5]" in attempt.measured.reason


@pytest.mark.parametrize("behaviour", ["wrong", "wrong_at_first"])
def test_what_is_wrong_at_first_is_not_launched_again(
    session: Session, tmp_path: Path, behaviour: str
) -> None:
    """Its first result is told as it was, whatever later ones would be."""
    attempt = session.measure(request(tmp_path, behaviour=behaviour))
    assert attempt.outcome is Outcome.WRONG
    assert attempt.measured.reason.startswith("1 of 192 values are wrong; the worst is c[3, 5]")


def test_an_error_of_twice_its_bound_is_wrong(session: Session, tmp_path: Path) -> None:
    attempt = session.measure(request(tmp_path, behaviour="slightly_wrong"))
    assert attempt.outcome is Outcome.WRONG and attempt.measured.reason.startswith("1 of 192 values")
    assert attempt.measured.worst_error == pytest.approx(2.0, abs=0.2)


def test_writes_outside_of_the_result_are_found(session: Session, tmp_path: Path) -> None:
    attempt = session.measure(request(tmp_path, behaviour="trespass"))
    assert attempt.outcome is Outcome.WRONG and attempt.measured.timing is None
    assert (
        "1 bytes behind the result were written, the nearest 9 bytes outside of it" in attempt.measured.reason
    )
    assert session.measure(request(tmp_path)).outcome is Outcome.OK, "the guards are mended"


def test_operands_are_drawn_anew_when_that_is_asked_for(session: Session, tmp_path: Path) -> None:
    """A variant that is right for one drawing alone is found by the next."""
    fixed = request(tmp_path, behaviour="remembers")
    assert session.measure(fixed).outcome is Outcome.OK
    assert session.measure(fixed).outcome is Outcome.OK, "the same operands"
    assert session.measure(replace(fixed, drawing=1)).outcome is Outcome.WRONG
    assert session.measure(replace(request(tmp_path), drawing=1)).outcome is Outcome.OK


def test_a_result_that_changes_with_further_launches_is_wrong(session: Session, tmp_path: Path) -> None:
    attempt = session.measure(request(tmp_path, behaviour="unstable"))
    assert attempt.outcome is Outcome.WRONG
    assert "right at first" in attempt.measured.reason


def test_a_crash_is_named_and_the_next_variant_gets_a_fresh_worker(session: Session, tmp_path: Path) -> None:
    session.wait_until_ready()
    before = session.worker_pid
    attempt = session.measure(request(tmp_path, behaviour="crash"))
    assert attempt.outcome is Outcome.CRASHED
    assert "SIGSEGV" in attempt.measured.reason and "toy fell over" in attempt.measured.reason
    assert session.measure(request(tmp_path)).outcome is Outcome.OK
    assert session.worker_pid != before
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)


def test_a_hang_ends_at_the_time_limit(session: Session, tmp_path: Path) -> None:
    session.wait_until_ready()
    assert session.measure(request(tmp_path, behaviour="hang")).outcome is Outcome.TIMED_OUT
    assert session.measure(request(tmp_path)).outcome is Outcome.OK


def test_a_lost_device_is_blamed_on_the_variant_that_lost_it(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session.wait_until_ready()
    before = session.worker_pid
    with caplog.at_level(logging.DEBUG, "sparsegen.measure.session"):
        attempt = session.measure(request(tmp_path, behaviour="fault"))
    assert attempt.outcome is Outcome.CRASHED
    assert "illegal memory access" in attempt.measured.reason
    assert "in call" in attempt.measured.traceback and attempt.measured.traceback in caplog.text
    assert session.worker_pid != before
    assert session.measure(request(tmp_path)).outcome is Outcome.OK


def test_a_device_lost_before_the_launch_is_not_the_next_variants_fault(
    session: Session, tmp_path: Path
) -> None:
    assert session.measure(request(tmp_path, behaviour="poison")).outcome is Outcome.OK
    before = session.worker_pid
    assert session.measure(request(tmp_path)).outcome is Outcome.OK
    assert session.worker_pid != before


def test_a_worker_killed_from_outside_is_replaced(session: Session, tmp_path: Path) -> None:
    assert session.measure(request(tmp_path)).outcome is Outcome.OK
    os.kill(session.worker_pid, signal.SIGKILL)
    assert session.measure(request(tmp_path, size=8)).outcome is Outcome.OK


def test_a_device_that_cannot_be_opened_is_an_error_and_no_outcome(tmp_path: Path) -> None:
    broken = Session(MATRIX, PROBLEM, DEVICE, locks=tmp_path, open_executor="tuning_fakes:open_nothing")
    try:
        with pytest.raises(LaunchError, match="there is no such device"):
            broken.measure(request(tmp_path))
    finally:
        broken.close()


def test_processes_take_turns_on_a_device(tmp_path: Path) -> None:
    child = ChildProcess("test_worker:hold_device")
    try:
        child.send(tmp_path)
        assert child.receive(LONG) == "held"
        has_turn = threading.Event()

        def take() -> None:
            with device_turn(DEVICE, tmp_path):
                has_turn.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert not has_turn.wait(0.3)
        child.send("let go")
        assert has_turn.wait(LONG)
        thread.join()
    finally:
        child.close()


def hold_device(connection: Any) -> None:
    with device_turn(DEVICE, connection.recv()):
        connection.send("held")
        connection.recv()


def test_a_child_dies_when_its_parent_closes_the_pipe_even_while_busy() -> None:
    child = ChildProcess("test_worker:sleep_long")
    assert child.receive(LONG) == "asleep"
    assert child._process.stdin is not None
    child._process.stdin.close()
    assert child._process.wait(LONG) == -signal.SIGKILL
    with pytest.raises(ChildDiedError, match="SIGKILL"):
        child.receive(LONG)
    child.close()


def sleep_long(connection: Any) -> None:
    connection.send("asleep")
    time.sleep(3600)


def test_waiting_for_an_answer_ends() -> None:
    child = ChildProcess("test_worker:sleep_long")
    try:
        child.receive(LONG)
        with pytest.raises(ChildTimeoutError, match=r"within 0\.2 s"):
            child.receive(0.2)
    finally:
        child.close()
    with pytest.raises(SparsegenError):
        child.send("anyone there?")


def test_on_a_gpu_the_driver_starts_first_in_the_worker() -> None:
    assert target_of(replace(DEVICE, backend="cuda", index=3)) == ("sparsegen.measure.gpu_worker:serve", (3,))
    assert target_of(backends.emulator_device()) == ("sparsegen.measure.worker:serve", ())
    asked = "import sys, sparsegen.measure.gpu_worker; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False", "what takes long is imported beside the driver's start"
