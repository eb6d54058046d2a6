"""A supervised child gets ready, answers in turn, and is replaced when it is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sparsegen import backends
from sparsegen.errors import LaunchError
from sparsegen.measure.supervised import DeviceLostError, Go, Supervised, Waiting
from sparsegen.system.child import ChildDiedError, ChildTimeoutError, Interrupted, answer, requests

DEVICE = backends.emulator_device()
PATIENCE = 20.0

Make = Callable[..., Supervised]


def serve(connection: Connection) -> None:
    """In the child: says its process's number when it is ready, and does what it is told."""
    first = connection.recv()
    if isinstance(first, Path):  # it dies until it was started so often
        first.write_text(first.read_text() + "x" if first.exists() else "x")
        if len(first.read_text()) < 2:
            os._exit(3)
    if answer(connection, partial(obey, connection, first)):
        for request in requests(connection):
            answer(connection, partial(obey, connection, request))


def obey(connection: Connection, told: Any) -> Any:
    match told:
        case "die":
            os._exit(4)
        case "hang":
            time.sleep(3600)
        case "raise":
            raise LaunchError("no")
        case "lose":
            raise DeviceLostError("gone")
        case "turn":
            connection.send(Waiting())
            assert isinstance(connection.recv(), Go)
    return os.getpid()


@pytest.fixture
def supervised() -> Iterator[Make]:
    made: list[Supervised] = []

    def make(first: Any = "", **options: Any) -> Supervised:
        made.append(Supervised("test_supervised:serve", first, **({"start_seconds": PATIENCE} | options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ask(child: Supervised, told: str, folder: Path, seconds: float = PATIENCE) -> Any:
    return child.ask_in_turn(told, device=DEVICE, locks=folder, prepare_seconds=seconds, seconds=seconds)


def test_a_child_gets_ready_once_and_answers(supervised: Make, tmp_path: Path) -> None:
    child = supervised()
    assert child.wait_until_ready() == child.wait_until_ready() == child.pid and child.is_ready()
    assert ask(child, "", tmp_path) == ask(child, "turn", tmp_path) == child.pid


def test_an_error_of_the_child_is_the_askers(supervised: Make, tmp_path: Path) -> None:
    child = supervised()
    before = child.wait_until_ready()
    with pytest.raises(LaunchError, match="no"):
        ask(child, "raise", tmp_path)
    assert child.pid == before and ask(child, "", tmp_path) == before


@pytest.mark.parametrize(
    ("told", "error", "seconds"),
    [
        ("die", ChildDiedError, PATIENCE),
        ("lose", DeviceLostError, PATIENCE),
        ("hang", ChildTimeoutError, 0.2),
    ],
)
def test_a_lost_child_is_replaced(
    told: str, error: type[Exception], seconds: float, supervised: Make, tmp_path: Path
) -> None:
    child = supervised()
    before = child.wait_until_ready()
    with pytest.raises(error):
        ask(child, told, tmp_path, seconds)
    with pytest.raises(ProcessLookupError):
        os.kill(before, 0)
    assert child.wait_until_ready() == child.pid != before


def test_a_child_that_dies_before_it_is_ready_is_started_again(supervised: Make, tmp_path: Path) -> None:
    assert supervised(tmp_path / "twice", starts=2).wait_until_ready()
    once = supervised(tmp_path / "once")
    with pytest.raises(ChildDiedError, match="status 3"):
        once.wait_until_ready()


def test_a_child_that_cannot_get_ready_says_why(supervised: Make) -> None:
    with pytest.raises(LaunchError, match="no"):
        supervised("raise", starts=3).wait_until_ready()


def test_somebody_else_may_end_the_waiting(supervised: Make) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(Interrupted):
        supervised("hang", stop=stop).wait_until_ready()
