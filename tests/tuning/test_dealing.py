"""Searches are dealt to free devices, begun again where they are lost, and end as outcomes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine_fakes import PlannedEngine, Recorder, tasks
from tuning_fakes import DEVICE

from sparsegen.errors import (
    DatabaseReadOnlyError,
    DatabaseUnavailableError,
    MachineError,
    MatrixError,
    NoVariantError,
    SparsegenError,
)
from sparsegen.system.child import ChildDiedError
from sparsegen.tuning.engines import dealing
from sparsegen.tuning.engines.dealing import ATTEMPTS, deal
from sparsegen.tuning.engines.engine import End, Found

DONE = [End(Found(known=3))]
LOST = End(error=ChildDiedError("it fell over"), was_lost=True)


def test_each_device_gets_the_next_search_when_it_is_free() -> None:
    engine, recorder = PlannedEngine(2, lambda begun: DONE), Recorder()
    outcomes = deal(tasks(5), engine, watch=recorder)
    assert [o.found for o in outcomes] == [Found(known=3)] * 5 and {o.attempts for o in outcomes} == {1}
    assert engine.most == 2 and len(engine.begun) == 5
    assert recorder.told.count("task 4 ended") == 1
    # The cores are shared by those that run side by side: two, and at the end one.
    assert [a.searches for _, a in engine.assigned] == [2, 2, 2, 2, 1]


def test_times_of_two_models_are_never_mixed() -> None:
    other = replace(DEVICE, key="other", name="other")
    engine = PlannedEngine(1, lambda begun: DONE, [DEVICE, other])
    deal([*tasks(2), *tasks(2, model=other)], engine)
    assert sorted(key for key, _ in engine.assigned) == ["fake", "fake", "other", "other"]


def test_a_lost_search_is_begun_again_and_measures_nothing_again() -> None:
    engine = PlannedEngine(1, lambda begun: [LOST] if begun == 0 else DONE)
    recorder = Recorder()
    (task,) = tasks(1)
    again = replace(task, request=replace(task.request, again=True))
    (outcome,) = deal([again], engine, watch=recorder)
    assert outcome.found == Found(known=3) and outcome.attempts == 2
    assert recorder.told == ["task 0 began", "task 0 lost", "task 0 began", "task 0 ended"]
    assert [a.request.again for _, a in engine.assigned] == [True, False]


def test_a_search_that_nobody_asked_to_end_is_begun_again() -> None:
    """It was cut off from whoever could have asked."""
    engine = PlannedEngine(1, lambda begun: [End(Found(was_interrupted=True))] if begun == 0 else DONE)
    (outcome,) = deal(tasks(1), engine)
    assert outcome.found == Found(known=3) and outcome.attempts == 2


def test_what_is_always_lost_does_not_keep_the_others() -> None:
    engine = PlannedEngine(1, lambda begun: [LOST] if begun < ATTEMPTS else DONE)
    first, second = deal(tasks(2), engine)
    assert isinstance(first.error, MachineError) and "it fell over" in str(first.error)
    assert first.attempts == ATTEMPTS and second.found == Found(known=3)


def test_a_server_that_stays_away_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "SERVER_SECONDS", 0.1)
    gone = End(error=DatabaseUnavailableError("the server does not answer"), was_lost=True)
    engine = PlannedEngine(1, lambda begun: [gone])
    with pytest.raises(DatabaseUnavailableError):
        deal(tasks(2), engine)
    assert len(engine.begun) == ATTEMPTS


def test_a_server_gets_time_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "SERVER_SECONDS", 0.5)
    gone = End(error=DatabaseUnavailableError("the server does not answer"), was_lost=True)
    engine = PlannedEngine(1, lambda begun: [gone] if begun == 0 else DONE)
    began = time.monotonic()
    (outcome,) = deal(tasks(1), engine)
    assert outcome.attempts == 2 and time.monotonic() - began >= 0.5


@pytest.mark.parametrize("error", [NoVariantError("nothing compiles"), MatrixError("cut off")])
def test_what_fails_for_reasons_of_its_own_is_an_outcome(error: SparsegenError) -> None:
    engine = PlannedEngine(1, lambda begun: [End(error=error)] if begun == 0 else DONE)
    first, second = deal(tasks(2), engine)
    assert first.error is error and second.found is not None


def test_a_matrix_that_cannot_be_read_needs_no_device() -> None:
    def broken() -> None:
        raise MatrixError("cut off")

    one, two = tasks(2)
    engine = PlannedEngine(1, lambda begun: DONE)
    first, second = deal([replace(one, matrix=broken), two], engine)  # type: ignore[arg-type]
    assert isinstance(first.error, MatrixError) and second.found is not None and len(engine.begun) == 1


def test_an_error_that_all_would_meet_ends_the_run() -> None:
    engine = PlannedEngine(2, lambda begun: [End(error=DatabaseReadOnlyError("no"))] if begun == 0 else [])
    with pytest.raises(DatabaseReadOnlyError):
        deal(tasks(3), engine)
    assert engine.begun[1].was_killed


def test_a_stop_ends_all_and_begins_nothing() -> None:
    stop = threading.Event()

    class Stopping(Recorder):
        def began(self, *told: object) -> None:
            stop.set()

    engine = PlannedEngine(2, lambda begun: [])
    outcomes = deal(tasks(4), engine, watch=Stopping(), stop=stop)
    assert [o.attempts for o in outcomes] == [1, 1, 0, 0]
    assert all(o.found == Found(was_interrupted=True) for o in outcomes[:2])
    assert outcomes[2].found is None and outcomes[2].error is None


def test_nothing_begins_after_the_deadline() -> None:
    engine = PlannedEngine(1, lambda begun: DONE)
    assert [o.attempts for o in deal(tasks(3), engine, deadline=time.monotonic() - 1)] == [0, 0, 0]
    assert engine.begun == []


def test_without_devices_the_last_loss_is_told() -> None:
    class Dwindling(PlannedEngine):
        def capacity(self, model: object) -> int:
            return 1 if not self.begun or self.running else 0

    with pytest.raises(ChildDiedError, match="it fell over"):
        deal(tasks(2), Dwindling(1, lambda begun: [LOST]))

    class Empty(PlannedEngine):
        models: Sequence[object] = (DEVICE,)

        def capacity(self, model: object) -> int:
            return 0

    with pytest.raises(MachineError, match="no device is left for fake device"):
        deal(tasks(1), Empty(0, lambda begun: DONE))
